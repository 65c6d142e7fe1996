//! What users call: `spawn`, `spawn_blocking`, the `Workers` handle, `ReactorHandle::{workers, enter}`.
//!
//! State: an `Arc` of the pools. Thread class: any thread. Laws: 12 (what cannot be handed over comes back), 13.

use crate::exec::ambient;
use crate::exec::enter::EnterHooks;
use crate::exec::handle::ReactorHandle;
use crate::exec::join::{self, JoinHandle};
use crate::exec::join_error::JoinError;
use crate::exec::local::{self, Discard};
use crate::time::driver::{self, Driver};
use crate::workers::config::WorkersConfig;
use crate::workers::error::SubmitError;
use crate::workers::pools::Pools;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// Gives a future to the current runtime's async workers. It is polled and dropped by whichever of them is free, and it
/// must not block them.
///
/// The handle gives its result, its panic, or [`JoinError::Stopped`]; dropping the handle detaches the task.
///
/// # Panics
/// On a thread without a current runtime: use [`ReactorHandle::workers`] or [`ReactorHandle::enter`] there.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    current("workers::spawn").spawn(future).unwrap_or_else(settled)
}

/// Runs a closure that may block on a thread of the current runtime's blocking pool.
///
/// The handle gives its result, its panic, or why it was not run: [`JoinError::PoolFull`], [`JoinError::Stopped`].
/// [`Workers::spawn_blocking`] gives the closure itself back. Dropping the handle lets the closure run; aborting it
/// drops a closure that has not begun. Inside, [`block_on`](crate::block_on) may be used.
///
/// # Panics
/// On a thread without a current runtime: use [`ReactorHandle::workers`] or [`ReactorHandle::enter`] there.
#[track_caller]
pub fn spawn_blocking<C, T>(call: C) -> JoinHandle<T>
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    current("workers::spawn_blocking").spawn_blocking(call).unwrap_or_else(settled)
}

#[track_caller]
fn current(what: &str) -> Workers {
    match Workers::current() {
        Some(workers) => workers,
        None => panic!(
            "{what} was called on a thread without a current runtime; use ReactorHandle::workers or ::enter there"
        ),
    }
}

/// Nobody gets it back, so what it holds is cut, like what a pool gives up (law 6).
fn settled<J, T>(refused: SubmitError<J>) -> JoinHandle<T> {
    let (error, why) = match refused {
        SubmitError::PoolFull(_) => (JoinError::PoolFull, Discard::Aborted),
        SubmitError::Stopped(_) => (JoinError::Stopped, Discard::Stopped),
    };
    join::discarding(why, || drop(refused));
    join::settled(error)
}

/// The workers of a runtime, for every thread. Cheap to clone; does not keep the runtime running.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let runtime = epoxide::Runtime::builder().reactors(1).build()?;
/// let workers = runtime.handle().workers(); // works on every thread
/// let sum = workers.spawn(async { 40 + 2 }).ok().expect("it has not stopped");
/// assert_eq!(epoxide::block_on(sum)?, 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Workers {
    pools: Arc<Pools>,
}

impl fmt::Debug for Workers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Workers").field(&self.report()).finish()
    }
}

impl Workers {
    /// Those of the calling thread's current runtime: on reactor threads, on workers, and on threads that have
    /// [entered](ReactorHandle::enter) one.
    pub fn current() -> Option<Self> {
        ambient::home().and_then(|home| Pools::of(&home)).map(|pools| Self { pools })
    }

