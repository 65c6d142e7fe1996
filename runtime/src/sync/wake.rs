//! The wake flag: tells a producer whether the reactor sleeps and must be woken by a system call.
//!
//! State: one flag, `sleeping`. Who touches it: the reactor announces and clears, any producer claims the wake.
//! Thread class: any thread. Law 7.
//!
//! ```text
//! producer                          reactor
//!   push                              sleeping = true
//!   fence(SeqCst)                     fence(SeqCst)
//!   if sleeping and swap(false):      re-check EVERY source; if one has work: do not wait
//!       write the eventfd             epoll_wait; sleeping = false
//! ```
//! Store-then-load on both sides (Dekker): at least one of the two sees the other. With the re-check first and the
//! announcement second an item can sleep for ever; with either fence removed the two loads may both miss. Both are
//! twins in the loom tests below.

#[cfg(not(epoxide_chaos))]
use super::atomic::{AtomicBool, Ordering, fence};
#[cfg(epoxide_chaos)]
use super::store_buffer::{AtomicBool, Ordering, fence};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct WakeFlag {
    sleeping: AtomicBool,
}

impl WakeFlag {
    pub(crate) fn new() -> Self {
        Self { sleeping: AtomicBool::new(false) }
    }

    /// Producer, AFTER its push: must it write the eventfd? At most one producer is told so per sleep.
    #[inline]
    #[must_use = "a claimed wake that is not delivered leaves the reactor asleep"]
    pub(crate) fn claim_wake(&self) -> bool {
        fence(Ordering::SeqCst);
        // The plain load first: while the reactor is awake a push costs no read-modify-write here.
        self.sleeping.load(Ordering::Relaxed) && self.sleeping.swap(false, Ordering::AcqRel)
    }

    /// Reactor: says that it is about to sleep. Every source must be looked at again AFTER this call.
    #[inline]
    pub(crate) fn announce_sleep(&self) {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Reactor: directly after every wait, and when a re-check found work.
    #[inline]
    pub(crate) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    use super::WakeFlag;
    use loom::sync::Arc;
    use loom::thread;

    /// Stand-in for the inject queue, from atomics only: a mutex would hide a missing fence.
    struct Slots {
        items: [AtomicBool; 2],
    }

    struct Shared {
        flag: WakeFlag,
        queue: Slots,
        eventfd: AtomicUsize,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Variant {
        Right,
        CheckThenAnnounce,
        NoProducerFence,
        NoReactorFence,
        /// There are several queues; one of them is not looked at again.
        OneSourceForgotten,
    }

    fn produce(s: &Shared, i: usize, v: Variant) {
        s.queue.items[i].store(true, Ordering::Release);
        let wake = if v == Variant::NoProducerFence {
            s.flag.sleeping.load(Ordering::Relaxed) && s.flag.sleeping.swap(false, Ordering::AcqRel)
        } else {
            s.flag.claim_wake()
        };
        if wake {
            s.eventfd.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn take(s: &Shared) -> usize {
        take_of(&s.queue.items)
    }

    fn take_of(items: &[AtomicBool]) -> usize {
        items.iter().filter(|i| i.load(Ordering::Acquire)).map(|i| i.store(false, Ordering::Relaxed)).count()
    }

    /// One pass of the reactor: true if it would block in `epoll_wait` now.
    fn sleeps(s: &Shared, v: Variant, got: &mut usize) -> bool {
        if v == Variant::CheckThenAnnounce {
            *got += take(s);
            s.flag.announce_sleep();
            return true;
        }
        *got += take(s);
        if v == Variant::NoReactorFence {
            s.flag.sleeping.store(true, Ordering::Relaxed);
        } else {
            s.flag.announce_sleep();
        }
        let found = if v == Variant::OneSourceForgotten { take_of(&s.queue.items[..1]) } else { take(s) };
        *got += found;
        found == 0
    }

    fn run(v: Variant) {
        loom::model(move || {
            let s = Arc::new(Shared {
                flag: WakeFlag::new(),
                queue: Slots { items: [AtomicBool::new(false), AtomicBool::new(false)] },
                eventfd: AtomicUsize::new(0),
            });
            let producers: Vec<_> = (0..2)
                .map(|i| {
                    let s = s.clone();
                    thread::spawn(move || produce(&s, i, v))
                })
                .collect();
            let mut got = 0;
            let asleep = sleeps(&s, v, &mut got);
            for p in producers {
                p.join().unwrap();
            }
            // All pushes are over. A reactor that went to sleep must have been signalled if anything is left.
            fence(Ordering::SeqCst);
            let left = take(&s);
            let signals = s.eventfd.load(Ordering::Acquire);
            assert!(!(asleep && left > 0 && signals == 0), "lost wake: {left} items sleep");
            assert!(signals <= 1, "one sleep, {signals} wakes");
            assert_eq!(got + left, 2);
        });
    }

    #[test]
    fn loom_wake_is_never_lost() {
        run(Variant::Right);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_check_before_announcement() {
        run(Variant::CheckThenAnnounce);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_fence_in_the_producer() {
        run(Variant::NoProducerFence);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_a_source_that_is_not_looked_at_again() {
        run(Variant::OneSourceForgotten);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_fence_in_the_reactor() {
        run(Variant::NoReactorFence);
    }
}
