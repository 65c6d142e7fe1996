//! What a pipe or a stream stands on: the two halves of a connection, over TCP, unix or TLS.
//!
//! Job: the few calls that the adapters need, so that one adapter serves every kind of connection. State: none.
//! Thread class: any thread, one reader and one writer at a time (`&mut self`).

use bytes::Bytes;
use epoxide::{
    CloseHandle, Connection, Draining, ReadHalf, ReadTimeoutSuspended, RecvBuf, Reserved, StagedLimit, WriteHalf,
};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The receiving half of a connection.
///
/// Every `Pending` has registered the waker of its `cx` in place of any earlier one. Nothing is lost or repeated when
/// a caller stops polling.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// use epoxide_pipes::transport::{Receive, Transport};
///
/// /// Over TCP, unix sockets and TLS alike.
/// async fn first<R: Receive>(half: &mut R) -> std::io::Result<Option<epoxide::RecvBuf>> {
///     std::future::poll_fn(|cx| half.poll_receive(cx)).await
/// }
/// peer.write_all(b"hello")?;
/// assert_eq!(&first(&mut conn.into_halves().0).await?.unwrap()[..], b"hello");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub trait Receive: Send + 'static {
    /// Receives what is there into a buffer of its own; `None` is the peer's end.
    ///
    /// # Errors
    /// Why the connection ended.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>>;

    /// The same, and says that no request is in progress: a drain ends it with `None`.
    ///
    /// # Errors
    /// Why the connection ended.
    fn poll_receive_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>>;

    /// Whichever of the two.
    #[doc(hidden)]
    #[inline]
    fn poll_receive_as(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Option<RecvBuf>>> {
        if idle { self.poll_receive_idle(cx) } else { self.poll_receive(cx) }
    }

    /// Receives behind the bytes of `buf`, and returns how many came; 0 is the peer's end.
    ///
    /// # Errors
    /// Why the connection ended; [`io::ErrorKind::QuotaExceeded`] when `buf` is full and may not grow.
    fn poll_receive_more(&mut self, cx: &mut Context<'_>, buf: &mut RecvBuf) -> Poll<io::Result<usize>>;

    /// Receives into a slice, and returns how many bytes came; 0 is the peer's end, or an empty slice.
    ///
    /// # Errors
    /// Why the connection ended.
    fn poll_receive_slice(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>>;

    /// Receives what is known to be there.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is known to be there; else why the connection ended.
    fn try_receive(&mut self) -> io::Result<Option<RecvBuf>>;

    /// Receives behind the bytes of `buf` what is known to be there; 0 is the peer's end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is known to be there; else as
    /// [`poll_receive_more`](Self::poll_receive_more).
    fn try_receive_more(&mut self, buf: &mut RecvBuf) -> io::Result<usize>;

    /// A new wait begins: polls before it, given up meanwhile, do not count for the connection's `read_timeout`. Without
    /// it polls that find nothing are one wait.
    fn begin_wait(&mut self) {}

    /// A handle that closes or resets the connection from any thread.
    fn close_handle(&self) -> CloseHandle;

    /// Resolves when the connection's runtime drains.
    fn draining(&self) -> Draining;

    /// Holds the read clock while the guard lives. `None`: the transport has no such clock.
    fn suspend_read_timeout(&self) -> Option<ReadTimeoutSuspended> {
        None
    }
}

/// The sending half of a connection.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// use epoxide_pipes::transport::{Transmit, Transport};
///
/// async fn greet<W: Transmit>(half: &mut W) -> std::io::Result<()> {
///     half.stage(b"hello")?;
///     std::future::poll_fn(|cx| half.poll_flush(cx)).await
/// }
/// greet(&mut conn.into_halves().1).await?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub trait Transmit: Send + 'static {
    /// Copies bytes behind what is staged.
    ///
    /// # Errors
    /// [`StagedLimit`]: nothing was taken, the connection stays usable.
    fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit>;

    /// Queues owned bytes behind what is staged, without copying them where the transport allows it.
    ///
    /// # Errors
    /// [`StagedLimit`]: nothing was taken, the connection stays usable.
    fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit>;

    /// Reserves `n` bytes of staging space to be written through [`bytes::BufMut`]; what was written is staged.
    ///
    /// # Errors
    /// [`StagedLimit`] when they are not to be had.
    fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit>;

    /// Lends at least `n` zeroed bytes of staging space; [`advance`](Self::advance) says how many were filled.
    ///
    /// # Errors
    /// [`StagedLimit`] when they are not to be had.
    fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit>;

    /// Stages the first `n` bytes of what [`spare`](Self::spare) lent.
    ///
    /// # Panics
    /// When `n` is more than was lent.
    fn advance(&mut self, n: usize);

    /// Bytes staged and not yet handed to a flush.
    fn staged_len(&self) -> usize;

    /// Bytes staged, or handed to a flush and not yet taken by the kernel.
    fn unsent_len(&self) -> usize;

    /// Hands everything staged to the kernel. `Pending` registers the waker; what was staged goes out all the same.
    ///
    /// # Errors
    /// Why the connection ended; [`io::ErrorKind::BrokenPipe`] after this side's end.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Sends bytes behind what is staged: `bytes` becomes what is still to be staged, and is to be given again after
    /// `Pending`, which registers the waker. A transport may send them from where they are; the default stages them.
    ///
    /// # Errors
    /// As [`poll_flush`](Self::poll_flush).
    fn poll_send_all(&mut self, cx: &mut Context<'_>, bytes: &mut &[u8]) -> Poll<io::Result<()>> {
        while !bytes.is_empty() {
            let portion = match self.stage(bytes) {
                Ok(()) => bytes.len(),
                Err(refused) => {
                    let portion = refused.limit.saturating_sub(refused.staged).min(bytes.len());
                    if portion == 0 && refused.staged == 0 {
                        return Poll::Ready(Err(refused.into()));
                    }
                    self.stage(&bytes[..portion])?;
                    portion
                }
            };
            *bytes = &bytes[portion..];
            if !bytes.is_empty() {
                ready!(self.poll_flush(cx))?;
            }
        }
        self.poll_flush(cx)
    }

    /// Ready once at most `at_most` bytes are unsent; what is staged is flushed for it. `Pending` registers the waker.
    ///
    /// A transport that cannot tell part of the way waits until everything has gone, which is what the default does.
    ///
    /// # Errors
    /// As [`poll_flush`](Self::poll_flush).
    fn poll_unsent(&mut self, cx: &mut Context<'_>, at_most: usize) -> Poll<io::Result<()>> {
        if self.unsent_len() <= at_most { Poll::Ready(Ok(())) } else { self.poll_flush(cx) }
    }

    /// Flushes, then tells the peer that nothing more comes (FIN; over TLS close_notify before it). Reading goes on.
    ///
    /// # Errors
    /// As [`poll_flush`](Self::poll_flush).
    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// A handle that closes or resets the connection from any thread.
    fn close_handle(&self) -> CloseHandle;

    /// Bytes a second that the peer must take on average over every 5 to 20 s of a waiting flush; 0 is off. A
    /// transport without such a clock does nothing.
    fn set_min_send_rate(&self, bytes_per_second: u64) {
        let _ = bytes_per_second;
    }
}

/// A connection that falls into its two halves.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// use epoxide_pipes::transport::Transport;
///
/// fn pipes_of<T: Transport>(connection: T) -> Duplex<T::Reader, T::Writer> {
///     Duplex::new(connection)
/// }
/// let pipes = pipes_of(conn);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub trait Transport: Send + 'static {
    /// The receiving half.
    type Reader: Receive;
    /// The sending half.
    type Writer: Transmit;

    /// The two halves; each may live on its own thread.
    fn into_halves(self) -> (Self::Reader, Self::Writer);
}

