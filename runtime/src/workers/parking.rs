//! Where the async workers sleep: no push into their run queue is slept through, and a burst wakes them one by one.
//!
//! State: a count of parked workers that nobody has claimed, one flag, and the wakes on their way to them. Who touches
//! it: any thread that pushes, the workers. Thread class: any thread; [`Parking::park`] blocks. Law 7, with several
//! sleepers.
//!
//! ```text
//! producer                           worker
//!   push                               parked += 1
//!   fence(SeqCst)                      fence(SeqCst)
//!   if parked == 0: done               re-check the queue; if it has work: claim one place back and go on,
//!   if waking.swap(true): done         or, if all are claimed, a wake is on its way: take it
//!   claim a place (CAS), post a wake   woken: waking.swap(false), BEFORE it looks at the queue
//!   if there was none:                 takes one task; if there are more, it is a producer: it wakes the next one
//!       waking.swap(false), and if work and a parked worker are there now: again
//! ```
//! Store-then-load on both sides (Dekker): at least one of the two sees the other. `waking` says that a worker is on
//! its way which will look at the queue; so a burst of pushes costs one system call and not one each, and how many
//! workers get up is decided by what they find. A producer that took the flag for nothing looks again after it has
//! given it back, in the place of those that were turned away by it.

use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use crate::sync::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// The modelled half: who is parked, and whether somebody is being woken.
#[derive(Debug)]
struct Places {
    parked: AtomicUsize,
    waking: AtomicBool,
}

impl Places {
    fn new() -> Self {
        Self { parked: AtomicUsize::new(0), waking: AtomicBool::new(false) }
    }

