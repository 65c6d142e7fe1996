//! The read family: what a user calls, and the named futures it returns.
//!
//! State: none beyond the half's. Thread class: any thread. Laws: 1, 2, 16 (buffers are taken only when something
//! may be there, and go back untouched when there is nothing).

use crate::buf::{BufPool, RecvBuf};
use crate::conn::read_half::{Got, Intent, ReadHalf, recv_buffer};
use crate::sys;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::task::{Context, Poll};

impl ReadHalf {
    /// Reads what is there, or waits for it. `None` is the peer's FIN: this side may go on writing.
    ///
    /// Any thread. The recv is made by the caller; only a read that finds nothing waits on the reactor.
    ///
    /// # Errors
    /// Why the connection ended, once everything received was delivered; see
    /// [`CloseReason::of`](crate::CloseReason::of).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read(&mut self) -> Read<'_> {
        Read::new(self, Intent::Busy)
    }

    /// The same as [`read`](Self::read), and says that no request is in progress: when the reactor drains, it returns
    /// `None` at once, also when bytes are ready (but not while a flush is in flight).
    pub fn read_idle(&mut self) -> Read<'_> {
        Read::new(self, Intent::Idle)
    }

    /// Reads behind the bytes of `buf`, and returns how many came (0 = the peer's FIN). With no free space behind
    /// them, or when the block is shared, the unread bytes move to a block of twice their size, up to
    /// `max_read_buffer`.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] when `buf` is full and may not grow; else as [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read_more<'a>(&'a mut self, buf: &'a mut RecvBuf) -> ReadMore<'a> {
        ReadMore { half: self.begin(), buf }
    }

    /// Reads into a slice, and returns how many bytes came: 0 is the peer's FIN (or an empty slice).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read_slice<'a>(&'a mut self, space: &'a mut [u8]) -> ReadSlice<'a> {
        ReadSlice { half: self.begin(), space, peek: false }
    }

    /// Copies what is there into a slice without taking it. 0 is the peer's FIN (or an empty slice).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn peek<'a>(&'a mut self, space: &'a mut [u8]) -> ReadSlice<'a> {
        ReadSlice { half: self.begin(), space, peek: true }
    }

    /// The poll form of [`read`](Self::read). A `Pending` has registered `cx`'s waker in place of any earlier one.
    ///
    /// For `read_timeout` polls that find nothing are one wait, until bytes come, one of the futures is made, or
    /// [`begin_wait`](Self::begin_wait) is called.
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_buffer(cx, Intent::Busy)
    }

    /// The poll form of [`read_idle`](Self::read_idle); see [`poll_read`](Self::poll_read).
    pub fn poll_read_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_buffer(cx, Intent::Idle)
    }

    /// For pipes: one of the two. With one place that reads, the compiler leaves the whole path in line.
    #[doc(hidden)]
    #[inline]
    pub fn poll_read_as(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_buffer(cx, if idle { Intent::Idle } else { Intent::Busy })
    }

    /// The poll form of [`read_more`](Self::read_more); see [`poll_read`](Self::poll_read).
    pub fn poll_read_more(&mut self, cx: &mut Context<'_>, buf: &mut RecvBuf) -> Poll<io::Result<usize>> {
        let (home, max) = (self.pool, self.body.home.config.max_read_buffer);
        self.poll_recv(cx, Intent::Busy, |fd| recv_behind(buf, home, max, fd)).map_ok(|n| n.unwrap_or(0))
    }

    /// The poll form of [`read_slice`](Self::read_slice); see [`poll_read`](Self::poll_read).
    pub fn poll_read_slice(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_slice(cx, space, false)
    }

    /// For the layer: the poll form of [`peek`](Self::peek).
    #[doc(hidden)]
    pub fn poll_peek(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_slice(cx, space, true)
    }

    /// For the HTTP client: the next read asks the socket before it waits, also where the reactor has told of nothing. An
    /// end that has arrived may not have been told yet.
    #[doc(hidden)]
    pub fn ask_socket(&mut self) {
        self.more = true;
    }

    /// For code that reads by the poll forms: a new wait begins here, so that time in which nobody waited, because an
    /// earlier read was given up, does not count for `read_timeout`. The futures call it themselves.
    pub fn begin_wait(&mut self) {
        self.begin();
    }

    /// Reads what is known to be there, without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when no readiness is known; else as [`read`](Self::read).
    pub fn try_read(&mut self) -> io::Result<Option<RecvBuf>> {
        let pool = self.pool;
        let mut recv = |fd: BorrowedFd<'_>| recv_buffer(pool, fd);
        self.try_recv(self.body.read.look(), Intent::Busy, &mut recv)
            .unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Reads what is known to be there behind the bytes of `buf`, without waiting; see [`read_more`](Self::read_more).
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when no readiness is known; else as [`read_more`](Self::read_more).
    pub fn try_read_more(&mut self, buf: &mut RecvBuf) -> io::Result<usize> {
        let (home, max) = (self.pool, self.body.home.config.max_read_buffer);
        let mut recv = |fd: BorrowedFd<'_>| recv_behind(buf, home, max, fd);
        match self.try_recv(self.body.read.look(), Intent::Busy, &mut recv) {
            Some(result) => result.map(|n| n.unwrap_or(0)),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn poll_slice(&mut self, cx: &Context<'_>, space: &mut [u8], peek: bool) -> Poll<io::Result<usize>> {
        if space.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let got = self.poll_recv(cx, Intent::Busy, |fd| {
            let n = if peek { sys::io::peek(fd, space)? } else { sys::io::recv(fd, space)? };
            Ok(Got { n, more: peek || n == space.len(), taken: !peek, value: n })
        });
        got.map_ok(|n| n.unwrap_or(0))
    }
}

/// One recv into the free tail of `buf`, which is grown only when there is something to receive.
fn recv_behind(buf: &mut RecvBuf, home: &'static BufPool, max: usize, fd: BorrowedFd<'_>) -> io::Result<Got<usize>> {
    let space = tail_of(buf, home, max)?;
    let size = space.len();
    let n = sys::io::recv(fd, space)?;
    buf.committed(n);
    Ok(Got { n, more: n == size, taken: true, value: n })
}

/// The future of `read` and `read_idle`.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// peer.write_all(b"hello")?;
/// assert_eq!(&conn.read().await?.unwrap()[..], b"hello");
/// drop(peer);
/// assert!(conn.read().await?.is_none()); // the peer's end
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Read<'a> {
    half: &'a mut ReadHalf,
    intent: Intent,
}

impl<'a> Read<'a> {
    pub(crate) fn new(half: &'a mut ReadHalf, intent: Intent) -> Self {
        Self { half: half.begin(), intent }
    }
}

impl Future for Read<'_> {
    type Output = io::Result<Option<RecvBuf>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let intent = self.intent;
        self.half.poll_buffer(cx, intent)
    }
}