impl Receive for ReadHalf {
    #[inline]
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_read(cx)
    }

    #[inline]
    fn poll_receive_as(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_read_as(cx, idle)
    }

    #[inline]
    fn poll_receive_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_read_idle(cx)
    }

    fn poll_receive_more(&mut self, cx: &mut Context<'_>, buf: &mut RecvBuf) -> Poll<io::Result<usize>> {
        self.poll_read_more(cx, buf)
    }

    fn poll_receive_slice(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_read_slice(cx, space)
    }

    fn try_receive(&mut self) -> io::Result<Option<RecvBuf>> {
        self.try_read()
    }

    fn try_receive_more(&mut self, buf: &mut RecvBuf) -> io::Result<usize> {
        self.try_read_more(buf)
    }

    #[inline]
    fn begin_wait(&mut self) {
        Self::begin_wait(self);
    }

    fn close_handle(&self) -> CloseHandle {
        Self::close_handle(self)
    }

    fn draining(&self) -> Draining {
        Self::draining(self)
    }

    fn suspend_read_timeout(&self) -> Option<ReadTimeoutSuspended> {
        Some(Self::suspend_read_timeout(self))
    }
}

impl Transmit for WriteHalf {
    #[inline]
    fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        Self::stage(self, bytes)
    }

    fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        Self::stage_bytes(self, bytes)
    }

    fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        Self::try_reserve(self, n)
    }

    fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        Self::spare(self, n)
    }

    fn advance(&mut self, n: usize) {
        Self::advance(self, n);
    }

    #[inline]
    fn staged_len(&self) -> usize {
        Self::staged_len(self)
    }

    #[inline]
    fn unsent_len(&self) -> usize {
        Self::unsent_len(self)
    }

    #[inline]
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_flush(self, cx)
    }

    #[inline]
    fn poll_send_all(&mut self, cx: &mut Context<'_>, bytes: &mut &[u8]) -> Poll<io::Result<()>> {
        Self::poll_send_all(self, cx, bytes)
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>, at_most: usize) -> Poll<io::Result<()>> {
        Self::poll_unsent(self, cx, at_most)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.shutdown()).poll(cx)
    }

    fn set_min_send_rate(&self, bytes_per_second: u64) {
        Self::set_min_send_rate(self, bytes_per_second);
    }

    fn close_handle(&self) -> CloseHandle {
        Self::close_handle(self)
    }
}

impl Transport for Connection {
    type Reader = ReadHalf;
    type Writer = WriteHalf;

    fn into_halves(self) -> (ReadHalf, WriteHalf) {
        self.into_split()
    }
}
