//! How a frame of a shared writer goes out: at once from where it is, or through the queue.
//!
//! State: none of its own; see `shared`. Who touches it: every clone appends, the flush owner sends. Thread class: any
//! thread. Laws: 3 (claimed or appended under the queue's mutex; then sent without it, or unlock and kick), 8 (one send
//! does a bounded amount of work), 10 (frames are made before and dropped after the lock), 15, 16 (refused whole).
//!
//! A word that is idle is claimed under the mutex, with an empty queue: what others append from then on is behind this
//! frame, on the wire as in the count of bytes, and only a rest of it is ever queued. So a peer that keeps up costs one
//! lock and one send, and nothing is copied. The owner leaves by the quiet way unless somebody waits by ticket.

use crate::buf::{Outgoing, SendEnd, Sent};
use crate::conn::body::Slow;
use crate::conn::drive::{self, Batch, Drive};
use crate::conn::flush_word::Kick;
use crate::conn::layer::Layer;
use crate::conn::shared::SharedWriter;
use crate::conn::shared_limits::{Refusal, SharedLimits};
use crate::error::CloseReason;
use crate::exec::local::{self, Here};
use crate::stats::Count;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::sys;
use crate::trace;
use bytes::Bytes;
use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::sync::MutexGuard;

/// Frames that wait and have up to this many bytes are copied behind each other and go out in one piece; larger ones are
/// sent from where they are.
const COPIED: usize = 256;

/// The time of one or more sends: a look at the clock costs as much as the rest of a send, its system call apart.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Stamp(u32);

impl Stamp {
    /// Now, by the coarse clock.
    pub fn now() -> Self {
        Self(local::coarse_ms())
    }

    /// In ms; wraps after 49 days.
    pub fn ms(self) -> u32 {
        self.0
    }
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

impl Outgoing {
    fn stage_frame(&mut self, frame: &Bytes) {
        if frame.len() <= COPIED {
            self.stage(frame);
        } else {
            self.stage_bytes(frame.clone());
        }
    }
}

impl SharedWriter {
    /// [`send`](Self::send) for one frame to many connections: it is borrowed, and the clock is the caller's. True: sent,
    /// false: queued.
    ///
    /// # Errors
    /// Why it was refused.
    #[doc(hidden)]
    #[inline]
    pub fn send_shared(&self, frame: &Bytes, at: Stamp) -> Result<bool, Refusal> {
        let here = Here { is_home: local::is_here(&self.core.body.home), now_ms: at.0 };
        self.send_at(frame, &self.core.limits, here)
    }

    #[inline]
    pub(super) fn send_at(&self, frame: &Bytes, limits: &SharedLimits, here: Here) -> Result<bool, Refusal> {
        let body = &*self.core.body;
        if self.core.layer.is_none() && frame.len().wrapping_sub(1) < body.home.config.flush_budget {
            let mut slow = lock(&body.slow);
            if slow.out.is_empty() && body.flush.claim() {
                // Nothing waits: all of them are out.
                let before = slow.end;
                if let Some(frames) = &mut slow.frames {
                    frames.settle(before);
                }
                let end = before + frame.len() as u64;
                slow.end = end;
                body.queued.fetch_add(frame.len(), Ordering::Relaxed);
                drop(slow);
                return self.send_alone(frame, end, here);
            }
        }
        self.send_behind(frame, limits, here)
    }

    /// The flush is ours and nothing goes before the frame.
    #[inline]
    fn send_alone(&self, frame: &Bytes, end: u64, here: Here) -> Result<bool, Refusal> {
        let body = &*self.core.body;
        match sys::io::send(body.as_fd(), frame) {
            Ok(n) if n == frame.len() => {
                body.home.count_from(here.is_home, Count::Sends, 1);
                body.add_accepted(n);
                body.touch(here);
                body.queued.fetch_sub(n, Ordering::Relaxed);
                if body.flush.finish_quiet() {
                    body.flush_is_over();
                    return Ok(true);
                }
                // Somebody came, or waits.
                let sent = Sent { bytes: 0, calls: 0, end: SendEnd::Empty };
                self.go_on(Outgoing::new(), end, here, |_| sent)
            }
            first => self.sent_in_part(frame, end, here, first),
        }
    }

