//! `Listener`: accepting by hand, for people who port a loop.
//!
//! State: a watch on the listening socket, and the path it unlinks. Thread class: any thread. Laws: 4, 5, 8 (an accept
//! budget on reactor threads), 12, and the sweep's rule for want of descriptors: try again every 250 ms, one line a time.

use crate::conn::address::Address;
use crate::conn::connection::Connection;
use crate::conn::ready_made;
use crate::conn::resolve;
use crate::conn::watch::{Side, Watch};
use crate::error::complain;
use crate::exec::handle::ReactorHandle;
use crate::exec::local;
use crate::reactor::accept::{self, Accepted};
use crate::runtime::listen::ListenAddr;
use crate::stats::Count;
use crate::sync::limit::{Limit, Place};
use crate::sync::plain::{AtomicBool, AtomicU32, Ordering};
use crate::sync::readiness::Place as Waiting;
use crate::sys;
use crate::time::{Sleep, sleep};
use futures_core::Stream;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

/// How long accepting pauses when descriptors, memory or places run out.
const PAUSE: Duration = Duration::from_millis(250);

/// A listening socket whose connections are taken one by one. Any number of tasks, on any threads, may accept from it.
///
/// The socket and its connections belong to the reactor that ran on the thread that bound it, or that the handle names.
/// When that reactor drains or stops, accepting ends with an error, and [`incoming`](Self::incoming) with `None`. Dropping
/// it closes the socket and unlinks a unix path.
///
/// ```
/// # epoxide::block_on(async {
/// # use std::io::Read;
/// let listener = epoxide::Listener::bind("127.0.0.1:0").await?;
/// let addr = listener.local_addr()?.ip().expect("a TCP listener");
/// let client = std::net::TcpStream::connect(addr)?;
/// let (mut conn, _peer) = listener.accept().await?;
/// epoxide::spawn_local(async move { conn.send_all(b"hi").await }).await??;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct Listener {
    watch: Arc<Watch>,
    reactor: ReactorHandle,
    tcp: bool,
    /// Places for its connections.
    limit: Option<Arc<Limit>>,
    /// Accepts in a row on a reactor thread.
    streak: AtomicU32,
    /// One line was logged for this episode.
    complained: AtomicBool,
    _path: Option<sys::socket::UnixPath>,
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("local_addr", &self.local_addr().ok()).finish_non_exhaustive()
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.watch.leave();
    }
}