    /// Worker: says that it is about to sleep. The queue must be looked at again AFTER this call.
    fn announce(&self) {
        self.parked.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes a parked worker's place, if there is one.
    fn claim(&self) -> bool {
        let mut parked = self.parked.load(Ordering::Relaxed);
        while parked > 0 {
            match self.parked.compare_exchange_weak(parked, parked - 1, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => parked = now,
            }
        }
        false
    }

    /// Producer, AFTER its push: must it post a wake?
    #[inline]
    fn claim_wake(&self, is_work: impl Fn() -> bool) -> bool {
        fence(Ordering::SeqCst);
        self.parked.load(Ordering::Relaxed) > 0 && self.claim_flag(is_work)
    }

    fn claim_flag(&self, is_work: impl Fn() -> bool) -> bool {
        loop {
            if self.waking.swap(true, Ordering::AcqRel) {
                return false;
            }
            if self.claim() {
                return true;
            }
            // A swap: it sees what those had pushed that it turned away.
            self.waking.swap(false, Ordering::AcqRel);
            fence(Ordering::SeqCst);
            if self.parked.load(Ordering::Relaxed) == 0 || !is_work() {
                return false;
            }
        }
    }

    /// Worker that was woken, BEFORE it looks at the queue: from here on pushes wake the next one.
    fn arrive(&self) {
        self.waking.swap(false, Ordering::AcqRel);
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Parking {
    places: Places,
    /// Wakes on their way: one for each place that was claimed by somebody else.
    wakes: Mutex<usize>,
    bell: Condvar,
}

impl Parking {
    pub(super) fn new() -> Self {
        Self { places: Places::new(), wakes: Mutex::new(0), bell: Condvar::new() }
    }

    /// Producer, AFTER its push: sees to it that a parked worker, if there is one, looks at the queue.
    #[inline]
    pub(super) fn wake_one(&self, is_work: impl Fn() -> bool) {
        if self.places.claim_wake(is_work) {
            self.post();
        }
    }

    /// Wakes every parked worker: something has changed that each must see, published before this call.
    pub(super) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        while self.places.claim() {
            self.post();
        }
    }

    /// Worker: sleeps until it is woken, unless `is_work` finds something. May return for nothing.
    pub(super) fn park(&self, is_work: impl Fn() -> bool) {
        self.places.announce();
        if is_work() && self.places.claim() {
            return;
        }
        let mut wakes = lock(&self.wakes);
        while *wakes == 0 {
            wakes = self.bell.wait(wakes).unwrap_or_else(PoisonError::into_inner);
        }
        *wakes -= 1;
        drop(wakes);
        self.places.arrive();
    }

    /// Workers that sleep and have not been woken.
    pub(super) fn parked(&self) -> usize {
        self.places.parked.load(Ordering::Relaxed)
    }

    #[cold]
    fn post(&self) {
        *lock(&self.wakes) += 1;
        self.bell.notify_one();
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::Places;
    use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Clone, Copy, PartialEq)]
    enum Twin {
        Right,
        CheckThenAnnounce,
        NoProducerFence,
        NoWorkerFence,
        /// Goes on after its re-check without claiming its own place.
        Phantom,
        /// Takes a task and wakes nobody for the rest.
        NoChain,
        /// Looks at the queue first and clears the flag then.
        LateArrival,
        /// Gives the flag back and does not look again.
        NoSecondLook,
    }

    /// Stand-in for the run queue and for the posted wakes, from atomics only.
    struct Shared {
        places: Places,
        items: [AtomicBool; 2],
        wakes: AtomicUsize,
        twin: Twin,
    }

    impl Shared {
        fn new(twin: Twin, parked: usize) -> Arc<Self> {
            let places = Places::new();
            places.parked.store(parked, Ordering::Relaxed);
            let items = [AtomicBool::new(false), AtomicBool::new(false)];
            Arc::new(Self { places, items, wakes: AtomicUsize::new(0), twin })
        }

        fn is_work(&self) -> bool {
            self.items.iter().any(|item| item.load(Ordering::Acquire))
        }

        fn take_one(&self) -> usize {
            let found = self.items.iter().find(|i| i.load(Ordering::Acquire) && i.swap(false, Ordering::AcqRel));
            usize::from(found.is_some())
        }

        fn wake_one(&self) {
            let claimed = match self.twin {
                Twin::NoProducerFence => {
                    self.places.parked.load(Ordering::Relaxed) > 0 && self.places.claim_flag(|| self.is_work())
                }
                Twin::NoSecondLook => self.places.claim_wake(|| false),
                _ => self.places.claim_wake(|| self.is_work()),
            };
            if claimed {
                self.wakes.fetch_add(1, Ordering::AcqRel);
            }
        }

        fn produce(&self, i: usize) {
            self.items[i].store(true, Ordering::Release);
            self.wake_one();
        }

        /// A worker's way into sleep: true if it sleeps until a wake is posted.
        fn sleeps(&self) -> bool {
            match self.twin {
                Twin::CheckThenAnnounce => {
                    let work = self.is_work();
                    self.places.announce();
                    return !(work && self.places.claim());
                }
                Twin::NoWorkerFence => {
                    self.places.parked.fetch_add(1, Ordering::Relaxed);
                }
                _ => self.places.announce(),
            }
            !(self.is_work() && (self.twin == Twin::Phantom || self.places.claim()))
        }

        /// A woken worker, up to its first task, which never ends: how many it took.
        fn get_up(&self) -> usize {
            if self.twin == Twin::LateArrival {
                let (taken, more) = (self.take_one(), self.is_work());
                self.places.arrive();
                if taken > 0 && more {
                    self.wake_one();
                }
                return taken;
            }
            self.places.arrive();
            let taken = self.take_one();
            if taken > 0 && self.twin != Twin::NoChain && self.is_work() {
                self.wake_one();
            }
            taken
        }

        /// Everything is over: nothing waits while a worker is parked and nobody is on its way.
        fn check(&self) -> (usize, usize) {
            fence(Ordering::SeqCst);
            let (parked, wakes) = (self.places.parked.load(Ordering::Acquire), self.wakes.load(Ordering::Acquire));
            assert!(!(self.is_work() && parked > 0 && wakes == 0), "lost wake: a task waits while a worker is parked");
            (parked, wakes)
        }
    }

    fn producers(s: &Arc<Shared>) -> Vec<thread::JoinHandle<()>> {
        let produce = |i| {
            let s = s.clone();
            thread::spawn(move || s.produce(i))
        };
        (0..2).map(produce).collect()
    }

    /// A worker goes to sleep while two producers push.
    fn falls_asleep(twin: Twin) {
        loom::model(move || {
            let s = Shared::new(twin, 0);
            let producers = producers(&s);
            let mut asleep = s.sleeps();
            if !asleep {
                // Awake: takes what there is, and tries once more.
                while s.take_one() > 0 {}
                asleep = s.sleeps();
                if !asleep {
                    while s.take_one() > 0 {}
                }
            }
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            let (parked, wakes) = s.check();
            assert_eq!(usize::from(asleep), parked + wakes, "a place or a wake that belongs to nobody");
        });
    }

    /// Two workers are parked; the one that is woken first gets up while two producers push.
    fn gets_up(twin: Twin) {
        loom::model(move || {
            let s = Shared::new(twin, 2);
            let worker = thread::spawn({
                let s = s.clone();
                move || {
                    // If its wake comes later it gets up after everything: nothing to be seen then.
                    let woken = s.wakes.compare_exchange(1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                    if woken { s.get_up() } else { 0 }
                }
            });
            let producers = producers(&s);
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            worker.join().unwrap();
            // Whoever is on its way gets up now.
            while s.wakes.load(Ordering::Acquire) > 0 {
                s.wakes.fetch_sub(1, Ordering::AcqRel);
                s.get_up();
            }
            s.check();
        });
    }

    /// Two workers go to sleep while two producers push; each takes at most one task, for good.
    fn both_fall_asleep(twin: Twin) {
        loom::model(move || {
            let s = Shared::new(twin, 0);
            let producers = producers(&s);
            let other = thread::spawn({
                let s = s.clone();
                move || if s.sleeps() { 0 } else { s.take_one() }
            });
            if !s.sleeps() {
                s.take_one();
            }
            producers.into_iter().for_each(|producer| producer.join().unwrap());
            other.join().unwrap();
            s.check();
        });
    }

    #[test]
    fn loom_no_push_is_slept_through() {
        falls_asleep(Twin::Right);
    }

    #[test]
    fn loom_a_woken_worker_wakes_the_next_one() {
        gets_up(Twin::Right);
    }

    #[test]
    fn loom_a_flag_taken_for_nothing_turns_nobody_away() {
        both_fall_asleep(Twin::Right);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_check_before_announcement() {
        falls_asleep(Twin::CheckThenAnnounce);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_fence_in_the_producer() {
        falls_asleep(Twin::NoProducerFence);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_fence_in_the_worker() {
        falls_asleep(Twin::NoWorkerFence);
    }

    #[test]
    #[should_panic(expected = "belongs to nobody")]
    fn loom_twin_going_on_without_its_own_place() {
        falls_asleep(Twin::Phantom);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_chain() {
        gets_up(Twin::NoChain);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_the_flag_cleared_after_the_look() {
        gets_up(Twin::LateArrival);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_second_look_after_the_flag() {
        both_fall_asleep(Twin::NoSecondLook);
    }
}
