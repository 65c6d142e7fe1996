//! The handle of a reactor: spawn on it, run a closure on it, stop it, from any thread.
//!
//! State: an `Arc` of the home. Thread class: any thread. Laws: 12 (what cannot be handed over comes back), 16.

use crate::error::PostError;
use crate::exec::ambient;
use crate::exec::header::Header;
use crate::exec::home::{Admission, Home, Stage};
use crate::exec::join::{self, JoinHandle};
use crate::exec::local;
use crate::exec::task::Task;
use crate::stats::Stats;
use crate::sync::gate::Refused;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// Reaches a reactor from any thread. Cheap to clone; does not keep the reactor running.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use epoxide::Runtime;
///
/// let runtime = Runtime::builder().reactors(1).build()?;
/// let there = runtime.handle().run_here(|| std::thread::current().id())?;
/// let there = epoxide::block_on(there)?;
/// assert_ne!(there, std::thread::current().id());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ReactorHandle {
    pub(crate) home: Arc<Home>,
}

impl fmt::Debug for ReactorHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.home.fmt(f)
    }
}

impl PartialEq for ReactorHandle {
    /// The same reactor (not merely the same index)?
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.home, &other.home)
    }
}

impl Eq for ReactorHandle {}

impl ReactorHandle {
    /// The calling thread's reactor: the one that runs on it, else the one that it belongs to as a worker, or has
    /// entered. [`is_current_thread`](Self::is_current_thread) tells which.
    pub fn current() -> Option<Self> {
        ambient::home().map(|home| Self { home })
    }

    /// Position of the reactor in its runtime, from 0.
    pub fn id(&self) -> usize {
        self.home.index
    }

    /// Does this reactor run on the calling thread?
    pub fn is_current_thread(&self) -> bool {
        local::is_here(&self.home)
    }

    /// Has the reactor ended?
    pub fn is_stopped(&self) -> bool {
        self.home.stage() == Stage::Stopped
    }

    /// Spawns a future on the reactor. It starts there, soon, and is polled and dropped there only.
    ///
    /// # Errors
    /// The future comes back if the reactor has stopped or has `max_posts` posts waiting.
    #[track_caller]
    pub fn spawn<F>(&self, future: F) -> Result<JoinHandle<F::Output>, PostError<F>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let admission = match self.home.admit() {
            Ok(admission) => admission,
            Err(why) => return Err(PostError::refused(why, future)),
        };
        let header = Header::new(self.home.clone(), Location::caller());
        let (handle, task) = join::joined(header.clone(), future);
        admission.post(Box::new(move || local::insert_posted(Task::new(task, header))));
        Ok(handle)
    }

    /// Builds a future on the reactor and spawns it there: for futures that are not `Send` themselves.
    ///
    /// # Errors
    /// The closure comes back if the reactor has stopped or has `max_posts` posts waiting.
    #[track_caller]
    pub fn spawn_with<M, F>(&self, make: M) -> Result<JoinHandle<F::Output>, PostError<M>>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let admission = match self.home.admit() {
            Ok(admission) => admission,
            Err(why) => return Err(PostError::refused(why, make)),
        };
        let header = Header::new(self.home.clone(), Location::caller());
        let (handle, task) = join::joined_with(header.clone(), make);
        admission.post(Box::new(move || local::insert_posted(Task::new(task(), header))));
        Ok(handle)
    }

    /// Runs a closure on the reactor thread; it must not block there. The handle gives its result or its panic.
    ///
    /// Always queued, never run inline, also when called on the reactor thread itself.
    ///
    /// # Errors
    /// The closure comes back if the reactor has stopped or has `max_posts` posts waiting.
    #[track_caller]
    pub fn run_here<M, T>(&self, call: M) -> Result<JoinHandle<T>, PostError<M>>
    where
        M: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let admission: Admission<'_> = match self.home.admit() {
            Ok(admission) => admission,
            Err(why) => return Err(PostError::refused(why, call)),
        };
        let (handle, run) = join::joined_call(Header::new(self.home.clone(), Location::caller()), call);
        admission.post(Box::new(run));
        Ok(handle)
    }

    /// Drains the reactor: its listeners close once their queues are served, idle connections end, busy ones may finish
    /// within `grace`; then it ends. Returns at once; of several requests the earliest deadline holds.
    pub fn drain(&self, grace: Duration) {
        self.home.drain(grace);
    }

    /// Ends the reactor: what it still holds is aborted. Returns at once; idempotent; also before the reactor runs.
    /// For a graceful end see [`Runtime::shutdown`](crate::Runtime::shutdown).
    pub fn stop(&self) {
        self.home.request(Stage::Aborting);
    }

    /// A snapshot of the reactor's counters.
    pub fn stats(&self) -> Stats {
        self.home.counts.snapshot()
    }
}

impl<T> PostError<T> {
    pub(crate) fn refused(why: Refused, payload: T) -> Self {
        match why {
            Refused::Stopped => Self::Stopped(payload),
            Refused::Full => Self::Full(payload),
        }
    }
}

impl From<Refused> for io::Error {
    fn from(why: Refused) -> Self {
        PostError::refused(why, ()).into()
    }
}
