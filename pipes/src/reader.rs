//! [`PipeReader`]: received bytes as one view, consumed and examined by marks.
//!
//! Job: hold what was received until it is consumed, and wait for more only when all of it was examined. State owned: the
//! receiving half, the buffers, the marks. Thread class: any thread, one task at a time (`&mut self`); a [`PipeHandle`]
//! from anywhere. Laws kept: 16 (see `held`), 6 (a reader with unconsumed bytes is busy).

use crate::control::{Asked, PipeHandle};
use crate::held::Held;
use crate::read_pipe::{ReadPipe, ReadResult};
use crate::sequence::Sequence;
use crate::transport::Receive;
use bytes::Bytes;
use epoxide::{CloseHandle, Draining, ReadHalf, RecvBuf};
use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

/// What a reader holds at most, in bytes, unless told otherwise.
pub const DEFAULT_MAX_HELD: usize = 1 << 20;

/// The receiving side of a connection as a pipe.
///
/// [`read`](Self::read) gives everything that was received and not consumed, as one view over the pooled buffers;
/// nothing is copied. [`advance_to`](Self::advance_to) then says how much is done with, and how much was looked at: the
/// next read returns at once while there are bytes that nobody has looked at, and otherwise waits for new ones. Buffers
/// go back to their pool as consumption passes them, and a reader without unconsumed bytes holds none.
///
/// However the peer cuts what it sends, the memory held is at most twice the bytes held and one buffer.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (mut input, _output) = Duplex::new(conn).into_parts();
/// peer.write_all(b"one\ntwo\n")?;
/// # drop(peer);
/// let mut lines = Vec::new();
/// loop {
///     let result = input.read().await?;
///     let (end, all) = (result.end, result.buffer.len());
///     match result.buffer.find(b"\n") {
///         Some(at) => {
///             lines.push(result.buffer.up_to(at).to_vec());
///             input.advance(at + 1);
///         }
///         None if end => break,
///         // No whole line: keep everything, and wait for more.
///         None => input.advance_to(0, all),
///     }
/// }
/// assert_eq!(lines, [b"one", b"two"]);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct PipeReader<R = ReadHalf> {
    pub(crate) half: R,
    pub(crate) held: Held,
    /// The first `examined` bytes of what is held were looked at.
    examined: usize,
    max_held: usize,
    pub(crate) state: State,
    pub(crate) handle: OnceLock<PipeHandle>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Open,
    /// The peer's end was received.
    Ended,
    Completed,
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Told {
    Bytes,
    Cancelled,
    End,
}

impl<R: Receive> PipeReader<R> {
    /// A pipe over the receiving half of a connection.
    pub fn new(half: R) -> Self {
        Self::with_prefix(half, Bytes::new())
    }

    /// The same, with bytes that were received already: they come first.
    pub fn with_prefix(half: R, prefix: Bytes) -> Self {
        Self {
            half,
            held: Held::with(prefix),
            examined: 0,
            max_held: DEFAULT_MAX_HELD,
            state: State::Open,
            handle: OnceLock::new(),
        }
    }

    /// Sets what a read may hold at most, in bytes, before it refuses to receive more: [`DEFAULT_MAX_HELD`] (1 MiB) at
    /// first. It is looked at before a receive, so one buffer more may be held. 0 refuses every receive behind held bytes.
    pub fn set_max_held(&mut self, bytes: usize) {
        self.max_held = bytes;
    }

    /// Bytes held: received and not consumed.
    pub fn held_len(&self) -> usize {
        self.held.len()
    }

    /// Bytes of memory that hold them.
    pub fn held_memory(&self) -> usize {
        self.held.memory()
    }

