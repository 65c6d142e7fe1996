//! Sending a range of a file by sendfile(2).
//!
//! State: how far the range is, and whether the flush is lent to this future. Who touches it: the future's poll sends;
//! the reactor only hands the flush over at a writable edge. Thread class: any thread. Laws: 3, 6 (a cut body must not
//! look whole), 8, 11, 15 (through the flush word, like every other send).
//!
//! The future holds the flush from the first byte of the file to the last, so a FIN asked for meanwhile goes out behind
//! the file, and a drain waits. Between two polls the word is Blocked (the socket refused) or Owed (its turn is over, or
//! the edge came), and `Slow::lent` says that the flush is this future's: at the edge the reactor does not send, it leaves
//! Flushing for Owed and wakes the future, which claims Owed and reads the file on its own thread.
//! ```text
//! future                                     reactor, writable edge
//!   lent = true; Flushing                      Blocked -> Flushing
//!   EAGAIN: waiter, Flushing -> Blocked        under the mutex: if lent, Flushing -> Owed
//!   woken: Owed -> Flushing, send              wake the waiter
//!   dropped: under the mutex: lent = false;    (else: an ordinary flush with nothing queued)
//!     if Owed -> Flushing: finish
//! ```

use crate::conn::body::{Body, Slow, ends};
use crate::conn::drive::{self, Batch, Drive, leave_closed};
use crate::conn::ending;
use crate::conn::flush_word::Leave;
use crate::conn::write_half::WriteHalf;
use crate::error::CloseReason;
use crate::exec::local;
use crate::stats::Count;
use crate::sync::lock;
use crate::sys;
use std::future::Future;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};

/// Bytes of one sendfile(2): between two of them a close is seen.
const PIECE: usize = 256 * 1024;
/// Bytes of one poll off the reactor; on a reactor it is `flush_budget`.
const FOREIGN_BUDGET: usize = 16 * PIECE;

impl WriteHalf {
    /// Sends a range of a regular file behind what is staged, without copying it through this process (sendfile(2)).
    /// Ready when the kernel has all of it. The file's own position is neither used nor moved.
    ///
    /// Any thread; the file is read by whoever polls, never by the reactor on somebody's behalf. **Polled on a reactor, a
    /// file that is not in the page cache blocks its loop** until the disk has answered: for such files send from another
    /// thread. A poll on a reactor sends `flush_budget` at most, elsewhere 4 MiB, then others get their turn.
    ///
    /// A `std::fs::File` goes in as `OwnedFd::from(file)`; an `Arc<OwnedFd>` serves one open file to many. It must not change
    /// meanwhile: bytes that are written over may go out in either form.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when `file` is not a regular file or ends before `range` does: nothing was sent, the
    /// connection stays usable. [`io::ErrorKind::UnexpectedEof`] when the file was truncated while it was sent: the
    /// connection was reset. Else as [`flush`](Self::flush).
    ///
    /// # Cancel safety
    /// Dropped before a byte of the file has gone, none goes: what was staged is flushed, the connection stays usable.
    /// Dropped later, the connection is reset ([`CloseReason::Aborted`]): a cut body must not look whole. Not polled for
    /// `send_timeout`, it counts as a peer that takes nothing.
    pub fn send_file(&mut self, file: impl Into<Arc<OwnedFd>>, range: impl RangeBounds<u64>) -> SendFile<'_> {
        let file = file.into();
        let (at, end, refused) = match check_range(&file, &range) {
            Ok((at, end)) => (at, end, None),
            Err(error) => (0, 0, Some(error)),
        };
        SendFile { half: self, file, start: at, at, end, refused, state: State::Before }
    }
}

/// The range in bytes, if there is such a range of such a file.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if there is not.
pub fn check_range(file: &OwnedFd, range: &impl RangeBounds<u64>) -> io::Result<(u64, u64)> {
    let wrong = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
    let Some(size) = sys::file::regular_size(file.as_fd())? else {
        return Err(wrong("send_file: not a regular file: sendfile(2) needs one that can be mapped".to_owned()));
    };
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => size,
    };
    if start > end || end > size {
        return Err(wrong(format!("send_file: bytes {start} to {end} of a file of {size} bytes: no such range")));
    }
    Ok((start, end))
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// What is staged goes out first.
    Before,
    /// This future owns Flushing; only inside a poll.
    Sending,
    /// The flush is lent to this future: Blocked or Owed.
    Waiting,
    Done,
}

