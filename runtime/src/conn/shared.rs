//! The shared writer: many threads send whole frames on one connection.
//!
//! State: none of its own; frames and their ends are in the body's `slow` queue (order of appends = order on the wire).
//! Who touches it: every clone appends, the flush owner sends. Thread class: any thread. Laws: 3 (append under the queue's
//! mutex, claim what is idle there, else unlock and kick), 8 (one send does a bounded amount of work), 10 (frames are made
//! before and dropped after the lock), 15, 16 (three limits, refused whole).

use crate::buf::Outgoing;
use crate::conn::body::{Body, Slow, ends};
use crate::conn::drive::{self, Batch, Drive};
use crate::conn::ending::{self, CloseHandle, Held};
use crate::conn::flush_word::Kick;
use crate::conn::frames::Frames;
use crate::conn::layer::Layer;
use crate::conn::shared_limits::{Refusal, SendOutcome, SharedLimits};
use crate::conn::write_half::WriteHalf;
use crate::error::CloseReason;
use crate::exec::handle::ReactorHandle;
use crate::exec::local::{self, Here};
use crate::stats::Count;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::trace;
use bytes::Bytes;
use std::cell::Cell;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

/// Frames up to this many bytes are copied behind each other and go out in one piece; larger ones are sent from where
/// they are.
const COPIED: usize = 256;

/// What the limits keep free for control frames.
const CONTROL_FRAMES: usize = 16;
const CONTROL_BYTES: usize = 4096;

/// Must the peer's FIN leave this connection open although nobody reads?
pub(crate) fn is_half_open(body: &Body) -> bool {
    lock(&body.slow).frames.as_ref().is_some_and(|frames| frames.half_open)
}

impl Slow {
    /// A frame ends where the queue ends now.
    fn push_frame(&mut self, now: u32) -> u64 {
        if let Some(frames) = &mut self.frames {
            frames.push(self.end, now);
        }
        self.end
    }
}

/// Writes whole frames to one connection from any number of threads. Cheap to clone.
///
/// Dropping the last clone sends what was queued, then FIN.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let (read, writer) = conn.into_shared(SharedLimits::default());
/// let threads: Vec<_> = (0..4).map(|_| {
///     let writer = writer.clone();
///     std::thread::spawn(move || assert!(!matches!(writer.send("frame\n"), SendOutcome::Refused(..))))
/// }).collect();
/// # threads.into_iter().for_each(|thread| thread.join().unwrap());
/// writer.flush().await?;
/// let mut frames = [0; 4 * 6];
/// peer.read_exact(&mut frames)?;
/// assert_eq!(&frames, "frame\n".repeat(4).as_bytes()); // none is torn
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct SharedWriter {
    core: Arc<Core>,
}

struct Core {
    body: Held,
    limits: SharedLimits,
    /// Dropped after the body, whose end it is told of.
    layer: Option<Arc<dyn Layer>>,
}

/// Two writers are equal if they write to the same connection.
impl PartialEq for SharedWriter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.core, &other.core)
    }
}

impl Eq for SharedWriter {}

impl Hash for SharedWriter {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.core).hash(state);
    }
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
        if staged.is_empty() {
            let mut slow = lock(&body.slow);
            slow.end = slow.end.max(body.accepted.load(Ordering::Relaxed));
        } else {
            body.append(&mut staged);
        }
        lock(&body.slow).frames = Some(Box::new(Frames::new(limits.half_open)));
        body.ends.fetch_or(ends::SHARED, Ordering::AcqRel);
        let layer = body.layer();
        let writer = SharedWriter { core: Arc::new(Core { body, limits, layer }) };
        // Staged bytes are a promise already: they do not wait for the first frame.
        let _ = writer.kick(local::here(&writer.core.body.home));
        ending::end_if_nobody_is_left(&writer.core.body);
        writer
    }
}

