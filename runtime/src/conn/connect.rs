//! Outbound connections: what users call.
//!
//! State: the future's own. Thread class: any thread; the connection's home is the reactor of the thread that called
//! `connect`, or the handle's. Laws: 12 (a connect that races a stop settles), 13 (names are looked up on threads of
//! their own), 16 (a place in the gate per attempt).

use crate::conn::attempt::{self, Attempt};
use crate::conn::connect_addr::{ConnectAddr, ConnectOptions, Target};
use crate::conn::connection::Connection;
use crate::conn::resolve;
use crate::exec::ambient;
use crate::exec::handle::ReactorHandle;
use crate::exec::home::Home;
use crate::sys::error::SysError;
use crate::time;
use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Connects; the connection belongs to the [current reactor](ReactorHandle::current) of the calling thread, which workers
/// and threads that have [entered](ReactorHandle::enter) a runtime have too. On other threads use [`ReactorHandle::connect`].
///
/// A host name is looked up on one of two threads kept for that, its addresses are tried in turn, each a quarter of a
/// second after the one before or as soon as that one failed, families alternating (RFC 8305, sections 4 and 5); the
/// first that connects is taken and the others are closed.
///
/// ```
/// # use std::io::Read;
/// # epoxide::block_on(async {
/// let server = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let mut conn = epoxide::connect(server.local_addr()?).await?;
/// conn.send_all(b"GET / HTTP/1.0\r\n\r\n").await?;
/// # drop(conn);
/// # let mut text = String::new();
/// # server.accept()?.0.read_to_string(&mut text)?;
/// # assert_eq!(text, "GET / HTTP/1.0\r\n\r\n");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// What connect(2) and socket(7) say (`ECONNREFUSED`, `ENETUNREACH`, `EADDRNOTAVAIL`, `EMFILE`...), with the address in
/// the text; [`io::ErrorKind::TimedOut`] after [`ConnectOptions::timeout`]; [`io::ErrorKind::InvalidInput`] for an
/// address that is none, or not of the family of [`ConnectOptions::local_addr`];
/// [`io::ErrorKind::ConnectionAborted`] when the reactor stops; [`io::ErrorKind::WouldBlock`] (`EAGAIN`) for a unix
/// listener whose backlog is full; [`io::ErrorKind::QuotaExceeded`] when as many posts or look-ups wait as may; what the
/// resolver says of a name; [`io::ErrorKind::NotConnected`] on a thread without a current runtime.
///
/// # Cancel safety
/// Dropping the future gives the attempt up and closes its sockets.
pub fn connect(addr: impl Into<ConnectAddr>) -> Connect {
    Connect::new(ambient::home(), addr.into())
}

/// [`connect`] with options.
pub fn connect_with(addr: impl Into<ConnectAddr>, options: ConnectOptions) -> Connect {
    connect(addr.into().options(options))
}

impl ReactorHandle {
    /// Connects, from any thread; the connection belongs to this reactor. Otherwise as [`connect`].
    pub fn connect(&self, addr: impl Into<ConnectAddr>) -> Connect {
        Connect::new(Some(self.home.clone()), addr.into())
    }

    /// [`connect`](Self::connect) with options.
    pub fn connect_with(&self, addr: impl Into<ConnectAddr>, options: ConnectOptions) -> Connect {
        self.connect(addr.into().options(options))
    }
}

/// The future of `connect`, polled on any thread. The attempt starts at the first poll.
///
/// ```
/// # epoxide::block_on(async {
/// let server = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let connect: epoxide::Connect = epoxide::connect(server.local_addr()?);
/// assert_eq!(connect.await?.peer_addr()?, server.local_addr()?);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Connect {
    inner: Pin<Box<dyn Future<Output = io::Result<Connection>> + Send + Sync>>,
}

impl fmt::Debug for Connect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connect(..)")
    }
}

impl Connect {
    fn new(home: Option<Arc<Home>>, addr: ConnectAddr) -> Self {
        Self { inner: Box::pin(within_timeout(home, addr)) }
    }
}

impl Future for Connect {
    type Output = io::Result<Connection>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.as_mut().poll(cx)
    }
}

async fn within_timeout(home: Option<Arc<Home>>, addr: ConnectAddr) -> io::Result<Connection> {
    let ConnectAddr { target, options } = addr;
    let home = home.ok_or_else(|| {
        let text = "a thread without a current runtime connects by ReactorHandle::connect";
        SysError::wrap("connect to", &target, io::Error::new(io::ErrorKind::NotConnected, text))
    })?;
    if options.timeout.is_zero() {
        return any_target(&home, &target, &options).await;
    }
    match time::timeout(options.timeout, any_target(&home, &target, &options)).await {
        Ok(result) => result,
        Err(elapsed) => Err(SysError::wrap("connect to", &target, elapsed.into())),
    }
}

async fn any_target(home: &Arc<Home>, target: &Target, options: &ConnectOptions) -> io::Result<Connection> {
    match target {
        Target::Ip(addr) => of_family(vec![*addr], options, target)?.one(home, options).await,
        Target::Host { name, port } => {
            let found = resolve::resolve(name, *port).await.map_err(|e| SysError::wrap("connect to", target, e))?;
            of_family(found, options, target)?.race(home, options, target).await
        }
        Target::Unix(addr) => attempt::unix(home, addr, options).map_err(|e| SysError::wrap("connect to", target, e)),
        Target::Bad(why) => Err(io::Error::new(io::ErrorKind::InvalidInput, why.clone())),
    }
}

/// Addresses to be tried, one at least.
struct Addrs(Vec<SocketAddr>);

/// A socket that is bound to one family reaches no other.
fn of_family(mut addrs: Vec<SocketAddr>, options: &ConnectOptions, target: &Target) -> io::Result<Addrs> {
    if let Some(local) = options.local_addr {
        addrs.retain(|addr| addr.is_ipv4() == local.is_ipv4());
    }
    if addrs.is_empty() {
        let why = match options.local_addr {
            Some(local) => format!("it has no address of the family of the local address {local}"),
            None => "the name has no address".to_owned(),
        };
        return Err(SysError::wrap("connect to", target, io::Error::new(io::ErrorKind::InvalidInput, why)));
    }
    Ok(Addrs(addrs))
}

impl Addrs {
    async fn one(self, home: &Arc<Home>, options: &ConnectOptions) -> io::Result<Connection> {
        Attempt::start(home, self.0[0], options)?.await
    }

    async fn race(self, home: &Arc<Home>, options: &ConnectOptions, target: &Target) -> io::Result<Connection> {
        let tried = self.0.len();
        attempt::race(home, self.0, options).await.map_err(|error| match tried {
            1 => error,
            // The error of the last attempt names its own address.
            _ => SysError::wrap("connect to", format_args!("{target}: none of {tried} addresses, the last"), error),
        })
    }
}
