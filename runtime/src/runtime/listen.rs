//! Listening addresses, and the sockets behind them.
//!
//! State: none. Thread class: any thread. Laws: 4 (one REUSEPORT socket per reactor, all bound and listening before
//! any accepts; a second instance is an error), 5.

use crate::conn::address::{self, Address};
use crate::conn::connection::Connection;
use crate::exec::handle::ReactorHandle;
use crate::exec::spawn::Outcome;
use crate::exec::task::Task;
use crate::id::ListenerId;
use crate::reactor::accept::Handler;
use crate::runtime::listen_options::{Kind, ListenOptions};
use crate::sync::limit::Limit;
use crate::sys;
use crate::sys::error::SysError;
use crate::sys::socket::UnixPath;
use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where to listen. Built from a text (`"127.0.0.1:8080"`, `"[::]:0"`, `"localhost:8080"`, `"unix:/run/app.sock"`,
/// `"unix:@abstract"`), a socket address, a pair of address and port, or a path. A bad one is reported when it is bound:
/// by `build()` or [`Listener::bind`](crate::Listener::bind).
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let mut server = epoxide::Runtime::builder();
/// # server.reactors(1);
/// server.listen(([127, 0, 0, 1], 0), |_conn| async {});
/// server.listen("not an address", |_conn| async {});
/// assert!(server.build().unwrap_err().to_string().contains("not an address"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ListenAddr {
    target: Target,
    options: ListenOptions,
}

#[derive(Clone, Debug)]
enum Target {
    Ip(Vec<SocketAddr>),
    /// A name to be looked up, and the text it came from.
    Host {
        name: String,
        port: u16,
    },
    Unix(net::SocketAddr),
    Bad(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addrs) => addrs.iter().enumerate().try_for_each(|(i, addr)| {
                let or = if i == 0 { "" } else { " or " };
                write!(f, "{or}{addr}")
            }),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
            Self::Unix(addr) => Address::Unix(addr.clone()).fmt(f),
            Self::Bad(why) => f.write_str(why),
        }
    }
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

    fn of(target: Target) -> Self {
        Self { target, options: ListenOptions::default() }
    }

    /// A unix path, or an abstract name after a leading `@` or NUL.
    pub(crate) fn unix(name: &OsStr) -> Self {
        Self::of(match address::unix_name(name) {
            Ok(addr) => Target::Unix(addr),
            Err(why) => Target::Bad(format!("cannot listen on {why}")),
        })
    }

    fn text(text: &str) -> Self {
        if let Some(name) = address::after_unix(text) {
            return Self::unix(name);
        }
        if let Ok(addr) = text.parse::<SocketAddr>() {
            return addr.into();
        }
        Self::of(match text.rsplit_once(':').map(|(name, port)| (name, port.parse::<u16>())) {
            Some((name, Ok(port))) if !name.is_empty() && !name.contains([':', '[', ']']) => {
                Target::Host { name: name.to_owned(), port }
            }
            _ => Target::Bad(format!("cannot listen on '{text}': {LOOKS_LIKE}")),
        })
    }

    /// The name that is still to be looked up.
    pub(crate) fn host(&self) -> Option<(&str, u16)> {
        match &self.target {
            Target::Host { name, port } => Some((name, *port)),
            _ => None,
        }
    }

    pub(crate) fn set_resolved(&mut self, addrs: Vec<SocketAddr>) {
        self.target = Target::Ip(addrs);
    }

    /// Looks the name up on this thread, which blocks.
    fn resolve(&mut self) -> io::Result<()> {
        if let Some((name, port)) = self.host() {
            let found = (name, port).to_socket_addrs().map_err(|error| {
                let text = format!("cannot listen on '{name}:{port}': {error}; {LOOKS_LIKE}");
                io::Error::new(io::ErrorKind::InvalidInput, text)
            })?;
            let found = found.collect();
            self.set_resolved(found);
        }
        Ok(())
    }

    /// Refuses options that cannot work, by name; to be called once the name is looked up. With `v6only` the IPv4 addresses
    /// of a name are left out.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        let kind = match &mut self.target {
            Target::Ip(addrs) => {
                if self.options.v6only.is_some() && addrs.iter().any(SocketAddr::is_ipv6) {
                    addrs.retain(SocketAddr::is_ipv6);
                }
                Kind::Tcp { v6: addrs.iter().all(SocketAddr::is_ipv6) }
            }
            Target::Unix(addr) => Kind::Unix { path: addr.as_pathname().is_some() },
            // Refused for itself.
            Target::Host { .. } | Target::Bad(_) => return Ok(()),
        };
        self.options.check(kind).map_err(|why| {
            let text = format!("cannot listen on {}: {why}", self.target);
            io::Error::new(io::ErrorKind::InvalidInput, text)
        })
    }

    /// Places for its connections.
    pub(crate) fn limit(&self) -> Option<Arc<Limit>> {
        self.options.max_connections.map(Limit::new)
    }

    /// Binds one socket of its own.
    pub(crate) fn bind_one(&self) -> io::Result<(OwnedFd, Option<UnixPath>)> {
        let ListenOptions { backlog, share_port, mode, v6only, .. } = self.options;
        match &self.target {
            // Without SO_REUSEPORT the kernel itself refuses a port that somebody listens on.
            Target::Ip(targets) => {
                let bind = |addr| sys::socket::tcp_listener(addr, backlog, share_port, v6only);
                first_that_binds(targets, bind).map(|fd| (fd, None))
            }
            Target::Unix(addr) => sys::socket::unix_listener(addr, backlog, mode)
                .map_err(|e| SysError::wrap("listen on", Address::Unix(addr.clone()), e)),
            Target::Bad(why) => Err(io::Error::new(io::ErrorKind::InvalidInput, why.clone())),
            Target::Host { name, .. } => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, format!("'{name}' was not looked up")))
            }
        }
    }
}

