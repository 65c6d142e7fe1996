//! What a shared writer keeps beside the bytes: where frames end, and who waits for which of them to be out.
//!
//! State: both, behind the mutex of `Body::slow`. Thread class: pure. Laws: 10 (wakers come out, nobody is woken here),
//! 16 (frames are bounded by the limits, waiters by the futures that live: each takes itself out when dropped).
//!
//! Offsets count the bytes of the connection as `Body::accepted` does: what ends at or below it is in the kernel.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::task::Waker;

/// Room for this many frames is kept once a queue is empty again.
const KEPT: usize = 32;

/// The offset of those who wait for the end of the connection.
pub(crate) const END: u64 = u64::MAX;

/// See the module's text.
pub(crate) struct Frames {
    /// Where each frame ends that may not be out yet, and when (ms) it was appended.
    ends: VecDeque<(u64, u32)>,
    /// By offset, then by the future's own number.
    waiters: BTreeMap<(u64, u64), Waker>,
    next: u64,
    /// Is the peer's FIN no end?
    pub(crate) half_open: bool,
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames").field("frames", &self.ends.len()).field("waiters", &self.waiters.len()).finish()
    }
}

impl Frames {
    pub(crate) fn new(half_open: bool) -> Self {
        Self { ends: VecDeque::new(), waiters: BTreeMap::new(), next: 0, half_open }
    }

    /// Forgets frames that are out.
    #[inline]
    pub(crate) fn settle(&mut self, accepted: u64) {
        if !self.ends.is_empty() {
            self.settle_some(accepted);
        }
    }

    fn settle_some(&mut self, accepted: u64) {
        while self.ends.front().is_some_and(|(end, _)| *end <= accepted) {
            self.ends.pop_front();
        }
        if self.ends.is_empty() && self.ends.capacity() > KEPT {
            self.ends = VecDeque::new();
        }
    }

    /// Frames that are not out.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// When the oldest frame that is not out was appended.
    pub(crate) fn oldest(&self) -> Option<u32> {
        self.ends.front().map(|(_, since)| *since)
    }

    /// A frame was appended and ends here.
    pub(crate) fn push(&mut self, end: u64, now: u32) {
        self.ends.push_back((end, now));
    }

    /// A frame that was sent past the queue, whose rest goes in front of what came meanwhile.
    pub(crate) fn push_front(&mut self, end: u64, now: u32) {
        self.ends.push_front((end, now));
    }

    /// Does anybody wait for bytes?
    pub(crate) fn are_awaited(&self) -> bool {
        self.waiters.first_key_value().is_some_and(|((offset, _), _)| *offset < END)
    }

    /// Registers a waiter, under its number if it has one. The old waker comes back, to be dropped after unlock.
    pub(crate) fn wait(&mut self, offset: u64, id: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let id = *id.get_or_insert_with(|| {
            self.next += 1;
            self.next
        });
        self.waiters.insert((offset, id), waker)
    }

    /// Takes one waiter out.
    pub(crate) fn forget(&mut self, offset: u64, id: u64) -> Option<Waker> {
        self.waiters.remove(&(offset, id))
    }

    /// Takes out the waiters whose offset is out. `over`: nothing more goes out, so nobody waits. `ended`: neither do
    /// those who wait for the end.
    pub(crate) fn ready(&mut self, accepted: u64, over: bool, ended: bool) -> Vec<Waker> {
        let mut ready = Vec::new();
        while let Some(first) = self.waiters.first_entry()
            && (over || first.key().0 <= accepted)
        {
            ready.push(first.remove());
        }
        if ended {
            ready.extend(self.waiters.split_off(&(END, 0)).into_values());
        }
        ready
    }

    /// How many wait.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn waiting(&self) -> usize {
        self.waiters.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_settle_in_order_and_give_their_room_back() {
        let mut frames = Frames::new(false);
        for i in 1..=1000 {
            frames.push(i * 10, i as u32);
        }
        assert_eq!((frames.len(), frames.oldest()), (1000, Some(1)));
        frames.settle(9);
        assert_eq!(frames.len(), 1000, "a part of a frame is not a frame");
        frames.settle(25);
        assert_eq!((frames.len(), frames.oldest()), (998, Some(3)));
        frames.settle(10_000);
        assert_eq!((frames.len(), frames.oldest()), (0, None));
        assert!(frames.ends.capacity() <= KEPT);
        frames.push(10_020, 2);
        frames.push_front(10_010, 1);
        frames.settle(10_010);
        assert_eq!((frames.len(), frames.oldest()), (1, Some(2)));
    }

    #[test]
    fn waiters_come_out_by_offset_and_at_the_end_all_of_them() {
        let mut frames = Frames::new(false);
        let mut wait = |offset, id: &mut Option<u64>| frames.wait(offset, id, Waker::noop().clone()).is_some();
        let mut ids = [None; 5];
        for (id, offset) in ids.iter_mut().zip([30, 10, 20, END, END]) {
            assert!(!wait(offset, id));
        }
        assert!(wait(30, &mut ids[0]), "a second poll replaces the first one's waker");
        assert_eq!((frames.waiting(), frames.are_awaited()), (5, true));
        assert_eq!(frames.ready(9, false, false).len(), 0);
        assert_eq!(frames.ready(20, false, false).len(), 2);
        assert!(frames.forget(END, ids[4].unwrap()).is_some());
        assert!(frames.forget(END, ids[4].unwrap()).is_none());
        assert_eq!(frames.ready(29, false, true).len(), 1, "only who waits for the end");
        assert_eq!(frames.ready(29, true, true).len(), 1);
        assert!(!frames.are_awaited());
        assert_eq!(frames.waiting(), 0);
    }
}
