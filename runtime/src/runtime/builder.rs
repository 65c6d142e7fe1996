//! What is to run: reactors, listeners, hooks.
//!
//! State: the plan, consumed by `build`. Thread class: any thread. Laws: 16 (bad configuration is refused here).

use crate::config::ReactorConfig;
use crate::conn::connection::Connection;
use crate::exec::handle::ReactorHandle;
use crate::exec::spawn::Outcome;
use crate::id::ListenerId;
use crate::runtime::launch::{self, Hooks};
use crate::runtime::listen::{self, ListenAddr, ListenSpec};
use crate::runtime::running::{Runtime, ShutdownReport};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

/// Says what a [`Runtime`] is to run. Setters return the builder; every error, a bad address too, comes from
/// [`build`](Self::build) or [`run`](Self::run).
pub struct Builder {
    pub(super) reactors: Option<usize>,
    pub(super) pin: Option<Vec<usize>>,
    pub(super) config: ReactorConfig,
    pub(super) grace: Duration,
    pub(super) listeners: Vec<ListenSpec>,
    pub(super) hooks: Hooks,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("reactors", &self.reactors)
            .field("listeners", &self.listeners.len())
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

impl Builder {
    /// A reactor per allowed CPU, default configuration, no listener.
    pub fn new() -> Self {
        Self {
            reactors: None,
            pin: None,
            config: ReactorConfig::default(),
            grace: Duration::from_secs(30),
            listeners: Vec::new(),
            hooks: Hooks::default(),
        }
    }

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

    /// The configuration of every reactor.
    pub fn config(&mut self, config: ReactorConfig) -> &mut Self {
        self.config = config;
        self
    }

    /// How long [`run`](Self::run) lets busy connections finish after a signal. Default 30 s.
    pub fn grace(&mut self, grace: Duration) -> &mut Self {
        self.grace = grace;
        self
    }

    /// Called on each reactor's thread before it accepts. An error fails the start with its text.
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

    /// Listens on an address, with a socket per reactor. The handler is cloned for every reactor; the future it returns
    /// stays on the reactor that accepted the connection and may be `!Send`.
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

    /// Listens on a socket that exists already; it is made non-blocking and shared by the reactors.
    pub fn listen_on<H, F>(&mut self, listener: TcpListener, handler: H) -> ListenerId
    where
        H: Fn(Connection) -> F + Clone + Send + 'static,
        F: Future + 'static,
        F::Output: Outcome,
    {
        let id = self.next_id();
        self.listeners.push(ListenSpec::ready(id, listener, listen::cloned(handler)));
        id
    }

    fn next_id(&self) -> ListenerId {
        ListenerId(self.listeners.len() as u32)
    }

    /// Binds every address, starts every reactor, and returns once each has finished its `on_start` hooks.
    ///
    /// # Errors
    /// A configuration that cannot work (by name), an address that cannot be had, a thread that cannot be started, a
    /// hook that failed. Nothing is left running then.
    pub fn build(&mut self) -> io::Result<Runtime> {
        launch::launch(std::mem::take(self))
    }

    /// Builds, waits for SIGINT or SIGTERM, drains within [`grace`](Self::grace), and returns. A second signal aborts
    /// what is left.
    ///
    /// # Errors
    /// As [`build`](Self::build), and the fault of a reactor that ended without being asked to.
    pub fn run(&mut self) -> io::Result<ShutdownReport> {
        let grace = self.grace;
        self.build()?.run(grace)
    }
}