/// The future of `send_file`.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let file = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))?;
/// conn.send_file(std::os::fd::OwnedFd::from(file), 0..9).await?;
/// # let mut start = [0; 9];
/// # peer.read_exact(&mut start)?;
/// # assert_eq!(&start, b"[package]");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SendFile<'a> {
    half: &'a mut WriteHalf,
    file: Arc<OwnedFd>,
    start: u64,
    at: u64,
    end: u64,
    refused: Option<io::Error>,
    state: State,
}

impl Future for SendFile<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(error) = this.refused.take() {
            this.state = State::Done;
            return Poll::Ready(Err(error));
        }
        match this.state {
            State::Before => {
                loop {
                    match this.half.poll_flush(cx) {
                        Poll::Ready(Ok(())) if this.at == this.end => return Poll::Ready(Ok(())),
                        Poll::Ready(Ok(())) if this.half.body.flush.claim() => break,
                        Poll::Ready(Ok(())) if this.half.body.flush.is_closed() || this.half.body.flush.has_fin() => {
                            return Poll::Ready(Err(this.half.refusal()));
                        }
                        // A layer sends a record of the reader's (an answer to a KeyUpdate): it is waited for.
                        Poll::Ready(Ok(())) => {}
                        other => return other,
                    }
                }
                if this.half.body.layer().is_some_and(|layer| layer.is_over()) {
                    // Asked with the flush in hand: an end that comes later goes out behind the file.
                    finish(&this.half.body);
                    return Poll::Ready(Err(this.half.refusal()));
                }
                lock(&this.half.body.slow).lent = true;
                this.state = State::Sending;
            }
            State::Waiting => {
                // Register, then look: whoever makes the word Owed, or closes it, wakes afterwards.
                if !this.half.body.flush.serve_owed() {
                    this.half.body.set_writer(cx);
                    if !this.half.body.flush.serve_owed() {
                        return if this.half.body.flush.is_closed() {
                            Poll::Ready(Err(this.over()))
                        } else {
                            Poll::Pending
                        };
                    }
                }
                this.state = State::Sending;
            }
            State::Sending | State::Done => return Poll::Ready(Err(this.half.refusal())),
        }
        this.send(cx)
    }
}

/// How one turn of sending ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Finished,
    Blocked,
    Budget,
    /// The file is shorter than it was.
    Truncated,
    Failed(CloseReason),
}

