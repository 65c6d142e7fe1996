//! What other threads tell a task: that it is woken, that it is aborted. And the id under which its reactor has it.
//!
//! State: the id, one `notified` bit, one `aborted` bit. Who touches it: any thread notifies and aborts; the reactor gives
//! the id, and clears `notified` BEFORE it serves the wake. Thread class: any thread. Laws: 7, 9 (abort only marks), 16
//! (one bit bounds the inbox entries of a task).
//!
//! ```text
//! waker                                   reactor
//!   what it wakes for                       takes the id out of the queue of wakes
//!   swap(notified): was it set? nothing     swap(notified) to false: sees what EVERY waker did before its own swap,
//!   queue the id                            also those who were told "nothing"; polls
//!
//! abort                                   reactor, a task that came from elsewhere
//!   aborted = true                          id = its slot
//!   fence(SeqCst)                           fence(SeqCst)
//!   an id? wake it                          aborted? drop the future instead of a first poll
//! ```

use crate::id::TaskId;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Marks {
    /// `TaskId::NONE` until the reactor has given the task a slot.
    id: AtomicU64,
    notified: AtomicBool,
    aborted: AtomicBool,
}

impl Marks {
    pub(crate) fn new() -> Self {
        Self {
            id: AtomicU64::new(TaskId::NONE.bits()),
            notified: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> TaskId {
        TaskId::from_bits(self.id.load(Ordering::Acquire))
    }

    /// Reactor: the task has a slot. Where somebody may hold an abort handle by now, `fence_id` follows.
    #[inline]
    pub(crate) fn set_id(&self, id: TaskId) {
        self.id.store(id.bits(), Ordering::Release);
    }

    /// Reactor, between `set_id` and the first poll of a task that came from elsewhere.
    pub(crate) fn fence_id() {
        // Against an abort from elsewhere: of the two, one sees the other.
        fence(Ordering::SeqCst);
    }

    /// Any other thread: a wake. True: the caller queues the task's id.
    #[inline]
    pub(crate) fn notify(&self) -> bool {
        !self.notified.swap(true, Ordering::AcqRel)
    }

    /// Reactor, BEFORE the task is put into the run queue: later wakes must come again.
    #[inline]
    pub(crate) fn clear_notified(&self) {
        // A swap, to see what every notifier did before its own swap, the refused ones too.
        self.notified.swap(false, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Any thread. True: the task has an id, the caller wakes it. Without one it has not been polled, and its first poll
    /// looks at the mark.
    pub(crate) fn abort(&self) -> bool {
        self.aborted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.id() != TaskId::NONE
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::{AtomicBool, Marks, Ordering, fence};
    use crate::id::TaskId;
    use crate::sync::atomic::AtomicUsize;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Clone, Copy, PartialEq)]
    enum Variant {
        Right,
        /// The bit is cleared behind the poll.
        ClearedLate,
        /// It is cleared by a store, which sees nothing of those who found it set.
        ClearedByAStore,
        /// Who finds it set does not write to it.
        RefusedByALook,
        NoFenceInAbort,
        NoFenceInTheReactor,
    }

    struct Shared {
        marks: Marks,
        /// Stand-in for the queue of wakes, from an atomic only.
        queued: AtomicBool,
        /// What the wakers wake for.
        work: [AtomicUsize; 2],
    }

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            marks: Marks::new(),
            queued: AtomicBool::new(false),
            work: [AtomicUsize::new(0), AtomicUsize::new(0)],
        })
    }

    fn wake(s: &Shared, v: Variant) {
        if v == Variant::RefusedByALook && s.marks.notified.load(Ordering::Relaxed) {
            return;
        }
        if s.marks.notify() {
            s.queued.swap(true, Ordering::Release);
        }
    }

    /// One pass: is the task woken? Then what its poll sees.
    fn pass(s: &Shared, v: Variant) -> Option<usize> {
        if !s.queued.swap(false, Ordering::Acquire) {
            return None;
        }
        match v {
            Variant::ClearedLate => {}
            Variant::ClearedByAStore => s.marks.notified.store(false, Ordering::Release),
            _ => s.marks.clear_notified(),
        }
        let seen = s.work.iter().map(|work| work.load(Ordering::Relaxed)).sum();
        if v == Variant::ClearedLate {
            s.marks.clear_notified();
        }
        Some(seen)
    }

    /// Two threads wake a task while its reactor polls it: its last poll has seen what both did.
    fn wakes(v: Variant) {
        loom::model(move || {
            let s = shared();
            let wakers: Vec<_> = (0..2)
                .map(|i| {
                    let s = s.clone();
                    thread::spawn(move || {
                        s.work[i].store(1, Ordering::Relaxed);
                        wake(&s, v);
                    })
                })
                .collect();
            let mut seen = pass(&s, v).unwrap_or(0);
            seen = pass(&s, v).unwrap_or(seen);
            // What a poll that is still to come would see is all of it, once the wakers are done.
            let settled = wakers.into_iter().map(|waker| waker.join().unwrap()).count();
            let comes = s.queued.load(Ordering::Acquire);
            assert!(comes || seen == settled, "lost: the last poll saw {seen} of {settled} wakes");
        });
    }

    /// An abort while the task gets its slot: either its first poll sees the mark, or it is woken to see it.
    fn aborts(v: Variant) {
        loom::model(move || {
            let s = shared();
            let aborter = thread::spawn({
                let s = s.clone();
                move || {
                    let has_id = if v == Variant::NoFenceInAbort {
                        s.marks.aborted.store(true, Ordering::Release);
                        s.marks.id() != TaskId::NONE
                    } else {
                        s.marks.abort()
                    };
                    if has_id {
                        wake(&s, v);
                    }
                }
            });
            s.marks.set_id(TaskId::new(1, 1));
            if v != Variant::NoFenceInTheReactor {
                Marks::fence_id();
            }
            let seen = s.marks.is_aborted();
            aborter.join().unwrap();
            fence(Ordering::SeqCst);
            assert!(seen || s.queued.load(Ordering::Acquire), "lost: a task that is aborted runs on");
        });
    }

    #[test]
    fn loom_the_last_poll_sees_what_every_waker_did() {
        wakes(Variant::Right);
    }

    #[test]
    #[should_panic(expected = "lost")]
    fn loom_twin_the_bit_cleared_behind_the_poll() {
        wakes(Variant::ClearedLate);
    }

    #[test]
    #[should_panic(expected = "lost")]
    fn loom_twin_the_bit_cleared_by_a_store() {
        wakes(Variant::ClearedByAStore);
    }

    #[test]
    #[should_panic(expected = "lost")]
    fn loom_twin_a_waker_that_only_looks_at_the_bit() {
        wakes(Variant::RefusedByALook);
    }

    #[test]
    fn loom_an_abort_meets_the_first_poll_or_wakes_the_task() {
        aborts(Variant::Right);
    }

    #[test]
    #[should_panic(expected = "lost")]
    fn loom_twin_no_fence_in_the_abort() {
        aborts(Variant::NoFenceInAbort);
    }

    #[test]
    #[should_panic(expected = "lost")]
    fn loom_twin_no_fence_between_the_id_and_the_first_poll() {
        aborts(Variant::NoFenceInTheReactor);
    }
}
