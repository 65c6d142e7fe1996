//! What waits in the hub for one member, and who moves it on to the member's writer.
//!
//! State: the frames and the mark that somebody moves them, behind one lock. Who touches it: every broadcast appends; one
//! mover at a time sends. Thread class: any thread. Laws: 3 (the same shape: append, unlock, claim), 10 (frames that are
//! displaced come out and are dropped after the lock), 16 (three limits).
//!
//! The mover keeps its mark while the writer is blocked: then the mark rests with the waker that the writer has, and
//! whoever wakes it moves on. So no frame overtakes another, and none is left behind: who leaves the mark has seen the
//! queue empty, or empties it because the connection is over, under the same lock. What is over stays over: it takes no
//! frame, and none comes back to it from a mover's hands.

use crate::hub::options::{BacklogLimits, Policy};
use crate::hub::sync::{Mutex, lock};
use bytes::Bytes;
use epoxide::Refusal;
use std::collections::VecDeque;

/// Room for this many frames is kept once the queue is empty again.
const KEPT: usize = 32;

/// The budget of [`Backlog::finish`].
const NO_BUDGET: usize = usize::MAX;

/// What to do with a frame that does not fit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Overflow {
    Refuse,
    DropOldest,
    /// And an older frame of the same key goes in any case.
    Latest,
}

impl Overflow {
    pub(super) fn of(policy: &Policy) -> Self {
        match policy {
            Policy::DropOldest => Self::DropOldest,
            Policy::Latest => Self::Latest,
            _ => Self::Refuse,
        }
    }
}

/// Where the mover sends.
pub(super) trait Sink {
    /// `Err`: the connection is over.
    fn send(&self, frame: Bytes) -> Result<Took, ()>;
    /// Sees to it that `go_on` is called by somebody once the writer is empty. False: it is empty already.
    fn wait(&self) -> bool;
}

/// What became of a frame that was given to the writer.
#[derive(Debug)]
pub(super) enum Took {
    Sent,
    Queued,
    /// No room even there; back to the front.
    Back(Bytes),
}

/// How the mover left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Moved {
    /// Nothing is left, and all that was moved is in the kernel.
    All,
    /// Somebody else goes on: another mover, or whoever wakes.
    Later,
    /// The mark is still the caller's, who has moved enough.
    Budget,
    /// The connection is over; what waited has been dropped.
    Over,
}

#[derive(Debug)]
struct Waiting {
    frame: Bytes,
    key: Option<u64>,
    since: u32,
}

#[derive(Default, Debug)]
struct Queue {
    frames: VecDeque<Waiting>,
    bytes: usize,
    moving: bool,
    /// The mover works off what waits and takes no more.
    jammed: bool,
    /// The connection is over, or is being ended.
    over: bool,
}

/// Why a frame was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoRoom {
    Limit(Refusal),
    /// The connection is over, or about to be.
    Over,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Backlog {
    queue: Mutex<Queue>,
    limits: BacklogLimits,
    overflow: Overflow,
}

/// Frames that were taken out in favour of a newer one.
#[derive(Default, Debug)]
pub(super) struct Displaced {
    pub(super) dropped: Vec<Bytes>,
    pub(super) conflated: Option<Bytes>,
}

impl Displaced {
    pub(super) fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.conflated.is_none()
    }
}

impl Backlog {
    pub(super) fn new(limits: BacklogLimits, overflow: Overflow) -> Self {
        Self { queue: Mutex::default(), limits, overflow }
    }

    /// Appends a frame, or refuses it. `now` in ms of any clock.
    pub(super) fn offer(&self, frame: &Bytes, key: Option<u64>, now: u32) -> Result<Displaced, NoRoom> {
        let mut displaced = Displaced::default();
        let mut queue = lock(&self.queue);
        if queue.over {
            return Err(NoRoom::Over);
        }
        if queue.jammed {
            return Err(NoRoom::Limit(Refusal::Frames));
        }
        if self.overflow == Overflow::Latest && key.is_some() {
            // From the back: the one that a key has is most likely a recent one.
            if let Some(at) = queue.frames.iter().rposition(|waiting| waiting.key == key) {
                displaced.conflated = queue.take(at).map(|waiting| waiting.frame);
            }
        }
        while let Some(why) = self.full(&queue, frame.len(), now) {
            if self.overflow == Overflow::Refuse {
                return Err(NoRoom::Limit(why));
            }
            displaced.dropped.extend(queue.take(0).map(|waiting| waiting.frame));
        }
        queue.bytes += frame.len();
        queue.frames.push_back(Waiting { frame: frame.clone(), key, since: now });
        Ok(displaced)
    }