    /// A view of what is held, without waiting.
    pub fn buffer(&self) -> Sequence<'_> {
        self.held.view()
    }

    /// Everything received and not consumed, as soon as a byte of it was not examined; it waits for new bytes if all were.
    ///
    /// At the peer's end it returns what is left, with `end` set, at once and every time.
    ///
    /// # Errors
    /// Why the connection ended, once everything received was delivered; what is held stays readable by
    /// [`buffer`](Self::buffer). [`io::ErrorKind::QuotaExceeded`] when [`max_held`](Self::set_max_held) bytes are held and
    /// all were examined: consume some. [`io::ErrorKind::NotConnected`] after [`complete`](Self::complete).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read(&mut self) -> ReadPipe<'_, R> {
        self.begin_wait();
        ReadPipe { reader: Some(self), idle: false }
    }

    /// The same, and says that no request is in progress: when the runtime drains and nothing is held, it returns with
    /// `end` set.
    pub fn read_idle(&mut self) -> ReadPipe<'_, R> {
        self.begin_wait();
        ReadPipe { reader: Some(self), idle: true }
    }

    /// The first `consumed` bytes of the last result are done with; the next read returns at once if bytes are left.
    ///
    /// # Panics
    /// When `consumed` is more than is held.
    #[inline]
    pub fn advance(&mut self, consumed: usize) {
        self.advance_to(consumed, consumed);
    }

    /// The first `consumed` bytes of the last result are done with, and the first `examined` were looked at (at least
    /// those that are consumed): if that is all of them, the next read waits for new ones.
    ///
    /// # Panics
    /// When either is more than is held.
    #[inline]
    pub fn advance_to(&mut self, consumed: usize, examined: usize) {
        let held = self.held.len();
        assert!(consumed.max(examined) <= held, "advance_to({consumed}, {examined}) over {held} bytes held");
        self.examined = examined.saturating_sub(consumed);
        self.held.advance(consumed);
    }

    /// Takes the first `n` bytes out as owned bytes: without a copy if they lie in one buffer, except that a few bytes
    /// of a buffer are copied as [`RecvBuf::freeze`] says.
    ///
    /// # Panics
    /// When `n` is more than is held.
    pub fn take(&mut self, n: usize) -> Bytes {
        let held = self.held.len();
        assert!(n <= held, "take({n}) of {held} bytes held");
        self.examined = self.examined.saturating_sub(n);
        self.held.take(n)
    }

    /// Ends the read that waits, or else the next one, as [`PipeHandle::cancel`] does.
    pub fn cancel_pending_read(&self) {
        self.handle.get_or_init(PipeHandle::new).cancel();
    }

    /// A handle by which another task or thread cancels a read, or completes the reader.
    pub fn handle(&self) -> PipeHandle {
        self.handle.get_or_init(PipeHandle::new).clone()
    }

    /// Ends reading: buffers go back, and every later read is refused. The connection stays open. Calling it again does
    /// nothing.
    pub fn complete(&mut self) {
        self.state = State::Completed;
        self.held.clear();
        self.examined = 0;
    }

    /// The receiving half, and the bytes received and not consumed.
    pub fn into_parts(self) -> (R, Bytes) {
        (self.half, self.held.into_bytes())
    }

    /// The receiving half.
    pub fn get_ref(&self) -> &R {
        &self.half
    }

    /// A handle that closes or resets the connection from any thread.
    pub fn close_handle(&self) -> CloseHandle {
        self.half.close_handle()
    }

    /// Resolves when the connection's runtime drains.
    pub fn draining(&self) -> Draining {
        self.half.draining()
    }

    #[inline]
    pub(crate) fn begin_wait(&mut self) {
        self.half.begin_wait();
    }

    /// Would a read return without receiving?
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.held.len() > self.examined || self.state != State::Open
    }

    #[inline]
    pub(crate) fn result(&self, told: Told) -> ReadResult<'_> {
        ReadResult {
            buffer: self.held.view(),
            end: self.state == State::Ended || told == Told::End,
            cancelled: told == Told::Cancelled,
        }
    }

    #[inline]
    pub(crate) fn check_open(&self) -> io::Result<()> {
        if self.state == State::Completed { Err(completed()) } else { Ok(()) }
    }

    #[inline]
    pub(crate) fn take_in(&mut self, received: Option<RecvBuf>) {
        match received {
            Some(buf) => self.held.push(buf),
            None => self.state = State::Ended,
        }
    }

    /// Ready when there is something to tell. Nothing held and nobody else to ask: the path of nearly every request.
    #[inline]
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Told>> {
        if self.held.len() > 0 || self.state != State::Open || self.handle.get().is_some() {
            return self.poll_read_held(cx, idle);
        }
        self.poll_first_buffer(cx, idle)
    }

    /// With nothing held: a buffer, or an end. A drain's end is none of the peer's: it is told once, and not kept.
    /// One place that reads, so that the whole path to recv(2) is in line; who comes late has another (79 instructions).
    #[inline(always)]
    fn poll_first_buffer(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Told>> {
        let received = self.half.poll_receive_as(cx, idle);
        self.first(received, idle)
    }

    #[cold]
    fn poll_first_late(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Told>> {
        let received = if idle { self.half.poll_receive_idle(cx) } else { self.half.poll_receive(cx) };
        self.first(received, idle)
    }

    #[inline(always)]
    fn first(&mut self, received: Poll<io::Result<Option<RecvBuf>>>, idle: bool) -> Poll<io::Result<Told>> {
        match received {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(Some(buf))) => {
                self.held.push_first(buf);
                Poll::Ready(Ok(Told::Bytes))
            }
            Poll::Ready(Ok(None)) => {
                if !idle {
                    self.state = State::Ended;
                }
                Poll::Ready(Ok(Told::End))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        }
    }

    #[cold]
    fn poll_read_held(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Told>> {
        if self.handle.get().is_some()
            && let Some(ready) = self.asked(cx.waker())
        {
            return Poll::Ready(ready);
        }
        if self.is_settled() {
            self.check_open()?;
            return Poll::Ready(Ok(Told::Bytes));
        }
        match self.held.len() {
            0 => self.poll_first_late(cx, idle),
            held if held >= self.max_held => Poll::Ready(Err(too_much(held, self.max_held))),
            _ => self.poll_behind(cx).map_ok(|()| Told::Bytes),
        }
    }

    /// What a handle has asked for, if anything; else the waker waits there too.
    #[cold]
    fn asked(&mut self, waker: &Waker) -> Option<io::Result<Told>> {
        match self.handle.get()?.check_or_wait(waker) {
            Asked::Nothing => None,
            Asked::Cancel => Some(Ok(Told::Cancelled)),
            Asked::Complete => {
                self.complete();
                Some(Err(completed()))
            }
        }
    }

    /// Receives behind bytes that are held already: into the free tail of their buffer if that is worth it.
    #[cold]
    pub(crate) fn poll_behind(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.held.settle();
        let Some(last) = self.held.takes_more() else {
            return self.half.poll_receive(cx).map_ok(|received| self.take_in(received));
        };
        self.half.poll_receive_more(cx, last).map_ok(|n| match n {
            0 => self.state = State::Ended,
            n => self.held.grown(n),
        })
    }

    /// One step of a read that needs more than is held, whatever was examined.
    pub(crate) fn poll_grow(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Told>> {
        if let Some(ready) = self.asked(cx.waker()) {
            return Poll::Ready(ready);
        }
        self.check_open()?;
        if self.state == State::Open {
            let more = if self.held.len() == 0 {
                self.half.poll_receive(cx).map_ok(|received| self.take_in(received))
            } else {
                self.poll_behind(cx)
            };
            match more {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(if self.state == State::Open { Told::Bytes } else { Told::End }))
    }

    /// What `read_at_least` may ask for.
    pub(crate) fn max_held(&self) -> usize {
        self.max_held
    }
}

#[cold]
fn completed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the pipe was completed: nothing can be read from it any more")
}

#[cold]
pub(crate) fn too_much(held: usize, limit: usize) -> io::Error {
    let text =
        format!("{held} bytes are held and not consumed, and max_held is {limit}: consume some first or raise it");
    io::Error::new(io::ErrorKind::QuotaExceeded, text)
}

impl<R: fmt::Debug> fmt::Debug for PipeReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipeReader")
            .field("half", &self.half)
            .field("held", &self.held.len())
            .field("examined", &self.examined)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Nothing in a reader is pinned.
impl<R> Unpin for PipeReader<R> {}
