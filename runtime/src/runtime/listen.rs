//! Listening addresses, their options, and the sockets behind them.
//!
//! State: none. Thread class: any thread. Laws: 4 (one REUSEPORT socket per reactor, all bound and listening before
//! any accepts; a port is probed first so that a second instance is an error), 5.

use crate::conn::connection::Connection;
use crate::exec::handle::ReactorHandle;
use crate::exec::spawn::Outcome;
use crate::exec::task::Task;
use crate::id::ListenerId;
use crate::reactor::accept::Handler;
use crate::sync::limit::Limit;
use crate::sys;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// How a listener listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenOptions {
    /// Connections that the kernel completes before they are accepted, per reactor; listen(2) caps it at
    /// `net.core.somaxconn`. Default 1024.
    pub backlog: i32,
    /// Connections of this listener that may exist at a time, over all reactors and lingering ones included; past it
    /// accepting pauses. Default: no limit of its own.
    pub max_connections: Option<usize>,
    /// Let other processes of this user listen on the same port: connections are spread over all of them. Default
    /// false: a port that somebody listens on is an error.
    pub share_port: bool,
    /// IPv6 only. Default: an address of all zeroes (`[::]`) takes IPv4 as well, as `net.ipv6.bindv6only` says.
    pub v6only: Option<bool>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        Self { backlog: 1024, max_connections: None, share_port: false, v6only: None }
    }
}

/// Where to listen. Built from a text (`"127.0.0.1:8080"`, `"[::]:0"`, `"localhost:8080"`), a socket address or a pair
/// of address and port. A bad one is reported by `build()`.
#[derive(Clone, Debug)]
pub struct ListenAddr {
    target: Result<Vec<SocketAddr>, String>,
    options: ListenOptions,
}

impl ListenAddr {
    /// The address with default options.
    pub fn new(addr: impl Into<Self>) -> Self {
        addr.into()
    }

    /// The same address with other options.
    #[must_use]
    pub fn options(mut self, options: ListenOptions) -> Self {
        self.options = options;
        self
    }

    fn of(target: Result<Vec<SocketAddr>, String>) -> Self {
        Self { target, options: ListenOptions::default() }
    }
}

impl From<SocketAddr> for ListenAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::of(Ok(vec![addr]))
    }
}

impl From<SocketAddrV4> for ListenAddr {
    fn from(addr: SocketAddrV4) -> Self {
        SocketAddr::V4(addr).into()
    }
}

impl From<SocketAddrV6> for ListenAddr {
    fn from(addr: SocketAddrV6) -> Self {
        SocketAddr::V6(addr).into()
    }
}

impl<I: Into<IpAddr>> From<(I, u16)> for ListenAddr {
    fn from(addr: (I, u16)) -> Self {
        SocketAddr::from(addr).into()
    }
}

impl From<&str> for ListenAddr {
    fn from(text: &str) -> Self {
        let refused = |why: &dyn std::fmt::Display| {
            format!(
                "cannot listen on '{text}': {why}; an address looks like 127.0.0.1:8080, [::1]:8080 or localhost:8080"
            )
        };
        Self::of(match text.to_socket_addrs() {
            Ok(addrs) => {
                let addrs: Vec<_> = addrs.collect();
                if addrs.is_empty() { Err(refused(&"the name has no address")) } else { Ok(addrs) }
            }
            Err(error) => Err(refused(&error)),
        })
    }
}

impl From<String> for ListenAddr {
    fn from(text: String) -> Self {
        text.as_str().into()
    }
}

impl From<&String> for ListenAddr {
    fn from(text: &String) -> Self {
        text.as_str().into()
    }
}

/// Makes a reactor's own handler, on its thread.
pub(crate) type MakeHandler = Box<dyn FnOnce(&ReactorHandle) -> Handler + Send>;

/// What `listen*` was asked for.
pub(crate) struct ListenSpec {
    pub(crate) id: ListenerId,
    source: Source,
    /// Called once per reactor, on the building thread.
    make: Box<dyn FnMut() -> MakeHandler + Send>,
}

