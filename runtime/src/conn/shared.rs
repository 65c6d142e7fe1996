//! The shared writer: many threads send whole frames on one connection.
//!
//! State: in the body's `slow` queue (order of appends = order on the wire) the frames' ends, and who waits for which
//! offset. Who touches it: every clone appends, the flush owner sends and takes note. Thread class: any thread.
//! Laws: 3 (append under the queue's mutex, unlock, kick), 8 (one send does a bounded amount of work), 10 (wakers are
//! cloned before and woken after the lock), 15, 16 (three limits, refused whole).
//!
//! Offsets count bytes from the moment of sharing on: `appended` under the mutex, `accepted` (of the body) by the flush
//! owner. A frame whose end is at or below what was accepted since then is out.

use crate::conn::body::{Body, Slow, ends};
use crate::conn::drive::{self, Batch, Drive};
use crate::conn::ending::{self, CloseHandle, Held};
use crate::conn::flush_word::Kick;
use crate::conn::write_half::WriteHalf;
use crate::error::CloseReason;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::sys;
use bytes::Bytes;
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Frames up to this many bytes are copied behind each other and go out in one piece; larger ones are sent from where
/// they are.
const COPIED: usize = 256;

/// What a shared writer may queue while its peer does not keep up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedLimits {
    /// Frames. Default 1024.
    pub frames: usize,
    /// Bytes. Default 1 MiB. A single frame may be larger if nothing else is queued.
    pub bytes: usize,
    /// Age of the oldest frame that waits. Default 10 s; zero is off.
    pub age: Duration,
    /// Keep the connection when the peer has sent its FIN and the read half is gone. Default false: then the FIN ends it.
    pub half_open: bool,
}

impl Default for SharedLimits {
    fn default() -> Self {
        Self { frames: 1024, bytes: 1024 * 1024, age: Duration::from_secs(10), half_open: false }
    }
}

/// What became of a frame.
#[derive(Debug)]
#[must_use = "a refused frame is lost unless it is dealt with"]
pub enum SendOutcome {
    /// The kernel has all of it.
    Sent,
    /// It waits for the peer, or for another thread that sends; it goes out behind what was accepted before.
    Queued,
    /// Nothing of it goes out; it comes back.
    Refused(Refusal, Bytes),
}

/// Why a frame was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// `SharedLimits::frames` wait already.
    Frames,
    /// `SharedLimits::bytes` would be exceeded.
    Bytes,
    /// The oldest frame has waited longer than `SharedLimits::age`.
    Age,
    /// The connection has ended, for this reason.
    Closed(CloseReason),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frames => f.write_str("too many frames wait for the peer (SharedLimits::frames)"),
            Self::Bytes => f.write_str("too many bytes wait for the peer (SharedLimits::bytes)"),
            Self::Age => f.write_str("the peer has not taken the oldest frame in time (SharedLimits::age)"),
            Self::Closed(reason) => write!(f, "the connection has ended: {reason}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// What `slow` holds beside the bytes once a connection is shared.
#[derive(Debug)]
pub(crate) struct Frames {
    /// `Body::accepted` when the sharing began.
    base: u64,
    /// Bytes appended since.
    appended: u64,
    /// Where each frame that may not be out yet ends, and when (ms) it was appended.
    ends: VecDeque<(u64, u32)>,
    /// Who waits until this offset is out; `u64::MAX` waits for the end of the connection.
    waiters: Vec<(u64, Waker)>,
    half_open: bool,
}

impl Frames {
    /// Forgets frames that are out.
    fn settle(&mut self, accepted: u64) {
        let out = accepted.wrapping_sub(self.base);
        while self.ends.front().is_some_and(|(end, _)| *end <= out) {
            self.ends.pop_front();
        }
    }

    /// Takes the waiters whose offset is out; all of them when the connection is over.
    fn ready(&mut self, accepted: u64, over: bool) -> Vec<Waker> {
        let out = accepted.wrapping_sub(self.base);
        let mut ready = Vec::new();
        self.waiters.retain_mut(|(offset, waker)| {
            let keep = !over && *offset > out;
            if !keep {
                ready.push(std::mem::replace(waker, Waker::noop().clone()));
            }
            keep
        });
        ready
    }
}

impl Slow {
    /// Who is to be woken after progress, or after the end.
    pub(crate) fn ready_waiters(&mut self, accepted: u64, over: bool) -> Vec<Waker> {
        self.frames.as_mut().map_or_else(Vec::new, |frames| frames.ready(accepted, over))
    }
}

/// Does the peer's FIN end this connection now that nobody reads it?
pub(crate) fn ends_with_peer(body: &Body) -> bool {
    body.has_ended(ends::SHARED) && body.has_ended(ends::READER_GONE) && {
        lock(&body.slow).frames.as_ref().is_some_and(|frames| !frames.half_open)
    }
}

/// Writes whole frames to one connection from any number of threads. Cheap to clone.
///
/// Dropping the last clone sends what was queued, then FIN.
#[derive(Clone)]
pub struct SharedWriter {
    core: Arc<Core>,
}

struct Core {
    body: Held,
    limits: SharedLimits,
}

impl fmt::Debug for SharedWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedWriter").field("body", &**self.core.body).finish_non_exhaustive()
    }
}

