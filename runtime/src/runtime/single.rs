//! One reactor on the calling thread, and `block_on`.
//!
//! State: none. Thread class: any thread that is not a reactor's. Laws: 7 (the root future is a source that is
//! re-checked), 9, 12.

use crate::config::ReactorConfig;
use crate::conn::address::Address;
use crate::exec::ambient::{self, Class};
use crate::exec::enter::EnterHooks;
use crate::exec::handle::ReactorHandle;
use crate::exec::home::Home;
use crate::exec::local;
use crate::reactor;
use crate::runtime::builder::{Builder, OnThisThread};
use crate::runtime::launch::{self, Hooks};
use crate::runtime::listen::Bound;
use crate::sync::limit::Limit;
use crate::sync::plain::{AtomicBool, Ordering};
use crate::workers::WorkersConfig;
use crate::workers::pools::{Lease, Pools};
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// One reactor that runs on the calling thread.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # use std::io::Read;
/// let mut server = epoxide::Reactor::builder();
/// server.listen("127.0.0.1:0", |mut conn: epoxide::Connection| async move { conn.send_all(b"hello").await });
/// let reactor = server.build()?;
/// let (handle, addr) = (reactor.handle(), reactor.local_addrs()[0]);
/// let client = std::thread::spawn(move || {
///     let mut text = String::new();
///     std::net::TcpStream::connect(addr).and_then(|mut stream| stream.read_to_string(&mut text)).unwrap();
///     handle.stop();
///     text
/// });
/// reactor.run()?; // on this thread, until `stop`
/// assert_eq!(client.join().unwrap(), "hello");
/// # Ok(())
/// # }
/// ```
pub struct Reactor {
    home: Arc<Home>,
    addrs: Vec<Address>,
    /// Ends the pools with the reactor.
    _pools: Lease,
    /// What it takes to run; absent once it has.
    plan: Option<(Vec<Bound>, Arc<Limit>, Hooks)>,
}

impl Drop for Reactor {
    fn drop(&mut self) {
        if self.plan.is_some() {
            // Never run: nobody else will settle what was handed to it.
            self.home.abandon();
        }
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("addrs", &self.addrs).finish_non_exhaustive()
    }
}

impl Reactor {
    /// A builder with default settings.
    pub fn builder() -> Builder<OnThisThread> {
        Builder::new()
    }

    pub(super) fn new(builder: Builder<OnThisThread>) -> io::Result<Self> {
        let listeners = builder.listeners.len();
        Self::bind_all(builder).map_err(|error| launch::name_the_limit(error, 1, listeners))
    }

    fn bind_all(builder: Builder<OnThisThread>) -> io::Result<Self> {
        builder.config.validate()?;
        builder.workers.validate()?;
        launch::raise_descriptor_limit();
        let limit = launch::connection_limit(builder.max_connections)?;
        let mut listeners = Vec::new();
        let mut addrs = Vec::new();
        for spec in builder.listeners {
            let (addr, bound) = spec.bind(1)?;
            addrs.push(addr);
            listeners.extend(bound);
        }
        let home = Arc::new(Home::new(0, builder.config)?);
        let pools = Pools::new(&builder.workers, builder.hooks.enter.clone());
        pools.attach(std::slice::from_ref(&home));
        Ok(Self { home, addrs, _pools: Lease(pools), plan: Some((listeners, limit, builder.hooks)) })
    }

    /// The handle of the reactor; it works before, during and after [`run`](Self::run).
    pub fn handle(&self) -> ReactorHandle {
        ReactorHandle { home: self.home.clone() }
    }

    /// The IP addresses that are listened on, in the order of the `listen*` calls, ports filled in.
    pub fn local_addrs(&self) -> Vec<SocketAddr> {
        self.addrs.iter().filter_map(Address::ip).collect()
    }

    /// Everything that is listened on, unix names too, by [`ListenerId::index`](crate::ListenerId::index).
    pub fn addresses(&self) -> Vec<Address> {
        self.addrs.clone()
    }

    /// Runs on the calling thread until it is stopped by [`ReactorHandle::stop`].
    ///
    /// # Errors
    /// A reactor that runs on this thread already, a failing `enter` or `on_start` hook, and the fault by which it ended.
    pub fn run(mut self) -> io::Result<()> {
        let Some((listeners, limit, hooks)) = self.plan.take() else { return Ok(()) };
        let handle = self.handle();
        hooks.enter.around(|entered| {
            if !entered {
                self.home.abandon();
                return Err(launch::not_entered());
            }
            let reactor = launch::start(self.home.clone(), listeners, limit, &hooks)?;
            let (_, fault) = launch::run_to_end(reactor, &hooks, &handle);
            fault.map_or(Ok(()), Err)
        })
    }
}

/// Runs a future on a temporary reactor of the calling thread: for clients, tests and tools. `spawn_local` works
/// inside; what was spawned and is not done when the future is, is dropped.
///
/// # Panics
/// On a reactor thread or an async worker, which must not block; when the reactor cannot be made, with the errno of epoll
/// or eventfd in the text; and with the future's own panic.
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    refuse_to_block();
    match try_block_on(future) {
        Ok(output) => output,
        Err(error) => panic!("block_on could not run a reactor on this thread: {error}"),
    }
}

#[track_caller]
fn refuse_to_block() {
    assert!(
        !local::is_reactor_thread(),
        "block_on was called on a reactor thread: it would stop every connection of the reactor. Await the future, or spawn it"
    );
    assert!(
        ambient::class() != Class::Worker,
        "block_on was called on an async worker: the tasks of the pool would wait for it. Await the future, or call it inside spawn_blocking"
    );
}

fn try_block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let home = Arc::new(Home::new(0, ReactorConfig::default())?);
    let pools = Pools::new(&WorkersConfig::default(), EnterHooks::default());
    pools.attach(std::slice::from_ref(&home));
    // Dropped after the reactor, also when the future panics.
    let _lease = Lease(pools);
    let mut reactor = reactor::Reactor::new(home.clone(), launch::connection_limit(None)?)?;
    let root = Arc::new(Root { home, woken: AtomicBool::new(true) });
    let waker = Waker::from(root.clone());
    let mut future = pin!(future);
    // The future is the caller's and its panic too, but the reactor is torn down first.
    let result = catch_unwind(AssertUnwindSafe(|| {
        loop {
            if root.woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Ok(output);
            }
            // A stop is nothing to a reactor that ends with its future; it must only not be looked at again and again.
            reactor.note_stage();
            reactor.turn_for(|| root.woken.load(Ordering::Acquire))?;
        }
    }));
    reactor.teardown();
    match result {
        Ok(output) => output,
        Err(payload) => resume_unwind(payload),
    }
}

/// The waker of a future that a reactor polls beside its tasks.
struct Root {
    home: Arc<Home>,
    woken: AtomicBool,
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Published before the home looks whether its reactor sleeps (law 7).
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.home.wake();
        }
    }
}

/// Runs a future on the calling thread, parking it while the future waits; no reactor of its own.
#[track_caller]
pub(super) fn park_on<F: Future>(future: F) -> F::Output {
    refuse_to_block();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
