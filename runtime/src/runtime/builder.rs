//! What is to run: reactors, listeners, hooks.
//!
//! State: the plan, consumed by `build`. Thread class: any thread. Laws: 16 (bad configuration is refused here).

use crate::config::ReactorConfig;
use crate::conn::connection::Connection;
use crate::exec::handle::ReactorHandle;
use crate::exec::spawn::Outcome;
use crate::id::ListenerId;
use crate::reactor::stall::Stall;
use crate::runtime::launch::{self, Hooks};
use crate::runtime::listen::{self, ListenAddr, ListenSpec};
use crate::runtime::running::Runtime;
use crate::runtime::single::Reactor;
use crate::workers::WorkersConfig;
use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

/// Says what is to run: a [`Runtime`] of several reactors, or (as [`Builder<OnThisThread>`](OnThisThread), from
/// [`Reactor::builder`](crate::Reactor::builder)) one reactor on the calling thread. Setters return the builder; every
/// error, a bad address too, comes from `build` or `run`.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use epoxide::{Connection, Runtime};
/// # use std::io::Read;
///
/// let mut server = Runtime::builder();
/// server.reactors(1).max_connections(1000);
/// server.listen("127.0.0.1:0", |mut conn: Connection| async move { conn.send_all(b"hello").await });
/// let runtime = server.build()?; // or `run()`, which waits for a signal
/// # let mut text = String::new();
/// # std::net::TcpStream::connect(runtime.local_addrs()[0])?.read_to_string(&mut text)?;
/// # assert_eq!(text, "hello");
/// # Ok(())
/// # }
/// ```
pub struct Builder<Kind = OnThreads> {
    pub(super) reactors: Option<usize>,
    pub(super) pin: Option<Vec<usize>>,
    pub(super) config: ReactorConfig,
    pub(super) grace: Duration,
    pub(super) max_connections: Option<usize>,
    pub(super) workers: WorkersConfig,
    pub(super) listeners: Vec<ListenSpec>,
    pub(super) hooks: Hooks,
    /// The plan was taken: what is left is empty.
    built: bool,
    kind: PhantomData<Kind>,
}

/// Kind of a [`Builder`]: reactors on threads of their own.
///
/// ```
/// let mut server: epoxide::Builder<epoxide::OnThreads> = epoxide::Runtime::builder();
/// ```
#[derive(Clone, Copy, Debug)]
pub enum OnThreads {}

/// Kind of a [`Builder`]: one reactor on the calling thread.
///
/// ```
/// let mut server: epoxide::Builder<epoxide::OnThisThread> = epoxide::Reactor::builder();
/// ```
#[derive(Clone, Copy, Debug)]
pub enum OnThisThread {}

impl<Kind> fmt::Debug for Builder<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("reactors", &self.reactors)
            .field("listeners", &self.listeners.len())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl<Kind> Default for Builder<Kind> {
    fn default() -> Self {
        Self::new()
    }
}

impl<Kind> Builder<Kind> {
    /// Default configuration, no listener; on threads, a reactor per allowed CPU.
    pub fn new() -> Self {
        Self {
            reactors: None,
            pin: None,
            config: ReactorConfig::default(),
            grace: Duration::from_secs(30),
            max_connections: None,
            workers: WorkersConfig::default(),
            listeners: Vec::new(),
            hooks: Hooks::default(),
            built: false,
            kind: PhantomData,
        }
    }
}

impl Builder {
    /// How many reactors run, each on a thread of its own. Default: one per CPU that this process may use.
    pub fn reactors(&mut self, reactors: usize) -> &mut Self {
        self.reactors = Some(reactors);
        self
    }

    /// Pins reactor `i` to CPU `cores[i % cores.len()]`.
    pub fn pin(&mut self, cores: &[usize]) -> &mut Self {
        self.pin = Some(cores.to_vec());
        self
    }

    /// How long [`run`](Self::run) lets busy connections finish after a signal. Default 30 s.
    pub fn grace(&mut self, grace: Duration) -> &mut Self {
        self.grace = grace;
        self
    }