impl WriteHalf {
    /// Turns the half into a writer that any number of threads share. What is staged goes out first.
    pub fn into_shared(mut self, limits: SharedLimits) -> SharedWriter {
        self.trim();
        let Self { body, mut staged, .. } = self;
        {
            let mut slow = lock(&body.slow);
            let queued = body.queued.load(Ordering::Relaxed) as u64;
            let base = body.accepted.load(Ordering::Relaxed);
            let mut frames = Frames {
                base,
                appended: queued,
                ends: VecDeque::new(),
                waiters: Vec::new(),
                half_open: limits.half_open,
            };
            if !staged.is_empty() {
                body.queued.fetch_add(staged.len(), Ordering::Relaxed);
                frames.appended += staged.len() as u64;
                slow.out.append(&mut staged);
            }
            slow.frames = Some(Box::new(frames));
        }
        body.ends.fetch_or(ends::SHARED, Ordering::AcqRel);
        let writer = SharedWriter { core: Arc::new(Core { body, limits }) };
        // Staged bytes are a promise already: they do not wait for the first frame.
        let _ = writer.kick();
        ending::end_if_peer_is_gone(&writer.core.body);
        writer
    }
}

impl SharedWriter {
    /// Appends a whole frame and sends what can be sent, on this thread, without waiting. Frames of one thread go out in
    /// the order of its calls, and no frame is ever cut by another.
    ///
    /// A peer that is blocked costs no system call. The work of one call is bounded (256 KiB), however many others append
    /// meanwhile: the reactor goes on with the rest.
    pub fn send(&self, frame: impl Into<Bytes>) -> SendOutcome {
        let frame = frame.into();
        if let Err(refusal) = self.append(&frame) {
            return SendOutcome::Refused(refusal, frame);
        }
        match self.kick() {
            Drive::Done => SendOutcome::Sent,
            Drive::Parked => SendOutcome::Queued,
            Drive::Closed => SendOutcome::Refused(Refusal::Closed(self.reason()), frame),
        }
    }

    fn append(&self, frame: &Bytes) -> Result<(), Refusal> {
        let Core { body, limits } = &*self.core;
        let now = crate::exec::local::here(&body.home).now_ms;
        let mut slow = lock(&body.slow);
        if body.flush.is_closed() || body.flush.has_fin() {
            drop(slow);
            return Err(Refusal::Closed(self.reason()));
        }
        let accepted = body.accepted.load(Ordering::Relaxed);
        let queued = body.queued.load(Ordering::Relaxed);
        let Slow { out, frames: Some(frames), .. } = &mut *slow else {
            return Err(Refusal::Closed(CloseReason::Aborted));
        };
        frames.settle(accepted);
        if let Some((_, since)) = frames.ends.front() {
            let age = now.wrapping_sub(*since);
            if frames.ends.len() >= limits.frames {
                return Err(Refusal::Frames);
            }
            if queued + frame.len() > limits.bytes {
                return Err(Refusal::Bytes);
            }
            // A stamp of another thread may be a little ahead of this one's clock.
            if !limits.age.is_zero() && age < u32::MAX / 2 && u128::from(age) > limits.age.as_millis() {
                return Err(Refusal::Age);
            }
        }
        frames.appended += frame.len() as u64;
        frames.ends.push_back((frames.appended, now));
        body.queued.fetch_add(frame.len(), Ordering::Relaxed);
        if frame.len() <= COPIED {
            out.stage(frame);
        } else {
            out.stage_bytes(frame.clone());
        }
        Ok(())
    }