impl SendFile<'_> {
    /// The owner's loop.
    fn send(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let here = local::is_reactor_thread();
        let mut left = if here { self.half.body.home.config.flush_budget } else { FOREIGN_BUDGET };
        loop {
            let turn = self.turn(&mut left);
            let body = &*self.half.body;
            let leave = match turn {
                Turn::Finished => {
                    lock(&body.slow).lent = false;
                    self.state = State::Done;
                    return Poll::Ready(if finish(body) { Ok(()) } else { Err(self.half.refusal()) });
                }
                Turn::Blocked => {
                    body.home.count(Count::SendEagain, 1);
                    body.set_writer(cx);
                    body.flush.block()
                }
                Turn::Budget => body.flush.owe(),
                Turn::Truncated => {
                    self.cut(CloseReason::Aborted);
                    return Poll::Ready(Err(self.truncated()));
                }
                Turn::Failed(reason) => {
                    self.cut(reason);
                    return Poll::Ready(Err(self.half.refusal()));
                }
            };
            match (leave, turn) {
                (Leave::Left { .. }, Turn::Budget) => {
                    self.state = State::Waiting;
                    // To the back of whatever queue this is polled from.
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                (Leave::Left { .. }, _) => {
                    body.home.count(Count::FlushParks, 1);
                    self.state = State::Waiting;
                    return Poll::Pending;
                }
                // A writable edge came: look once more.
                (Leave::Again, _) => {}
                (Leave::Closed, _) => {
                    leave_closed(body);
                    return Poll::Ready(Err(self.over()));
                }
            }
        }
    }

    /// Pieces until the range is out, the socket refuses, or the turn is over.
    fn turn(&mut self, left: &mut usize) -> Turn {
        let body = &*self.half.body;
        while self.at < self.end {
            if *left == 0 {
                return Turn::Budget;
            }
            let piece = usize::try_from(self.end - self.at).unwrap_or(usize::MAX).min(PIECE).min(*left);
            let result = sys::file::sendfile(body.as_fd(), self.file.as_fd(), self.at, piece);
            body.home.count(Count::Sends, 1);
            body.home.count(Count::Sendfiles, 1);
            match result {
                Ok(0) => return Turn::Truncated,
                Ok(n) => {
                    self.at += n as u64;
                    *left -= n;
                    body.add_accepted(n);
                    body.touch(local::here(&body.home));
                    if body.flush.is_closed() {
                        // The owner's next step says so.
                        return Turn::Budget;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if body.has_ended(ends::KERNEL_TX) {
                        push_records(body);
                    }
                    return Turn::Blocked;
                }
                Err(error) => return Turn::Failed(CloseReason::from_io("sendfile", &error)),
            }
        }
        Turn::Finished
    }

    /// The owner cuts the connection: the peer sees a reset, and the queue is freed before Flushing is left.
    fn cut(&mut self, reason: CloseReason) {
        let body = &*self.half.body;
        self.state = State::Done;
        body.store_reason(reason);
        let _ = sys::socket::reset(body.as_fd());
        let _ = body.flush.close();
        lock(&body.slow).lent = false;
        leave_closed(body);
    }

    fn truncated(&self) -> io::Error {
        let Self { at, end, .. } = self;
        let text = format!(
            "send_file: the file ends at byte {at} and was to be sent up to {end}: it was truncated meanwhile; the \
             connection was reset, so that the peer does not take a part for the whole"
        );
        io::Error::new(io::ErrorKind::UnexpectedEof, text)
    }

    /// The connection is over: nothing is held any more.
    fn over(&mut self) -> io::Error {
        self.state = State::Done;
        lock(&self.half.body.slow).lent = false;
        self.half.refusal()
    }
}

impl Drop for SendFile<'_> {
    fn drop(&mut self) {
        let body: &Body = &self.half.body;
        match self.state {
            State::Before | State::Done => {}
            // A waker panicked inside the poll.
            State::Sending => self.cut(CloseReason::Aborted),
            State::Waiting if self.at > self.start => {
                ending::reset(body, CloseReason::Aborted);
                lock(&body.slow).lent = false;
            }
            State::Waiting => give_back(body),
        }
    }
}

/// A kernel before Linux 6.5 gives TCP a record in the middle of a sendfile(2) and has it wait for more; with a send buffer
/// that holds no more it would wait for ever, as nothing is on its way whose acknowledgement could make room.
#[cold]
fn push_records(body: &Body) {
    // A failure is the socket's: the next send meets it.
    let _ = sys::socket::push(body.as_fd());
}

/// Nothing of the file has gone: the flush is nobody's again. Under the mutex, so that the reactor has either left it Owed
/// already, or finds it not lent and finishes it.
fn give_back(body: &Body) {
    let mut slow = lock(&body.slow);
    slow.lent = false;
    let unused = slow.waiter.take();
    let owned = body.flush.serve_owed();
    drop(slow);
    if owned {
        finish(body);
    }
    // User code last: a panic must not leave the flush owned (law 10).
    drop(unused);
}

/// The owner is done with the file, and leaves: what a layer (TLS) has queued meanwhile, its end perhaps, goes out behind
/// it. False: the connection is closed.
fn finish(body: &Body) -> bool {
    let mut queued = lock(&body.slow).out.take();
    let budget = body.home.config.flush_budget;
    drive::drive(body, Batch { bytes: &mut queued, counted: true }, budget, None) != Drive::Closed
}

/// Reactor, with the flush in its hands, which is lent: the future goes on with it.
#[cold]
pub(crate) fn hand_over(body: &Body, slow: MutexGuard<'_, Slow>) {
    // Under the mutex: see `give_back`.
    let leave = body.flush.owe();
    drop(slow);
    match leave {
        Leave::Closed => leave_closed(body),
        _ => body.wake_writer(),
    }
}