    /// Binds every address, starts every reactor, and returns once each has finished its `on_start` hooks.
    ///
    /// # Errors
    /// A configuration that cannot work (by name), an address that cannot be had, a thread that cannot be started, a
    /// hook that failed; a second call. Nothing is left running then. The process's soft limit of descriptors is raised to
    /// the hard one.
    pub fn build(&mut self) -> io::Result<Runtime> {
        launch::launch(self.take_plan()?)
    }

    /// Builds, waits for SIGINT or SIGTERM, drains within [`grace`](Self::grace), and returns. A second signal aborts
    /// what is left. [`Runtime::run`] does the same and reports.
    ///
    /// # Errors
    /// As [`build`](Self::build), and the fault of a reactor that ended without being asked to.
    pub fn run(&mut self) -> io::Result<()> {
        let grace = self.grace;
        self.build()?.run(grace).map(drop)
    }
}

impl Builder<OnThisThread> {
    /// Binds every address. Nothing runs before [`Reactor::run`]. The process's soft limit of descriptors is raised to the
    /// hard one.
    ///
    /// # Errors
    /// A configuration that cannot work (by name), or an address that cannot be had.
    pub fn build(&mut self) -> io::Result<Reactor> {
        Reactor::new(self.take_plan()?)
    }

    /// Builds, and runs the reactor on the calling thread until it is stopped by its handle.
    ///
    /// # Errors
    /// As [`build`](Self::build), a failing `on_start` hook, and the fault by which the reactor ended.
    pub fn run(&mut self) -> io::Result<()> {
        self.build()?.run()
    }
}

impl<Kind> Builder<Kind> {
    /// The configuration of every reactor.
    pub fn config(&mut self, config: ReactorConfig) -> &mut Self {
        self.config = config;
        self
    }

    /// Connections that may exist at a time, over all listeners and reactors and lingering ones included; past it
    /// accepting pauses until one closes. Default: the descriptor limit less 64, at least 1.
    pub fn max_connections(&mut self, max: usize) -> &mut Self {
        self.max_connections = Some(max);
        self
    }

    /// How the runtime's [workers](crate::workers) work. None is started before it is used.
    pub fn workers(&mut self, config: WorkersConfig) -> &mut Self {
        self.workers = config;
        self
    }

    /// Wraps the life of every reactor's, worker's and blocking thread: the hook is called on it, calls on, and what it
    /// holds meanwhile is dropped there when the thread has nothing left, its last task and the `on_stop` hooks included.
    /// With several hooks the first is outermost.
    ///
    /// For libraries that look for something of theirs on the calling thread. Those that need tokio's runtime for their
    /// timers and tasks find one that runs beside this one:
    /// ```text
    /// let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    /// let hosted = tokio.handle().clone();
    /// let mut server = epoxide::Runtime::builder();
    /// server.enter(move |thread| {
    ///     let _entered = hosted.enter();
    ///     thread();
    /// });
    /// // `tokio::time::sleep` and `tokio::spawn` work in every handler; `tokio` must outlive the server.
    /// ```
    ///
    /// A hook that panics or does not call the thread fails the start; on a thread of the pools, which are started later,
    /// it is complained about and the thread runs without it. One that panics after it has called the thread fails
    /// nothing, as the thread's work is done by then: one line on standard error says so, and [`Stats`](crate::Stats)
    /// does not count it.
    pub fn enter(&mut self, hook: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) -> &mut Self {
        self.hooks.enter.push(hook);
        self
    }

    /// Called on each reactor's thread before it accepts. An error fails the start with its text.
    ///
    /// ```
    /// # let mut server = epoxide::Runtime::builder();
    /// server.on_start(|reactor| {
    ///     println!("reactor {} starts", reactor.id());
    ///     std::io::Result::Ok(())
    /// });
    /// # server.build().unwrap();
    /// ```
    pub fn on_start<O: Outcome>(&mut self, hook: impl Fn(&ReactorHandle) -> O + Send + Sync + 'static) -> &mut Self {
        self.hooks.start.push(Arc::new(move |reactor| hook(reactor).settle()));
        self
    }

    /// Called on each reactor's thread after its last task is gone.
    pub fn on_stop(&mut self, hook: impl Fn(&ReactorHandle) + Send + Sync + 'static) -> &mut Self {
        self.hooks.stop.push(Arc::new(hook));
        self
    }