    /// After an append: send, or make sure that somebody does.
    fn kick(&self) -> Drive {
        let body = &*self.core.body;
        match body.flush.kick() {
            Kick::Own => {
                let mut batch = lock(&body.slow).out.take();
                let budget = body.home.config.flush_budget;
                let end = drive::drive(body, Batch { bytes: &mut batch, counted: true }, budget, None);
                body.wake_ready(false);
                end
            }
            Kick::Wait => Drive::Parked,
            Kick::Closed => {
                body.free_queue();
                Drive::Closed
            }
        }
    }

    /// Waits until everything that was accepted before this call, by any thread, is in the kernel.
    ///
    /// # Errors
    /// Why the connection ended before that.
    ///
    /// # Cancel safety
    /// Nothing is lost: frames go out whether anybody waits or not.
    pub fn flush(&self) -> SharedFlush<'_> {
        let ticket = lock(&self.core.body.slow).frames.as_ref().map_or(0, |frames| frames.appended);
        SharedFlush { writer: self, ticket }
    }

    /// Waits for the end of the connection and gives its reason.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub fn closed(&self) -> Closed<'_> {
        Closed { writer: self }
    }

    /// A handle that closes or resets the connection from any thread.
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle::new(&self.core.body)
    }

    /// Why both directions ended, once they have.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.core.body.reason()
    }

    /// Bytes that wait for the peer.
    pub fn queued_len(&self) -> usize {
        self.core.body.queued.load(Ordering::Relaxed)
    }

    fn reason(&self) -> CloseReason {
        self.core.body.reason().unwrap_or(CloseReason::Local)
    }

    /// Registers, then looks: whoever makes progress looks for waiters afterwards.
    fn wait_for(&self, offset: u64, cx: &Context<'_>) -> bool {
        let body = &*self.core.body;
        let waker = cx.waker().clone();
        let old = {
            let mut slow = lock(&body.slow);
            let Some(frames) = slow.frames.as_mut() else { return true };
            let known = frames.waiters.iter_mut().find(|(at, known)| *at == offset && known.will_wake(&waker));
            match known {
                Some((_, known)) => Some(std::mem::replace(known, waker)),
                None => {
                    frames.waiters.push((offset, waker));
                    None
                }
            }
        };
        drop(old);
        body.flush.is_closed() || self.is_out(offset)
    }

    fn is_out(&self, offset: u64) -> bool {
        let body = &*self.core.body;
        let slow = lock(&body.slow);
        let base = slow.frames.as_ref().map_or(0, |frames| frames.base);
        offset <= body.accepted.load(Ordering::Relaxed).wrapping_sub(base)
    }
}

/// The future of `SharedWriter::flush`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SharedFlush<'a> {
    writer: &'a SharedWriter,
    ticket: u64,
}

impl Future for SharedFlush<'_> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { writer, ticket } = *self;
        if writer.is_out(ticket) {
            return Poll::Ready(Ok(()));
        }
        if !writer.wait_for(ticket, cx) {
            return Poll::Pending;
        }
        Poll::Ready(if writer.is_out(ticket) { Ok(()) } else { Err(writer.reason().into()) })
    }
}

/// The future of `SharedWriter::closed`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Closed<'a> {
    writer: &'a SharedWriter,
}

impl Future for Closed<'_> {
    type Output = CloseReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if self.writer.core.body.flush.is_closed() || self.writer.wait_for(u64::MAX, cx) {
            return Poll::Ready(self.writer.reason());
        }
        Poll::Pending
    }
}

/// The kernel's word on whether the peer has sent its FIN.
pub(crate) fn peer_has_closed(body: &Body) -> bool {
    body.has_ended(ends::PEER_FIN)
        || body.tcp && matches!(sys::socket::tcp_state(body.as_fd()), Ok(sys::socket::CLOSE_WAIT | sys::socket::CLOSE))
}