impl SharedWriter {
    /// Appends a whole frame and sends what can be sent, on this thread, without waiting. Frames of one thread go out in
    /// the order of its calls, and no frame is ever cut by another. Frames up to 256 bytes are copied, larger ones are
    /// sent from where they are. An empty frame is nothing to send.
    ///
    /// A peer that is blocked costs no system call. The work of one call is bounded (256 KiB and 16 looks at what others
    /// append meanwhile): then the reactor goes on with the rest.
    ///
    /// A frame that is `Queued` is lost when the connection ends before the peer has taken it; [`closed`](Self::closed)
    /// says so. One that is `Refused` because the connection ended during this very call may be there in part.
    pub fn send(&self, frame: impl Into<Bytes>) -> SendOutcome {
        self.send_within(frame.into(), &self.core.limits)
    }

    /// The same for a frame that the peer must get although much waits for it: a ping, a pong, a goodbye. The limits do
    /// not hold it back but for a margin of their own, 16 frames and 4 KiB above them; its place is behind what waits.
    pub fn send_control(&self, frame: impl Into<Bytes>) -> SendOutcome {
        let SharedLimits { frames, bytes, .. } = self.core.limits;
        let limits = SharedLimits {
            frames: frames.saturating_add(CONTROL_FRAMES),
            bytes: bytes.saturating_add(CONTROL_BYTES),
            age: Duration::ZERO,
            ..self.core.limits
        };
        self.send_within(frame.into(), &limits)
    }

    fn send_within(&self, frame: Bytes, limits: &SharedLimits) -> SendOutcome {
        let body = &*self.core.body;
        let here = local::here(&body.home);
        let appended = match &self.core.layer {
            None => self.append(&frame, limits, here.now_ms),
            Some(layer) => self.append_through(&**layer, &frame, limits, here.now_ms).map(|end| (end, None)),
        };
        let (end, claimed) = match appended {
            Ok(appended) => appended,
            Err(refusal) => {
                body.home.count(Count::FramesRefused, 1);
                trace::refused(body.home.index, "SharedLimits", frame.len());
                return SendOutcome::Refused(refusal, frame);
            }
        };
        let driven = match claimed {
            Some(batch) => self.drive(batch, here),
            None => self.kick(here),
        };
        match driven {
            Drive::Done => SendOutcome::Sent,
            // This frame may be out all the same, and what others appended behind it not.
            _ if end <= body.accepted.load(Ordering::Relaxed) => SendOutcome::Sent,
            Drive::Parked => SendOutcome::Queued,
            Drive::Closed => {
                body.home.count(Count::FramesRefused, 1);
                SendOutcome::Refused(Refusal::Closed(self.reason()), frame)
            }
        }
    }

    /// Appends a frame and says where it ends. Where nobody sends, the flush is claimed under the queue's mutex (which
    /// never waits for the word), and the batch comes along: one lock less for the common frame.
    fn append(&self, frame: &Bytes, limits: &SharedLimits, now: u32) -> Result<(u64, Option<Outgoing>), Refusal> {
        let mut slow = self.admit(frame.len(), now, limits)?;
        if frame.is_empty() {
            return Ok((0, None));
        }
        let end = self.queue(&mut slow, frame, now);
        Ok((end, self.core.body.flush.claim().then(|| slow.out.take())))
    }

    /// Under the queue's mutex.
    fn queue(&self, slow: &mut Slow, frame: &Bytes, now: u32) -> u64 {
        slow.end += frame.len() as u64;
        self.core.body.queued.fetch_add(frame.len(), Ordering::Relaxed);
        if frame.len() <= COPIED {
            slow.out.stage(frame);
        } else {
            slow.out.stage_bytes(frame.clone());
        }
        slow.push_frame(now)
    }