    #[cold]
    fn sent_in_part(&self, frame: &Bytes, end: u64, here: Here, first: io::Result<usize>) -> Result<bool, Refusal> {
        let body = &*self.core.body;
        if let Some(frames) = &mut lock(&body.slow).frames {
            frames.push_front(end, here.now_ms);
        }
        let mut batch = Outgoing::new();
        batch.stage_frame(frame);
        self.go_on(batch, end, here, |batch| batch.send_after(body.as_fd(), body.home.config.flush_budget, first))
    }

    /// The flush is ours: what comes after the first send, and what is appended meanwhile.
    #[cold]
    fn go_on(
        &self,
        mut batch: Outgoing,
        end: u64,
        here: Here,
        first: impl FnOnce(&mut Outgoing) -> Sent,
    ) -> Result<bool, Refusal> {
        let body = &*self.core.body;
        let sent = first(&mut batch);
        let batch = Batch { bytes: &mut batch, counted: true };
        let driven = drive::go_on(body, batch, body.home.config.flush_budget, None, here, sent);
        body.wake_ready();
        self.driven(driven, end)
    }

    /// Through the queue.
    #[inline(never)]
    fn send_behind(&self, frame: &Bytes, limits: &SharedLimits, here: Here) -> Result<bool, Refusal> {
        let body = &*self.core.body;
        let appended = match &self.core.layer {
            None => self.append(frame, limits, here.now_ms),
            Some(layer) => self.append_through(&**layer, frame, limits, here.now_ms),
        };
        match appended {
            Ok(end) => self.driven(self.kick(here), end),
            Err(refusal) => {
                body.home.count(Count::FramesRefused, 1);
                trace::refused(body.home.index, "SharedLimits", frame.len());
                Err(refusal)
            }
        }
    }

    /// What became of the frame that ends at `end`.
    fn driven(&self, driven: Drive, end: u64) -> Result<bool, Refusal> {
        let body = &*self.core.body;
        match driven {
            Drive::Done => Ok(true),
            // This frame may be out all the same, and what others appended behind it not.
            _ if end <= body.accepted.load(Ordering::Relaxed) => Ok(true),
            Drive::Parked => Ok(false),
            Drive::Closed => {
                body.home.count(Count::FramesRefused, 1);
                Err(Refusal::Closed(self.reason()))
            }
        }
    }

    /// Appends a frame and says where it ends.
    pub(super) fn append(&self, frame: &Bytes, limits: &SharedLimits, now: u32) -> Result<u64, Refusal> {
        let mut slow = self.admit(frame.len(), now, limits)?;
        if frame.is_empty() {
            return Ok(0);
        }
        slow.end += frame.len() as u64;
        self.core.body.queued.fetch_add(frame.len(), Ordering::Relaxed);
        slow.out.stage_frame(frame);
        Ok(slow.push_frame(now))
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

    /// After an append: send, or make sure that somebody does.
    pub(super) fn kick(&self, here: Here) -> Drive {
        let body = &*self.core.body;
        match body.flush.kick() {
            Kick::Own => {
                let mut batch = lock(&body.slow).out.take();
                let batch = Batch { bytes: &mut batch, counted: true };
                let driven = drive::drive_from(body, batch, body.home.config.flush_budget, None, here);
                body.wake_ready();
                driven
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
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::Stamp;
    use std::time::Duration;

    /// A stamp from the beginning of a long pass would turn back the read clocks of members on other reactors.
    #[test]
    fn a_stamp_is_the_time_though_its_task_holds_the_loop() {
        let (before, after) = crate::block_on(async {
            let before = Stamp::now();
            // sleep: time is what is measured.
            std::thread::sleep(Duration::from_millis(100));
            (before, Stamp::now())
        });
        assert!(after.0.wrapping_sub(before.0) >= 50, "{before:?} and 100 ms later {after:?}");
    }
}
