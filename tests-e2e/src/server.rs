//! Job: a runtime under test, on port 0, that tells a test when it is quiet, dead, or has panicked.
//! State owned: the runtime. Thread class: the test's thread.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::PoisonError;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use epoxide::{Builder, Connection, ReactorConfig, ReactorHandle, Runtime, ShutdownReport, Stats};

use crate::case::Case;
use crate::peer::wait_until;
use crate::proc::{ThreadCpu, current_tid};

/// A server that runs until it is dropped.
///
/// Dropping it (outside a panic) waits until every connection is closed and no longer lingers,
/// stops the runtime, and fails the test if handlers panicked and the test did not claim it:
/// a panic in a handler is caught by the runtime, so an assertion there would go unnoticed.
#[derive(Debug)]
pub struct Server {
    runtime: Option<Runtime>,
    addrs: Vec<SocketAddr>,
    claimed_panics: u64,
    abandoned: bool,
}

/// An address on loopback with a port of the kernel's choice.
pub fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A server with this configuration, whose handler is given a way to tell the test something.
pub fn telling<T, F>(
    case: &Case,
    config: ReactorConfig,
    handler: impl Fn(Connection, Sender<T>) -> F + Clone + Send + 'static,
) -> (Server, Receiver<T>)
where
    T: Send + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    let (tell, told) = channel();
    let server = Server::start(case, |b| {
        b.config(config);
        b.listen(loopback(), move |connection| handler(connection, tell.clone()));
    });
    (server, told)
}

impl Server {
    /// Builds and starts a runtime: one reactor, and what `set_up` says.
    ///
    /// # Panics
    /// When it cannot be built.
    pub fn start(case: &Case, set_up: impl FnOnce(&mut Builder)) -> Self {
        Self::try_start(case, set_up).expect("the runtime starts")
    }

    /// The same, for a test that expects a refusal.
    pub fn try_start(case: &Case, set_up: impl FnOnce(&mut Builder)) -> io::Result<Self> {
        let mut builder = Runtime::builder();
        builder.reactors(1);
        let faults = case.faults();
        builder.on_fault(move |reactor, error| {
            let line = format!("reactor {:?}: {error}", reactor.id());
            eprintln!("fault in {line}");
            faults.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        });
        set_up(&mut builder);
        let runtime = builder.build()?;
        case.count_buffers_by(runtime.handle());
        let addrs = runtime.local_addrs();
        Ok(Self { runtime: Some(runtime), addrs, claimed_panics: 0, abandoned: false })
    }

    /// The address of the first listener.
    pub fn addr(&self) -> SocketAddr {
        self.addrs[0]
    }

    /// The addresses of all listeners, in the order they were given.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the runtime is taken only when the server ends")
    }

    /// The first reactor.
    pub fn reactor(&self) -> ReactorHandle {
        self.runtime().handle()
    }

    /// The counters of all reactors together.
    pub fn stats(&self) -> Stats {
        self.runtime().stats()
    }

    /// The kernel's id of the first reactor's thread.
    pub fn reactor_tid(&self) -> u32 {
        let (tid, tids) = channel();
        let posted = self.reactor().run_here(move || {
            let _ = tid.send(current_tid());
        });
        assert!(posted.is_ok(), "the reactor takes a closure");
        tids.recv_timeout(Duration::from_secs(10)).expect("the reactor runs a posted closure")
    }

    /// The CPU clock of the first reactor's thread.
    pub fn reactor_cpu(&self) -> ThreadCpu {
        ThreadCpu::open(self.reactor_tid()).expect("the reactor's thread has a stat file")
    }

    /// Says that the test made `count` handlers panic.
    pub fn claim_panics(&mut self, count: u64) {
        self.claimed_panics += count;
    }

    /// Says that connections are open on purpose when the server is dropped.
    pub fn abandon_connections(&mut self) {
        self.abandoned = true;
    }

    /// Waits until no connection is open or lingering; false when that takes over 10 s.
    #[must_use]
    pub fn wait_quiet(&self) -> bool {
        wait_until(Duration::from_secs(10), || {
            let stats = self.stats();
            stats.open == 0 && stats.lingering == 0
        })
    }

    /// Stops the runtime and says what its drain did.
    pub fn stop(mut self, grace: Duration) -> io::Result<ShutdownReport> {
        self.end(grace)
    }

    fn end(&mut self, grace: Duration) -> io::Result<ShutdownReport> {
        let runtime = self.runtime.take().expect("ended once");
        let handles = runtime.handles();
        let report = runtime.shutdown_blocking(grace);
        drop(runtime);
        // Counted once every reactor has ended: before, the last panic may not be in the numbers yet.
        let panics: u64 = handles.iter().map(|reactor| reactor.stats().panics).sum();
        assert_eq!(panics, self.claimed_panics, "panics in handlers that the test did not claim");
        report
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() || self.runtime.is_none() {
            return;
        }
        if !self.abandoned {
            let quiet = self.wait_quiet();
            let stats = self.stats();
            assert!(quiet, "connections are left: {} open, {} lingering", stats.open, stats.lingering);
            // A snapshot lags behind by one pass.
            let _ = wait_until(Duration::from_secs(5), || self.stats().tasks == 0);
            assert_eq!(self.stats().tasks, 0, "tasks are left after the last connection has gone");
        }
        let report = self.end(Duration::from_secs(5));
        assert!(report.is_ok(), "the runtime does not stop: {report:?}");
    }
}

/// A server whose handlers hand their connections to the test.
pub fn handing_over(case: &Case, set_up: impl FnOnce(&mut Builder)) -> (Server, Receiver<Connection>) {
    let (connections, accepted) = channel();
    let server = Server::start(case, |b| {
        b.listen(loopback(), move |connection: Connection| {
            let connections = connections.clone();
            async move {
                let _ = connections.send(connection);
            }
        });
        set_up(b);
    });
    (server, accepted)
}

/// Asks for a stop on a thread of its own, and returns once the drain has begun: new clients are refused.
///
/// # Panics
/// When that takes over 10 s.
pub fn begin_drain(server: Server, grace: Duration) -> JoinHandle<ShutdownReport> {
    let addr = server.addr();
    let stopping = std::thread::spawn(move || server.stop(grace).expect("the runtime stops"));
    let refused = wait_until(Duration::from_secs(10), || TcpStream::connect(addr).is_err());
    assert!(refused, "the drain does not begin: new clients are accepted");
    stopping
}