    /// Called on a reactor's thread when it ended by a fault and not because it was asked to.
    pub fn on_fault(&mut self, hook: impl Fn(&ReactorHandle, &io::Error) + Send + Sync + 'static) -> &mut Self {
        self.hooks.fault.push(Arc::new(hook));
        self
    }

    /// Called on a reactor's thread each time that a task, or other user code, has held its loop longer than
    /// [`ReactorConfig::stall_threshold`], once it is over. Each is counted in [`Stats::stalls`](crate::Stats::stalls) too.
    pub fn on_stall(&mut self, hook: impl Fn(&ReactorHandle, &Stall) + Send + Sync + 'static) -> &mut Self {
        self.hooks.stall.push(Arc::new(hook));
        self
    }

    /// Listens on an address, with a socket per reactor. The handler is cloned for every reactor; the future it returns
    /// stays on the reactor that accepted the connection and may be `!Send`.
    #[track_caller]
    pub fn listen<H, F>(&mut self, addr: impl Into<ListenAddr>, handler: H) -> ListenerId
    where
        H: Fn(Connection) -> F + Clone + Send + 'static,
        F: Future + 'static,
        F::Output: Outcome,
    {
        let id = self.next_id();
        self.listeners.push(ListenSpec::addr(id, addr.into(), listen::cloned(handler)));
        id
    }

    /// The same with a handler that is built on each reactor, and may hold `Rc` state.
    #[track_caller]
    pub fn listen_with<M, H, F>(&mut self, addr: impl Into<ListenAddr>, make: M) -> ListenerId
    where
        M: Fn(&ReactorHandle) -> H + Clone + Send + 'static,
        H: Fn(Connection) -> F + 'static,
        F: Future + 'static,
        F::Output: Outcome,
    {
        let id = self.next_id();
        self.listeners.push(ListenSpec::addr(id, addr.into(), listen::built(make)));
        id
    }

    /// Listens on a socket that exists already; it is made non-blocking and shared by the reactors. One on which listen(2)
    /// was not called is refused by `build`.
    #[track_caller]
    pub fn listen_on<H, F>(&mut self, listener: TcpListener, handler: H) -> ListenerId
    where
        H: Fn(Connection) -> F + Clone + Send + 'static,
        F: Future + 'static,
        F::Output: Outcome,
    {
        let id = self.next_id();
        self.listeners.push(ListenSpec::ready(id, listener.into(), listen::cloned(handler)));
        id
    }

    /// Listens on a unix path, or on an abstract name after a leading `@` or NUL (unix(7)); one socket is shared by all
    /// reactors. `listen` takes the same as a text (`"unix:/path"`) or a path, with [`ListenOptions`](crate::ListenOptions) such as the mode.
    ///
    /// A socket file that refuses connects is replaced; one that somebody listens on, and anything else that is in the
    /// way, is an error. The path is unlinked when the last reactor has stopped listening.
    #[track_caller]
    pub fn listen_unix<H, F>(&mut self, path: impl AsRef<OsStr>, handler: H) -> ListenerId
    where
        H: Fn(Connection) -> F + Clone + Send + 'static,
        F: Future + 'static,
        F::Output: Outcome,
    {
        self.listen(ListenAddr::unix(path.as_ref()), handler)
    }

    /// [`listen_on`](Self::listen_on) for a unix socket. Its path is left alone at the end.
    #[track_caller]
    pub fn listen_on_unix<H, F>(&mut self, listener: UnixListener, handler: H) -> ListenerId
    where
        H: Fn(Connection) -> F + Clone + Send + 'static,
        F: Future + 'static,
        F::Output: Outcome,
    {
        let id = self.next_id();
        self.listeners.push(ListenSpec::ready(id, listener.into(), listen::cloned(handler)));
        id
    }

    /// What is to run; once.
    fn take_plan(&mut self) -> io::Result<Self> {
        if self.built {
            let text = "this builder has been built already: its listeners and hooks went with the first build()";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let plan = std::mem::take(self);
        self.built = true;
        Ok(plan)
    }

    fn next_id(&self) -> ListenerId {
        ListenerId(self.listeners.len() as u32)
    }
}
