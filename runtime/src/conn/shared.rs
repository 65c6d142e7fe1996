//! The shared writer: many threads send whole frames on one connection.
//!
//! State: none of its own; frames and their ends are in the body's `slow` queue (order of appends = order on the wire).
//! How a frame goes out: `shared_send`. Thread class: any thread. Law: 16 (three limits, refused whole).

use crate::conn::body::{Body, ends};
use crate::conn::ending::{self, CloseHandle, Held};
use crate::conn::frames::Frames;
use crate::conn::layer::Layer;
use crate::conn::shared_limits::{SendOutcome, SharedLimits};
use crate::conn::write_half::WriteHalf;
use crate::error::CloseReason;
use crate::exec::handle::ReactorHandle;
use crate::exec::local;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use bytes::Bytes;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// What the limits keep free for control frames.
const CONTROL_FRAMES: usize = 16;
const CONTROL_BYTES: usize = 4096;

/// Must the peer's FIN leave this connection open although nobody reads?
pub(crate) fn is_half_open(body: &Body) -> bool {
    lock(&body.slow).frames.as_ref().is_some_and(|frames| frames.half_open)
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
    pub(super) core: Arc<Core>,
}

pub(super) struct Core {
    pub(super) body: Held,
    pub(super) limits: SharedLimits,
    /// Dropped after the body, whose end it is told of.
    pub(super) layer: Option<Arc<dyn Layer>>,
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
    /// the order of its calls, and no frame is ever cut by another. Where nothing waits a frame is sent from where it is;
    /// one that waits is copied if it has no more than 256 bytes. An empty frame is nothing to send.
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
        match self.send_at(&frame, limits, local::here(&self.core.body.home)) {
            Ok(true) => SendOutcome::Sent,
            Ok(false) => SendOutcome::Queued,
            Err(refusal) => SendOutcome::Refused(refusal, frame),
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