impl Listener {
    /// Binds and listens; connections belong to the reactor of the calling thread. See [`bind_on`](Self::bind_on).
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] on a thread without a current runtime, and those of [`bind_on`](Self::bind_on).
    pub async fn bind(addr: impl Into<ListenAddr>) -> io::Result<Self> {
        let reactor = current()?;
        Self::bind_on(&reactor, addr).await
    }

    /// Binds and listens, with one socket; connections belong to `reactor`. Any thread. A host name is looked up on a
    /// thread kept for that, and the first of its addresses that can be had is taken.
    ///
    /// # Errors
    /// What socket(7), bind(2) and listen(2) say, with the address in the text; [`io::ErrorKind::InvalidInput`] for an
    /// address that is none, and for options that cannot work there;
    /// [`io::ErrorKind::ConnectionAborted`] when the reactor has stopped.
    ///
    /// # Cancel safety
    /// Nothing is left when the future is dropped.
    pub async fn bind_on(reactor: &ReactorHandle, addr: impl Into<ListenAddr>) -> io::Result<Self> {
        let mut addr = addr.into();
        if let Some((name, port)) = addr.host() {
            let found = resolve::resolve(name, port).await?;
            addr.set_resolved(found);
        }
        addr.check()?;
        let (fd, path) = addr.bind_one()?;
        Self::new(fd, path, addr.limit(), reactor)
    }

    /// Takes a listening socket of std's, TCP or unix, which becomes non-blocking. A unix path is left alone at the end.
    /// Connections belong to the reactor of the calling thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] on a thread without a current runtime, [`io::ErrorKind::ConnectionAborted`] when the
    /// reactor has stopped, [`io::ErrorKind::InvalidInput`] for a socket that does not listen.
    pub fn from_std(listener: impl Into<OwnedFd>) -> io::Result<Self> {
        let fd = listener.into();
        sys::socket::ready_made_listener(fd.as_fd())?;
        Self::new(fd, None, None, &current()?)
    }

    fn new(
        fd: OwnedFd,
        path: Option<sys::socket::UnixPath>,
        limit: Option<Arc<Limit>>,
        reactor: &ReactorHandle,
    ) -> io::Result<Self> {
        let tcp = sys::socket::is_tcp(fd.as_fd());
        let watch = Watch::start(fd, reactor.home.clone(), true)?;
        let reactor = reactor.clone();
        Ok(Self {
            watch,
            reactor,
            tcp,
            limit,
            streak: AtomicU32::new(0),
            complained: AtomicBool::new(false),
            _path: path,
        })
    }

    /// The address that is listened on, the port filled in.
    ///
    /// # Errors
    /// That of getsockname(2).
    pub fn local_addr(&self) -> io::Result<Address> {
        Address::local_of(self.watch.as_fd())
    }

    /// Waits for a connection. Those that failed before they were accepted are passed over; when descriptors or memory
    /// run out, or [`ListenOptions::max_connections`](crate::ListenOptions::max_connections) of them are open, it tries
    /// again every 250 ms.
    ///
    /// # Errors
    /// The reactor drains ([`io::ErrorKind::NotConnected`]) or has stopped ([`io::ErrorKind::ConnectionAborted`]), or the
    /// socket failed: it will accept nothing any more. [`io::ErrorKind::QuotaExceeded`]: `max_posts` posts wait for the
    /// reactor, and the connection was closed.
    ///
    /// # Cancel safety
    /// No connection is lost when the future is dropped.
    pub fn accept(&self) -> Accept<'_> {
        Accept { listener: self, place: Waiting::default(), pause: None }
    }

    /// The connections as a stream. It ends when the reactor drains or stops.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { accept: self.accept() }
    }

    fn poll_accept(
        &self,
        cx: &mut Context<'_>,
        place: &mut Waiting,
        pause: &mut Option<Sleep>,
    ) -> Poll<io::Result<(Connection, Address)>> {
        loop {
            if let Some(sleep) = pause {
                ready!(Pin::new(sleep).poll(cx));
                *pause = None;
            }
            let tick = ready!(self.watch.poll(Side::Read, cx.waker(), place))?;
            if self.had_its_share() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // A place first: past the limit nothing is accepted, and the kernel's queue holds the rest.
            let held = match &self.limit {
                None => None,
                Some(limit) => match limit.take() {
                    Some(held) => Some(held),
                    None => {
                        self.reactor.home.count(Count::AcceptLimited, 1);
                        *pause = Some(sleep(PAUSE));
                        continue;
                    }
                },
            };
            match accept::accept(self.watch.as_fd()) {
                Accepted::Connection(fd) => {
                    self.complained.store(false, Ordering::Relaxed);
                    return Poll::Ready(self.welcome(fd, held));
                }
                Accepted::Empty => {
                    self.streak.store(0, Ordering::Relaxed);
                    self.watch.clear(Side::Read, tick);
                }
                Accepted::Skip => {}
                Accepted::Starved(error) => {
                    self.complain(&error);
                    *pause = Some(sleep(PAUSE));
                }
                Accepted::Fault(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn welcome(&self, fd: OwnedFd, held: Option<Place>) -> io::Result<(Connection, Address)> {
        if self.tcp {
            // A reset in the meantime is the only way this can fail; the first recv will say so.
            let _ = sys::socket::set_nodelay(fd.as_fd(), true);
        }
        let peer = match Address::peer_of(fd.as_fd()) {
            Ok(peer) => peer,
            // Reset already: the first recv will say so. The address is that of the family, without a name.
            Err(_) => Address::unspecified(self.tcp),
        };
        Ok((ready_made::accepted(fd, held, &self.reactor)?, peer))
    }

    /// On a reactor thread others get their turn after `accept_budget` connections in a row.
    fn had_its_share(&self) -> bool {
        if !local::is_reactor_thread() {
            return false;
        }
        let streak = self.streak.fetch_add(1, Ordering::Relaxed) as usize;
        let over = streak >= self.reactor.home.config.accept_budget;
        if over {
            self.streak.store(0, Ordering::Relaxed);
        }
        over
    }

    fn complain(&self, error: &io::Error) {
        self.reactor.home.count(Count::AcceptStarved, 1);
        if !self.complained.swap(true, Ordering::Relaxed) {
            complain(format_args!("accept on {self:?} failed: {error}; trying again every 250 ms"));
        }
    }
}

fn current() -> io::Result<ReactorHandle> {
    ReactorHandle::current().ok_or_else(|| {
        let text = "a Listener needs a reactor on its thread; Listener::bind_on takes a handle";
        io::Error::new(io::ErrorKind::NotConnected, text)
    })
}

/// The future of [`Listener::accept`].
///
/// ```
/// # epoxide::block_on(async {
/// let listener = epoxide::Listener::bind("127.0.0.1:0").await?;
/// let client = std::net::TcpStream::connect(listener.local_addr()?.ip().unwrap())?;
/// let (conn, peer) = listener.accept().await?;
/// assert_eq!(peer.ip(), Some(client.local_addr()?));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Accept<'a> {
    listener: &'a Listener,
    place: Waiting,
    pause: Option<Sleep>,
}

impl fmt::Debug for Accept<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accept").field("listener", &self.listener).finish_non_exhaustive()
    }
}

impl Future for Accept<'_> {
    type Output = io::Result<(Connection, Address)>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { listener, place, pause } = &mut *self;
        listener.poll_accept(cx, place, pause)
    }
}

impl Drop for Accept<'_> {
    fn drop(&mut self) {
        self.listener.watch.forget(Side::Read, &self.place);
    }
}

/// The stream of [`Listener::incoming`].
///
/// ```
/// # epoxide::block_on(async {
/// # use std::{future::poll_fn, pin::pin};
/// use futures_core::Stream;
///
/// let listener = epoxide::Listener::bind("127.0.0.1:0").await?;
/// let client = std::net::TcpStream::connect(listener.local_addr()?.ip().unwrap())?;
/// let mut incoming = pin!(listener.incoming());
/// let conn = poll_fn(|cx| incoming.as_mut().poll_next(cx)).await.expect("it goes on until a drain")?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Incoming<'a> {
    accept: Accept<'a>,
}

impl Stream for Incoming<'_> {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let result = ready!(Pin::new(&mut self.accept).poll(cx));
        Poll::Ready(match result {
            Ok((connection, _)) => Some(Ok(connection)),
            Err(_) if self.accept.listener.watch.has_ended() => None,
            Err(error) => Some(Err(error)),
        })
    }
}
