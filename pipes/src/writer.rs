//! [`PipeWriter`]: staged bytes, handed over by a flush.
//!
//! Job: stage, flush, complete; and for stream users, send at once while little is unsent. State owned: the sending half
//! and what it has staged. Thread class: any thread, one task at a time (`&mut self`); a [`PipeHandle`] from anywhere.
//! Laws kept: 3 (staged bytes belong to the writer), 16 (staging and unsent bytes are bounded).

use crate::control::{Asked, PipeHandle};
use crate::transport::Transmit;
use crate::write_pipe::{FlushPipe, FlushResult, SendPipe, ShutdownPipe, WritePipe};
use bytes::Bytes;
use epoxide::{CloseHandle, CloseReason, Reserved, StagedLimit, WriteHalf};
use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

/// Bytes that a stream's writes may leave unsent before they wait, unless told otherwise.
pub const DEFAULT_WRITE_HIGH_WATER: usize = 64 * 1024;

/// The sending side of a connection as a pipe.
///
/// What is staged goes out at the next [`flush`](Self::flush), in order. Staging more than `max_staged` is refused, and
/// leaves everything as it was.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (_input, mut output) = Duplex::new(conn).into_parts();
/// output.stage(b"hello ")?;
/// output.stage_bytes("world".into())?; // not copied
/// output.flush().await?;
/// # let mut got = [0; 11];
/// # peer.read_exact(&mut got)?;
/// # assert_eq!(&got, b"hello world");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct PipeWriter<W = WriteHalf> {
    half: W,
    completed: bool,
    /// Writes wait until no more than so many bytes are unsent.
    full: Option<usize>,
    high_water: usize,
    handle: OnceLock<PipeHandle>,
}

impl<W: Transmit> PipeWriter<W> {
    /// A pipe over the sending half of a connection.
    pub fn new(half: W) -> Self {
        let high_water = DEFAULT_WRITE_HIGH_WATER;
        Self { half, completed: false, full: None, high_water, handle: OnceLock::new() }
    }

    /// The same, with a limit for [`write`](Self::write), in bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when it is 0.
    pub fn with_write_high_water(half: W, bytes: usize) -> io::Result<Self> {
        if bytes == 0 {
            let text = "write_high_water is 0, which would hold every write for ever: it must be at least 1";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(Self { high_water: bytes, ..Self::new(half) })
    }

    /// Copies bytes behind what is staged.
    ///
    /// # Errors
    /// [`StagedLimit`] when `max_staged` would be exceeded, or, with a limit of 0, after [`complete`](Self::complete):
    /// nothing was taken, the connection stays usable.
    #[inline]
    pub fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        self.check_open(bytes.len())?;
        self.half.stage(bytes)
    }

