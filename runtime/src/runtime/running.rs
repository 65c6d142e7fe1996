//! The running runtime: addresses, handles, counters, shutdown.
//!
//! State: the homes, the threads, the control record. Thread class: any thread. Laws: 12, section "drain".

use crate::conn::address::Address;
use crate::exec::ambient::{self, Class};
use crate::exec::handle::ReactorHandle;
use crate::exec::home::{Home, Stage};
use crate::exec::local;
use crate::runtime::builder::Builder;
use crate::runtime::control::{Control, PATIENCE};
use crate::runtime::single;
use crate::stats::Stats;
use crate::sys;
use crate::time;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// What a shutdown did.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use std::time::Duration;
///
/// let runtime = epoxide::Runtime::builder().reactors(1).build()?;
/// let report = runtime.shutdown_blocking(Duration::from_secs(5))?;
/// assert!(report.graceful && report.cut == 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Connections that were cut: still busy at the deadline, or still sending.
    pub cut: usize,
    /// Blocking jobs that still run: nothing can interrupt them, so their threads are left behind.
    pub jobs_running: usize,
    /// Reactors and async workers that were still inside a handler, a task or a hook 3 s after the deadline: it does not
    /// return, and nothing can interrupt it, so their threads are left behind, with the connections that they hold.
    pub threads_stuck: usize,
    /// Everything that was in progress finished within the grace, blocking jobs included.
    pub graceful: bool,
    /// How long it took.
    pub took: Duration,
}

/// Reactors that run. Dropping it stops them and their workers and joins the threads, except those whose blocking job
/// still runs; after a shutdown that left threads behind ([`ShutdownReport::threads_stuck`]) it waits for none.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # use std::io::Read;
/// let mut server = epoxide::Runtime::builder();
/// server.listen("127.0.0.1:0", |mut conn: epoxide::Connection| async move { conn.send_all(b"hello").await });
/// let runtime = server.build()?;
/// let mut text = String::new();
/// std::net::TcpStream::connect(runtime.local_addrs()[0])?.read_to_string(&mut text)?;
/// assert_eq!((text.as_str(), runtime.stats().accepted), ("hello", 1));
/// # Ok(())
/// # }
/// ```
pub struct Runtime {
    homes: Vec<Arc<Home>>,
    addrs: Vec<Address>,
    threads: Vec<JoinHandle<()>>,
    control: Arc<Control>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime")
            .field("reactors", &self.homes.len())
            .field("addrs", &self.addrs)
            .finish_non_exhaustive()
    }
}