const LOOKS_LIKE: &str = "an address looks like 127.0.0.1:8080, [::1]:8080, localhost:8080 or unix:/path";

impl From<SocketAddr> for ListenAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::of(Target::Ip(vec![addr]))
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
        Self::text(text)
    }
}

impl From<String> for ListenAddr {
    fn from(text: String) -> Self {
        Self::text(&text)
    }
}

impl From<&String> for ListenAddr {
    fn from(text: &String) -> Self {
        Self::text(text)
    }
}

impl From<&Path> for ListenAddr {
    fn from(path: &Path) -> Self {
        Self::unix(path.as_os_str())
    }
}

impl From<PathBuf> for ListenAddr {
    fn from(path: PathBuf) -> Self {
        Self::unix(path.as_os_str())
    }
}

impl From<&PathBuf> for ListenAddr {
    fn from(path: &PathBuf) -> Self {
        Self::unix(path.as_os_str())
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
    Ready(OwnedFd),
}

/// A listening socket for one reactor.
pub(crate) struct Bound {
    pub(crate) fd: OwnedFd,
    /// Unlinked once the last reactor has closed the socket.
    pub(crate) path: Option<Arc<UnixPath>>,
    pub(crate) id: ListenerId,
    pub(crate) shared: bool,
    pub(crate) limit: Option<Arc<Limit>>,
    pub(crate) make: MakeHandler,
}

impl ListenSpec {
    pub(crate) fn addr(id: ListenerId, addr: ListenAddr, make: Box<dyn FnMut() -> MakeHandler + Send>) -> Self {
        Self { id, source: Source::Addr(addr), make }
    }

    pub(crate) fn ready(id: ListenerId, fd: OwnedFd, make: Box<dyn FnMut() -> MakeHandler + Send>) -> Self {
        Self { id, source: Source::Ready(fd), make }
    }