/// The future of `read_more`.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// peer.write_all(b"he")?;
/// let mut data = conn.read().await?.unwrap();
/// peer.write_all(b"llo")?;
/// while data.len() < 5 {
///     assert_ne!(conn.read_more(&mut data).await?, 0, "the peer's end");
/// }
/// assert_eq!(&data[..], b"hello");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ReadMore<'a> {
    half: &'a mut ReadHalf,
    buf: &'a mut RecvBuf,
}

impl Future for ReadMore<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, buf } = &mut *self;
        half.poll_read_more(cx, buf)
    }
}

/// The free space behind the bytes of `buf`, which grows for it; a full buffer that may not grow is refused.
pub(crate) fn tail_of<'a>(buf: &'a mut RecvBuf, home: &'static BufPool, max: usize) -> io::Result<&'a mut [u8]> {
    if buf.tail().is_none() {
        buf.grow(home, max)?;
    }
    buf.tail().ok_or_else(|| io::ErrorKind::QuotaExceeded.into())
}

/// The future of `read_slice` and `peek`.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// peer.write_all(b"hello")?;
/// let mut space = [0; 3];
/// assert_eq!(conn.read_slice(&mut space).await?, 3);
/// assert_eq!(&space, b"hel");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct ReadSlice<'a> {
    half: &'a mut ReadHalf,
    space: &'a mut [u8],
    peek: bool,
}

impl fmt::Debug for ReadSlice<'_> {
    /// Never the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadSlice").field("len", &self.space.len()).finish_non_exhaustive()
    }
}

impl Future for ReadSlice<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, space, peek } = &mut *self;
        half.poll_slice(cx, space, *peek)
    }
}