impl Runtime {
    /// A builder with default settings.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(super) fn new(homes: Vec<Arc<Home>>, addrs: Vec<Address>, control: Arc<Control>) -> Self {
        Self { homes, addrs, threads: Vec::new(), control }
    }

    pub(super) fn adopt(&mut self, thread: JoinHandle<()>) {
        self.threads.push(thread);
    }

    /// The IP addresses that are listened on, in the order of the `listen*` calls, ports filled in.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.addrs.iter().filter_map(Address::ip).collect()
    }

    /// Everything that is listened on, unix names too, by [`ListenerId::index`](crate::ListenerId::index).
    pub fn addresses(&self) -> Vec<Address> {
        self.addrs.clone()
    }

    /// The handle of the first reactor.
    pub fn handle(&self) -> ReactorHandle {
        ReactorHandle { home: self.homes[0].clone() }
    }

    /// The handles of all reactors, by index.
    pub fn handles(&self) -> Vec<ReactorHandle> {
        self.homes.iter().map(|home| ReactorHandle { home: home.clone() }).collect()
    }

    /// The counters of all reactors, summed.
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for home in &self.homes {
            all.merge(&home.counts.snapshot());
        }
        all
    }

    /// Runs a future on the calling thread while the reactors run on theirs. The thread has no current runtime by that:
    /// what wants one (`connect`, `spawn_blocking`) is called within [`ReactorHandle::enter`].
    ///
    /// # Panics
    /// On a reactor thread or an async worker, which must not block.
    #[track_caller]
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        single::park_on(future)
    }

    /// Drains: listeners close once their queues are served, idle connections end, busy ones may finish. After `grace`
    /// the rest is reset and counted. Then the [workers](crate::workers) stop: tasks are dropped, blocking jobs have
    /// what is left of the grace. Also from a task of this runtime; calls may overlap, the earliest deadline wins.
    /// A handler that blocks its thread and does not return holds it for 3 s past the deadline at most.
    ///
    /// Cancel safety: the drain goes on, with its deadline, when the future is dropped; blocking jobs that have not begun
    /// are then given up when the runtime is dropped. A task of this runtime ends with its reactor or worker, so that
    /// it does not see the end.
    pub fn shutdown(&self, grace: Duration) -> impl Future<Output = ShutdownReport> + Send + 'static {
        let control = self.control.clone();
        let begun = time::now();
        self.drain(grace);
        async move {
            let deadline = time::after(begun, grace);
            let over = poll_fn(|cx| if control.poll_over(cx.waker()) { Poll::Ready(()) } else { Poll::Pending });
            let left = time::after(deadline, PATIENCE).saturating_duration_since(time::now());
            // Whether they are over is asked again for the report.
            let _ = time::timeout(left, over).await;
            control.pools.stop(deadline, PATIENCE).await;
            report(&control, begun)
        }
    }

    /// The same, blocking the calling thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::Deadlock`] on a reactor thread, on an async worker, and in a blocking job of this runtime, which
    /// would wait for itself: use [`shutdown`](Self::shutdown).
    pub fn shutdown_blocking(&self, grace: Duration) -> io::Result<ShutdownReport> {
        self.refuse_to_wait("shutdown_blocking")?;
        let begun = time::now();
        let deadline = time::after(begun, grace);
        self.drain(grace);
        self.control.wait_past(deadline);
        self.control.pools.stop_blocking(deadline, PATIENCE);
        Ok(report(&self.control, begun))
    }

    fn drain(&self, grace: Duration) {
        self.homes[0].company.all_drain();
        for home in &self.homes {
            home.drain(grace);
        }
    }

    fn request(&self, stage: Stage) {
        for home in &self.homes {
            home.request(stage);
        }
    }

    /// Reactors and async workers do not block, whoever's they are; and nobody waits for itself.
    fn refuse_to_wait(&self, call: &str) -> io::Result<()> {
        let text = if local::is_reactor_thread() {
            "on a reactor thread, which must not wait"
        } else if ambient::class() == Class::Worker {
            "on an async worker, which must not wait"
        } else if self.control.pools.is_own_thread() {
            "in a blocking job of the runtime, which would wait for it"
        } else {
            return Ok(());
        };
        let text = format!("{call} was called {text}: use shutdown().await");
        Err(io::Error::new(io::ErrorKind::Deadlock, text))
    }

    /// Waits for SIGINT or SIGTERM, then drains within `grace`. A second signal aborts what is left. A handler that blocks
    /// its thread and does not return is waited for 3 s past the deadline, or past the second signal.
    ///
    /// # Errors
    /// The fault of a reactor that ended without being asked to; the others are drained all the same.
    pub fn run(self, grace: Duration) -> io::Result<ShutdownReport> {
        self.run_with(grace, || {})
    }

    /// The same; `ready` is called first thing when a signal would drain and no longer end the process: the place for a
    /// program's start line, which others wait for.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_with(self, grace: Duration, ready: impl FnOnce()) -> io::Result<ShutdownReport> {
        self.refuse_to_wait("Runtime::run")?;
        let signals = sys::signal::watch_termination()?;
        ready();
        // A reactor that dies is noticed within a second; signals at once.
        while signals.wait(Some(Duration::from_secs(1)))?.is_none() {
            if self.control.has_fault() || self.control.is_over() {
                break;
            }
        }
        let begun = time::now();
        let mut deadline = time::after(begun, grace);
        self.drain(grace);
        while !self.control.is_over() {
            let step = Duration::from_millis(20);
            if signals.try_next()?.is_some() {
                self.request(Stage::Aborting);
                self.control.wait_past(begun);
                deadline = begun;
                break;
            }
            if time::now() >= deadline {
                self.control.wait_past(deadline);
                break;
            }
            self.control.wait_until(time::now().checked_add(step));
        }
        let pools = &self.control.pools;
        pools.close();
        while time::now() < deadline && signals.try_next()?.is_none() {
            let step = time::after(time::now(), Duration::from_millis(20));
            if pools.wait(Some(step.min(deadline))) {
                break;
            }
        }
        pools.stop_blocking(begun, PATIENCE);
        let report = report(&self.control, begun);
        self.control.take_fault().map_or(Ok(report), Err)
    }
}

fn report(control: &Control, begun: Instant) -> ShutdownReport {
    let (cut, jobs_running) = (control.cut(), control.pools.jobs_running());
    let threads_stuck = control.running() + control.pools.workers_busy();
    if threads_stuck > 0 {
        control.give_up();
    }
    let graceful = cut == 0 && jobs_running == 0 && threads_stuck == 0 && control.pools.jobs_dropped() == 0;
    ShutdownReport { cut, jobs_running, threads_stuck, graceful, took: begun.elapsed() }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.request(Stage::Aborting);
        let pools = &self.control.pools;
        let in_own_task = ambient::class() == Class::Worker && pools.is_own_thread();
        let in_own = in_own_task || self.homes.iter().any(|home| local::is_here(home));
        if in_own || self.control.has_given_up() {
            // Inside one of its own tasks the threads end by themselves; who was given up may run for ever.
            pools.close();
            pools.abort();
            return;
        }
        let this_thread = std::thread::current().id();
        for thread in self.threads.drain(..).filter(|thread| thread.thread().id() != this_thread) {
            // A thread that panicked has said so; its end is all that is waited for. Not its own: a hook may be the last
            // that holds the runtime.
            let _ = thread.join();
        }
        pools.close();
        pools.abort();
        pools.wait_for_the_idle();
    }
}