    /// The same through a layer, which makes records of the frame. Its lock keeps other frames out from the admission
    /// until the end is noted.
    fn append_through(
        &self,
        layer: &dyn Layer,
        frame: &Bytes,
        limits: &SharedLimits,
        now: u32,
    ) -> Result<u64, Refusal> {
        let outcome = Cell::new(Err(Refusal::Closed(self.reason())));
        let mut admit = || {
            outcome.set(self.admit(frame.len(), now, limits).map(|_| 0));
            outcome.get().is_ok() && !frame.is_empty()
        };
        let mut appended = || outcome.set(Ok(lock(&self.core.body.slow).push_frame(now)));
        layer.send_frame(frame, &mut admit, &mut appended);
        outcome.get()
    }

    /// The limits, and whether anything is sent at all: under the queue's mutex, which comes back.
    fn admit(&self, len: usize, now: u32, limits: &SharedLimits) -> Result<MutexGuard<'_, Slow>, Refusal> {
        let body = &*self.core.body;
        let mut slow = lock(&body.slow);
        // Looked at under the mutex: a closer frees the queue after it has said so, and the kick looks again.
        if body.flush.is_closed() || body.flush.has_fin() {
            drop(slow);
            return Err(Refusal::Closed(self.reason()));
        }
        let accepted = body.accepted.load(Ordering::Relaxed);
        let queued = body.queued.load(Ordering::Relaxed);
        let Some(frames) = &mut slow.frames else {
            return Err(Refusal::Closed(CloseReason::Aborted));
        };
        if len == 0 {
            return Ok(slow);
        }
        frames.settle(accepted);
        if let Some(since) = frames.oldest() {
            if frames.len() >= limits.frames {
                return Err(Refusal::Frames);
            }
            // A stamp of another thread may be a little ahead of this one's clock.
            let age = now.wrapping_sub(since);
            if !limits.age.is_zero() && age < u32::MAX / 2 && u128::from(age) > limits.age.as_millis() {
                return Err(Refusal::Age);
            }
        }
        if queued > 0 && queued + len > limits.bytes {
            return Err(Refusal::Bytes);
        }
        Ok(slow)
    }

    /// The flush is ours: sends the batch, and what is appended meanwhile.
    fn drive(&self, mut batch: Outgoing, here: Here) -> Drive {
        let body = &*self.core.body;
        let budget = body.home.config.flush_budget;
        let end = drive::drive_from(body, Batch { bytes: &mut batch, counted: true }, budget, None, here);
        body.wake_ready();
        end
    }

    /// After an append: send, or make sure that somebody does.
    fn kick(&self, here: Here) -> Drive {
        let body = &*self.core.body;
        match body.flush.kick() {
            Kick::Own => {
                let batch = lock(&body.slow).out.take();
                self.drive(batch, here)
            }
            Kick::Wait => Drive::Parked,
            Kick::Closed => {
                body.discard_queue();
                // Others may wait for what was just taken back.
                body.wake_ready();
                Drive::Closed
            }
        }
    }

    /// A handle that closes or resets the connection from any thread.
    pub fn close_handle(&self) -> CloseHandle {
        CloseHandle::new(&self.core.body)
    }

    /// Why both directions ended, once they have.
    pub fn close_reason(&self) -> Option<CloseReason> {
        self.core.body.reason()
    }

    /// Bytes that wait for the peer, or are in the hands of a thread that sends.
    pub fn queued_len(&self) -> usize {
        self.core.body.queued.load(Ordering::Relaxed)
    }

    /// The reactor that the connection belongs to.
    pub fn reactor(&self) -> ReactorHandle {
        ReactorHandle { home: self.core.body.home.clone() }
    }

    /// Names the connection among those that its reactor ever had, as [`Connection::id`](crate::Connection::id) does.
    pub fn id(&self) -> u64 {
        self.core.body.key().0
    }

    pub(crate) fn body(&self) -> &Body {
        &self.core.body
    }

    pub(crate) fn reason(&self) -> CloseReason {
        self.core.body.reason().unwrap_or(CloseReason::Local)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "shared_tests.rs"]
mod tests;

#[cfg(all(test, not(loom)))]
#[path = "shared_end_tests.rs"]
mod end_tests;