enum Source {
    Addr(ListenAddr),
    Ready(TcpListener),
}

/// A listening socket for one reactor.
pub(crate) struct Bound {
    pub(crate) fd: OwnedFd,
    pub(crate) id: ListenerId,
    pub(crate) shared: bool,
    pub(crate) limit: Option<Arc<Limit>>,
    pub(crate) make: MakeHandler,
}

impl ListenSpec {
    pub(crate) fn addr(id: ListenerId, addr: ListenAddr, make: Box<dyn FnMut() -> MakeHandler + Send>) -> Self {
        Self { id, source: Source::Addr(addr), make }
    }

    pub(crate) fn ready(id: ListenerId, listener: TcpListener, make: Box<dyn FnMut() -> MakeHandler + Send>) -> Self {
        Self { id, source: Source::Ready(listener), make }
    }

    /// Binds and listens for every reactor.
    pub(crate) fn bind(mut self, reactors: usize) -> io::Result<(SocketAddr, Vec<Bound>)> {
        let shared = matches!(self.source, Source::Ready(_));
        let limit = match &self.source {
            Source::Addr(addr) => addr.options.max_connections.map(Limit::new),
            Source::Ready(_) => None,
        };
        let sockets = match self.source {
            Source::Addr(addr) => {
                let targets = addr.target.map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
                first_that_binds(&targets, &addr.options, reactors)?
            }
            Source::Ready(listener) => {
                listener.set_nonblocking(true)?;
                (0..reactors).map(|_| listener.try_clone().map(OwnedFd::from)).collect::<io::Result<_>>()?
            }
        };
        let local = sys::socket::local_addr(sockets[0].as_fd())?;
        let bound = sockets
            .into_iter()
            .map(|fd| Bound { fd, id: self.id, shared, limit: limit.clone(), make: (self.make)() })
            .collect();
        Ok((local, bound))
    }
}

/// A name may have several addresses: the first that can be had.
fn first_that_binds(targets: &[SocketAddr], options: &ListenOptions, reactors: usize) -> io::Result<Vec<OwnedFd>> {
    let mut last = None;
    for target in targets {
        match bind_all(*target, options, reactors) {
            Ok(sockets) => return Ok(sockets),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no address to listen on")))
}

fn bind_all(mut addr: SocketAddr, options: &ListenOptions, reactors: usize) -> io::Result<Vec<OwnedFd>> {
    if addr.port() != 0 && !options.share_port {
        sys::socket::probe_exclusive(addr, options.v6only)?;
    }
    let mut sockets = Vec::with_capacity(reactors);
    for _ in 0..reactors {
        let socket = sys::socket::tcp_listener(addr, options.backlog, true, options.v6only)?;
        if addr.port() == 0 {
            // The kernel chose: the other reactors take the same port.
            addr.set_port(sys::socket::local_addr(socket.as_fd())?.port());
        }
        sockets.push(socket);
    }
    Ok(sockets)
}

/// A handler that is cloned for every reactor.
pub(crate) fn cloned<H, F>(handler: H) -> Box<dyn FnMut() -> MakeHandler + Send>
where
    H: Fn(Connection) -> F + Clone + Send + 'static,
    F: Future + 'static,
    F::Output: Outcome,
{
    Box::new(move || {
        let handler = handler.clone();
        Box::new(move |_| erase(handler))
    })
}

/// A handler that is built on every reactor, and may hold what must not leave it.
pub(crate) fn built<M, H, F>(make: M) -> Box<dyn FnMut() -> MakeHandler + Send>
where
    M: Fn(&ReactorHandle) -> H + Clone + Send + 'static,
    H: Fn(Connection) -> F + 'static,
    F: Future + 'static,
    F::Output: Outcome,
{
    Box::new(move || {
        let make = make.clone();
        Box::new(move |reactor| erase(make(reactor)))
    })
}

fn erase<H, F>(handler: H) -> Handler
where
    H: Fn(Connection) -> F + 'static,
    F: Future + 'static,
    F::Output: Outcome,
{
    Box::new(move |connection, header| Task::new(handler(connection), header))
}