    /// Gives a future to the async workers; see [`spawn`].
    ///
    /// # Errors
    /// The future comes back when the workers have stopped, or ([`SubmitError::PoolFull`]) when the system lets not one
    /// thread start.
    pub fn spawn<F>(&self, future: F) -> Result<JoinHandle<F::Output>, SubmitError<F>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        self.pools.tasks.spawn(future)
    }

    /// Runs a closure that may block; see [`spawn_blocking`].
    ///
    /// It goes to a parked thread if there is one, else to a new thread while there are fewer than
    /// [`WorkersConfig::max_blocking`], else it waits with at most [`WorkersConfig::max_overflow`] others.
    ///
    /// # Errors
    /// The closure comes back when the workers have stopped, or when all of these limits are reached.
    pub fn spawn_blocking<C, T>(&self, call: C) -> Result<JoinHandle<T>, SubmitError<C>>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        self.pools.blocking.submit(call)
    }

    /// A snapshot of both pools. Read number by number while they run.
    pub fn report(&self) -> WorkersReport {
        let (tasks, blocking) = (&self.pools.tasks, &self.pools.blocking);
        let counts = blocking.counts();
        let (polls, task_panics) = tasks.totals();
        let (jobs_done, job_panics, jobs_refused) = blocking.totals();
        WorkersReport {
            workers: tasks.crew().alive(),
            workers_parked: tasks.parked(),
            tasks: tasks.live(),
            polls,
            blocking_threads: counts.threads,
            blocking_parked: counts.credit,
            jobs_running: blocking.running(),
            jobs_done,
            jobs_refused,
            overflow_len: counts.overflow,
            oldest_overflow_age: if counts.overflow > 0 { blocking.oldest_overflow_age() } else { None },
            panics: task_panics + job_panics,
        }
    }
}

/// A snapshot of the pools of a runtime.
///
/// ```
/// # epoxide::block_on(async {
/// epoxide::workers::spawn_blocking(|| ()).await?;
/// let report = epoxide::workers::Workers::current().expect("here is a runtime").report();
/// assert!(report.jobs_done <= 1); // counted after the job has told its result
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct WorkersReport {
    /// Async workers that exist.
    pub workers: usize,
    /// Those of them that sleep.
    pub workers_parked: usize,
    /// Tasks that exist.
    pub tasks: usize,
    /// Polls of tasks so far.
    pub polls: u64,
    /// Blocking threads that exist or are being started.
    pub blocking_threads: usize,
    /// Those of them that are parked and have not been promised a job (law 13: the credit).
    pub blocking_parked: usize,
    /// Blocking jobs whose closure runs now.
    pub jobs_running: usize,
    /// Blocking jobs that were run.
    pub jobs_done: u64,
    /// Blocking jobs refused because the overflow was full.
    pub jobs_refused: u64,
    /// Blocking jobs that wait because every thread is busy and [`WorkersConfig::max_blocking`] is reached.
    pub overflow_len: usize,
    /// How long the oldest of these has waited.
    pub oldest_overflow_age: Option<Duration>,
    /// Panics of tasks and jobs.
    pub panics: u64,
}

impl ReactorHandle {
    /// The workers of the reactor's runtime.
    pub fn workers(&self) -> Workers {
        // Every way to make a reactor attaches pools; one without is a test's own, and has some that are closed.
        let pools = Pools::of(&self.home).unwrap_or_else(|| {
            let pools = Pools::new(&WorkersConfig::default(), EnterHooks::default());
            pools.close();
            pools
        });
        Workers { pools }
    }

    /// Makes this reactor's runtime the calling thread's current one until the guard is dropped: for threads of the
    /// user's own. `workers::spawn` works then, and deadlines of `time` wait in the reactor's wheel.
    ///
    /// Guards are dropped in the reverse order of their making, and are not to be held over an await. On a thread that
    /// runs a reactor nothing changes: that reactor stays the current one.
    pub fn enter(&self) -> Entered<'_> {
        let foreign = !local::is_reactor_thread();
        let timers = self.home.timers.get::<Driver>().filter(|_| foreign);
        Entered {
            _timers: timers.map(|timers| timers.enter_remote()),
            _home: foreign.then(|| ambient::enter(self.home.clone())),
            handle: PhantomData,
        }
    }
}

/// What [`ReactorHandle::enter`] returns: the calling thread has a current runtime while it lives. It stays on its
/// thread.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let runtime = epoxide::Runtime::builder().reactors(1).build()?;
/// let handle = runtime.handle();
/// let entered = handle.enter();
/// // Until `entered` is dropped, this thread has a current runtime.
/// let sum = epoxide::workers::spawn_blocking(|| 40 + 2);
/// assert_eq!(epoxide::block_on(sum)?, 42);
/// # Ok(())
/// # }
/// ```
#[must_use = "the runtime is current only while the guard lives"]
pub struct Entered<'a> {
    _timers: Option<driver::Entered>,
    _home: Option<ambient::Entered>,
    handle: PhantomData<&'a ReactorHandle>,
}

impl fmt::Debug for Entered<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}