    /// Queues owned bytes behind what is staged, without copying them where the transport allows it.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        self.check_open(bytes.len())?;
        self.half.stage_bytes(bytes)
    }

    /// Reserves `n` bytes of staging space to be written through [`bytes::BufMut`]; what was written is staged.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        self.check_open(n)?;
        self.half.try_reserve(n)
    }

    /// Lends at least `n` zeroed bytes of staging space; [`advance`](Self::advance) says how many were filled.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        self.check_open(n)?;
        self.half.spare(n)
    }

    /// Stages the first `n` bytes of what [`spare`](Self::spare) lent.
    ///
    /// # Panics
    /// When `n` is more than was lent.
    pub fn advance(&mut self, n: usize) {
        self.half.advance(n);
    }

    /// Bytes staged and not yet handed to a flush.
    pub fn staged_len(&self) -> usize {
        self.half.staged_len()
    }

    /// Bytes staged, or handed to a flush and not yet taken by the kernel.
    pub fn unsent_len(&self) -> usize {
        self.half.unsent_len()
    }

    /// Hands everything staged to the kernel, and waits until it has taken it.
    ///
    /// # Errors
    /// Why the connection ended. Our own end is no error: then `completed` is set.
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped: what was staged goes out all the same.
    #[inline]
    pub fn flush(&mut self) -> FlushPipe<'_, W> {
        FlushPipe { writer: self }
    }

    /// Sends bytes behind what is staged, and waits until the kernel has taken all of it: [`stage`](Self::stage) and
    /// [`flush`](Self::flush) in one, without a copy where the transport takes them at once, and in portions where they
    /// exceed `max_staged`. Once there is a [`handle`](Self::handle), which may cancel the flush, all of it is staged first: then
    /// what exceeds `max_staged` is refused.
    ///
    /// # Errors
    /// As [`flush`](Self::flush); after [`complete`](Self::complete) as [`stage`](Self::stage).
    ///
    /// # Cancel safety
    /// What was staged of it goes out all the same when the future is dropped: all of it, unless it exceeds `max_staged`.
    #[inline]
    pub fn send<'a>(&'a mut self, bytes: &'a [u8]) -> SendPipe<'a, W> {
        SendPipe { writer: self, bytes }
    }

    /// Ends staging: what is staged is committed, so that it goes out whatever happens to the writer, and this call does
    /// not wait for that ([`flush`](Self::flush) does). The end (FIN) follows when the writer is dropped, or by
    /// [`shutdown`](Self::shutdown). Calling it again does nothing.
    pub fn complete(&mut self) {
        if !self.completed {
            self.completed = true;
            // Pending: the reactor goes on with it. An error: there is nobody left to send it to.
            let _ = self.half.poll_flush(&mut Context::from_waker(Waker::noop()));
        }
    }

    /// Flushes, then tells the peer that nothing more comes. Reading goes on.
    ///
    /// # Errors
    /// Why the connection ended.
    ///
    /// # Cancel safety
    /// Dropped before it was ready, the flush goes on but no end follows; calling it again is right.
    pub fn shutdown(&mut self) -> ShutdownPipe<'_, W> {
        ShutdownPipe { writer: self }
    }

    /// Ends the flush that waits, or else the next one that would, as [`PipeHandle::cancel`] does.
    pub fn cancel_pending_flush(&self) {
        self.handle.get_or_init(PipeHandle::new).cancel();
    }

    /// A handle by which another task or thread cancels a flush, or completes the writer.
    pub fn handle(&self) -> PipeHandle {
        self.handle.get_or_init(PipeHandle::new).clone()
    }

    /// The sending half, with what is staged in it.
    pub fn into_half(self) -> W {
        self.half
    }

    /// The sending half.
    pub fn get_ref(&self) -> &W {
        &self.half
    }

    /// A handle that closes or resets the connection from any thread.
    pub fn close_handle(&self) -> CloseHandle {
        self.half.close_handle()
    }

    /// The poll form of [`flush`](Self::flush).
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<FlushResult>> {
        let mut asked = Asked::Nothing;
        if let Some(handle) = self.handle.get() {
            // Before the poll of the transport, which may be what it waits for.
            asked = handle.check_or_wait(cx.waker());
            if asked == Asked::Complete {
                self.complete();
            }
        }
        match self.half.poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                if asked == Asked::Cancel {
                    self.cancel_pending_flush();
                }
                Poll::Ready(Ok(FlushResult { completed: self.completed, cancelled: false }))
            }
            Poll::Ready(Err(error)) => Poll::Ready(ended(error)),
            Poll::Pending if asked == Asked::Nothing => Poll::Pending,
            Poll::Pending => {
                Poll::Ready(Ok(FlushResult { completed: self.completed, cancelled: asked == Asked::Cancel }))
            }
        }
    }

    /// Nobody has a handle: no cancel to look for.
    #[inline]
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &mut &[u8]) -> Poll<io::Result<FlushResult>> {
        self.check_open(bytes.len())?;
        if self.handle.get().is_some() {
            return self.poll_send_staged(cx, bytes);
        }
        match self.half.poll_send_all(cx, bytes) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(FlushResult { completed: false, cancelled: false })),
            Poll::Ready(Err(error)) => Poll::Ready(ended(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Who cancels the wait does not take back what was to be sent.
    #[cold]
    fn poll_send_staged(&mut self, cx: &mut Context<'_>, bytes: &mut &[u8]) -> Poll<io::Result<FlushResult>> {
        self.half.stage(std::mem::take(bytes))?;
        self.poll_flush(cx)
    }

    /// A stream's flush: everything written is in the kernel. Cancels do not end it.
    pub(crate) fn poll_flush_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.half.poll_flush(cx)
    }

    /// The poll form of [`shutdown`](Self::shutdown).
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.completed = true;
        self.half.poll_shutdown(cx)
    }

    /// Takes bytes of `bytes` as [`std::io::Write`] would, and sends them at once if nothing is on its way. At most
    /// `write_high_water` bytes (64 KiB at first) are left unsent; past that it waits until half of them has gone.
    ///
    /// # Errors
    /// Why the connection ended; [`io::ErrorKind::BrokenPipe`] after this side's end.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_with(cx, bytes.len(), |half, room| {
            let n = bytes.len().min(room);
            half.stage(&bytes[..n]).map(|()| n)
        })
    }

    /// The same with several slices.
    ///
    /// # Errors
    /// As [`poll_write`](Self::poll_write).
    pub fn poll_write_vectored(&mut self, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let len = slices.iter().map(|slice| slice.len()).sum();
        self.poll_write_with(cx, len, |half, room| {
            let mut done = 0;
            for slice in slices {
                let n = slice.len().min(room - done);
                match half.stage(&slice[..n]) {
                    Ok(()) => done += n,
                    // What was staged before is taken.
                    Err(_) if done > 0 => break,
                    Err(refused) => return Err(refused),
                }
            }
            Ok(done)
        })
    }

    /// `stage` takes at most so many bytes and says how many it took; all that it is allowed are there.
    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        len: usize,
        stage: impl Fn(&mut W, usize) -> Result<usize, StagedLimit>,
    ) -> Poll<io::Result<usize>> {
        if let Some(handle) = self.handle.get()
            && handle.wait_for_completion(cx.waker())
        {
            self.complete();
        }
        if self.completed {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::BrokenPipe, "written after the pipe was completed")));
        }
        if len == 0 {
            return Poll::Ready(Ok(0));
        }
        loop {
            if let Some(at_most) = self.full {
                match self.half.poll_unsent(cx, at_most) {
                    Poll::Ready(Ok(())) => self.full = None,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
            let mut room = self.high_water.saturating_sub(self.half.unsent_len()).min(len);
            // The smaller of the two limits counts, and half of it is waited for.
            let mut limit = self.high_water;
            let mut taken = 0;
            while room > 0 && taken == 0 {
                match stage(&mut self.half, room) {
                    Ok(n) => taken = n,
                    // Completed; or not even a byte behind nothing, and to wait for more room would be for ever.
                    Err(refused) if refused.limit == 0 || refused.staged == 0 && room == 1 => {
                        return Poll::Ready(Err(refused.into()));
                    }
                    Err(refused) => {
                        limit = limit.min(refused.limit);
                        room = refused.limit.saturating_sub(refused.staged).min(room - 1);
                    }
                }
            }
            if taken == 0 {
                self.full = Some(limit / 2);
                continue;
            }
            return match self.half.poll_flush(cx) {
                Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
            };
        }
    }

    /// The future form of [`poll_write`](Self::poll_write): how many bytes were taken, at least one of a slice that is
    /// not empty.
    ///
    /// # Cancel safety
    /// Dropped before it was ready, it has taken nothing.
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> WritePipe<'a, W> {
        WritePipe { writer: self, bytes }
    }

    #[inline]
    fn check_open(&self, asked: usize) -> Result<(), StagedLimit> {
        if self.completed { Err(StagedLimit { asked, staged: 0, limit: 0 }) } else { Ok(()) }
    }
}

#[cold]
fn ended(error: io::Error) -> io::Result<FlushResult> {
    if is_own_end(&error) { Ok(FlushResult { completed: true, cancelled: false }) } else { Err(error) }
}

/// Did we end it ourselves: by a FIN, or by closing the connection?
fn is_own_end(error: &io::Error) -> bool {
    match CloseReason::of(error) {
        Some(reason) => reason == CloseReason::Local,
        None => error.kind() == io::ErrorKind::BrokenPipe && error.raw_os_error().is_none(),
    }
}

impl<W: fmt::Debug> fmt::Debug for PipeWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeWriter")
            .field("half", &self.half)
            .field("completed", &self.completed)
            .finish_non_exhaustive()
    }
}

/// Nothing in a writer is pinned.
impl<W> Unpin for PipeWriter<W> {}