    fn full(&self, queue: &Queue, more: usize, now: u32) -> Option<Refusal> {
        let BacklogLimits { frames, bytes, age } = self.limits;
        let oldest = queue.frames.front()?;
        // A stamp of another thread may be a little ahead of this one's.
        let waited = now.wrapping_sub(oldest.since);
        if queue.frames.len() >= frames {
            Some(Refusal::Frames)
        } else if queue.bytes + more > bytes {
            Some(Refusal::Bytes)
        } else if !age.is_zero() && waited < u32::MAX / 2 && u128::from(waited) > age.as_millis() {
            Some(Refusal::Age)
        } else {
            None
        }
    }

    /// Claims the mark, unless somebody has it, and moves frames on.
    pub(super) fn start(&self, sink: &impl Sink, budget: usize) -> Moved {
        {
            let mut queue = lock(&self.queue);
            if queue.over {
                return Moved::Over;
            }
            if queue.moving {
                return Moved::Later;
            }
            queue.moving = true;
        }
        self.go_on(sink, budget)
    }

    /// Moves on all that waits; the mark is the caller's. Nothing is taken meanwhile, so that there is an end to it.
    pub(super) fn finish(&self, sink: &impl Sink) -> Moved {
        lock(&self.queue).jammed = true;
        self.go_on(sink, NO_BUDGET)
    }

    /// Moves frames on; the mark is the caller's.
    pub(super) fn go_on(&self, sink: &impl Sink, budget: usize) -> Moved {
        let mut moved = 0;
        loop {
            let Some(next) = self.next() else { return Moved::All };
            if moved > budget {
                self.put_back(next);
                return Moved::Budget;
            }
            let Waiting { frame, key, since } = next;
            moved += frame.len().max(1);
            match sink.send(frame) {
                Ok(Took::Sent) => continue,
                Ok(Took::Queued) => {}
                Ok(Took::Back(frame)) => self.put_back(Waiting { frame, key, since }),
                Err(()) => {
                    self.end_and_leave();
                    return Moved::Over;
                }
            }
            if budget == NO_BUDGET {
                // The peer does not keep up: whoever goes on finds an end.
                lock(&self.queue).jammed = false;
            }
            if sink.wait() {
                // From here on the mark may be another thread's.
                return Moved::Later;
            }
        }
    }

    /// The oldest frame; with none the mark is left.
    fn next(&self) -> Option<Waiting> {
        let mut queue = lock(&self.queue);
        let next = queue.take(0);
        if next.is_none() {
            queue.moving = false;
            queue.jammed = false;
            if queue.frames.capacity() > KEPT {
                queue.frames = VecDeque::new();
            }
        }
        next
    }

    fn put_back(&self, waiting: Waiting) {
        let mut queue = lock(&self.queue);
        if queue.over {
            // Dropped after the lock.
            drop(queue);
            return;
        }
        queue.bytes += waiting.frame.len();
        queue.frames.push_front(waiting);
    }

    /// Drops what waits, and takes nothing any more. A mover that is under way keeps its mark until it looks again.
    pub(super) fn end(&self) {
        drop(lock(&self.queue).end());
    }

    /// The broken twin of `end`.
    #[cfg(all(test, loom))]
    fn drop_only(&self) {
        let mut queue = lock(&self.queue);
        drop(queue.end());
        queue.over = false;
    }

    /// Mover: the same, and the mark is left.
    fn end_and_leave(&self) {
        let mut queue = lock(&self.queue);
        queue.moving = false;
        let frames = queue.end();
        drop(queue);
        drop(frames);
    }

    /// Does nothing wait, and nobody move?
    pub(super) fn is_idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.frames.is_empty() && !queue.moving
    }

    /// Bytes that wait here.
    pub(super) fn bytes(&self) -> usize {
        lock(&self.queue).bytes
    }
}

impl Queue {
    fn end(&mut self) -> VecDeque<Waiting> {
        self.over = true;
        self.bytes = 0;
        std::mem::take(&mut self.frames)
    }

    fn take(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.frames.remove(at)?;
        self.bytes -= waiting.frame.len();
        Some(waiting)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "backlog_tests.rs"]
mod tests;

#[cfg(all(test, loom))]
#[path = "backlog_loom.rs"]
mod backlog_loom;