    /// Binds and listens for every reactor.
    pub(crate) fn bind(mut self, reactors: usize) -> io::Result<(Address, Vec<Bound>)> {
        let limit = match &self.source {
            Source::Addr(addr) => addr.limit(),
            Source::Ready(_) => None,
        };
        let (sockets, path, shared) = match self.source {
            Source::Addr(mut addr) => {
                addr.resolve()?;
                addr.check()?;
                match &addr.target {
                    Target::Ip(targets) => {
                        let ListenOptions { backlog, share_port, v6only, .. } = addr.options;
                        let bind = |target| sys::socket::tcp_listeners(target, backlog, share_port, v6only, reactors);
                        let sockets = first_that_binds(targets, bind)?;
                        (sockets, None, false)
                    }
                    _ => {
                        let (fd, path) = addr.bind_one()?;
                        (one_for_each(fd, reactors)?, path.map(Arc::new), true)
                    }
                }
            }
            Source::Ready(fd) => {
                sys::socket::ready_made_listener(fd.as_fd())?;
                (one_for_each(fd, reactors)?, None, true)
            }
        };
        let local = Address::local_of(sockets[0].as_fd())?;
        let bound = sockets
            .into_iter()
            .map(|fd| Bound { fd, path: path.clone(), id: self.id, shared, limit: limit.clone(), make: (self.make)() })
            .collect();
        Ok((local, bound))
    }
}

/// The same socket for every reactor.
fn one_for_each(fd: OwnedFd, reactors: usize) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = (1..reactors).map(|_| fd.try_clone()).collect::<io::Result<Vec<_>>>()?;
    sockets.push(fd);
    Ok(sockets)
}

/// A name may have several addresses: the first that can be had.
fn first_that_binds<T>(targets: &[SocketAddr], mut bind: impl FnMut(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    let mut last = None;
    for target in targets {
        match bind(*target) {
            Ok(bound) => return Ok(bound),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the name has no address to listen on")))
}

/// A handler that is cloned for every reactor.
#[track_caller]
pub(crate) fn cloned<H, F>(handler: H) -> Box<dyn FnMut() -> MakeHandler + Send>
where
    H: Fn(Connection) -> F + Clone + Send + 'static,
    F: Future + 'static,
    F::Output: Outcome,
{
    let at = Location::caller();
    Box::new(move || {
        let handler = handler.clone();
        Box::new(move |_| erase(handler, at))
    })
}

/// A handler that is built on every reactor, and may hold what must not leave it.
#[track_caller]
pub(crate) fn built<M, H, F>(make: M) -> Box<dyn FnMut() -> MakeHandler + Send>
where
    M: Fn(&ReactorHandle) -> H + Clone + Send + 'static,
    H: Fn(Connection) -> F + 'static,
    F: Future + 'static,
    F::Output: Outcome,
{
    let at = Location::caller();
    Box::new(move || {
        let make = make.clone();
        Box::new(move |reactor| erase(make(reactor), at))
    })
}

fn erase<H, F>(handler: H, at: &'static Location<'static>) -> Handler
where
    H: Fn(Connection) -> F + 'static,
    F: Future + 'static,
    F::Output: Outcome,
{
    Handler { serve: Box::new(move |connection, header| Task::new(handler(connection), header)), at }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn v6only_leaves_out_the_ipv4_addresses_of_a_name_and_is_refused_where_there_are_no_others() {
        let (v4, v6) = (SocketAddr::from(([127, 0, 0, 1], 80)), SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 80)));
        let checked = |found: &[SocketAddr], v6only| {
            let options = ListenOptions { v6only, ..ListenOptions::default() };
            let mut addr = ListenAddr::new("some.name:80").options(options);
            addr.set_resolved(found.to_vec());
            addr.check().map(|()| addr.target.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!(checked(&[v4, v6], None).unwrap(), "127.0.0.1:80 or [::1]:80");
        for v6only in [Some(true), Some(false)] {
            assert_eq!(checked(&[v4, v6], v6only).unwrap(), "[::1]:80");
            let refused = checked(&[v4, v4], v6only).unwrap_err();
            assert!(refused.starts_with("cannot listen on 127.0.0.1:80 or 127.0.0.1:80: "), "{refused}");
        }
    }
}
