//! Models of where workers sleep, each with its broken twins.
//!
//! State: none. Thread class: tests only. Laws: 7.

use super::parking::Places;
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
    /// Of several pushes with one wake, the wake comes before the last push.
    EarlyWake,
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

/// A reactor's batch: two pushes and one wake, while a worker goes to sleep.
fn one_wake_for_a_batch(twin: Twin) {
    loom::model(move || {
        let s = Shared::new(twin, 0);
        let reactor = thread::spawn({
            let s = s.clone();
            move || {
                s.items[0].store(true, Ordering::Release);
                if twin == Twin::EarlyWake {
                    s.wake_one();
                    s.items[1].store(true, Ordering::Release);
                } else {
                    s.items[1].store(true, Ordering::Release);
                    s.wake_one();
                }
            }
        });
        let other = thread::spawn({
            let s = s.clone();
            move || {
                if !s.sleeps() {
                    s.take_one();
                }
            }
        });
        if !s.sleeps() {
            s.take_one();
        }
        reactor.join().unwrap();
        other.join().unwrap();
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
fn loom_one_wake_serves_a_batch_of_pushes() {
    one_wake_for_a_batch(Twin::Right);
}

#[test]
#[should_panic(expected = "lost wake")]
fn loom_twin_a_push_behind_the_wake_of_its_batch() {
    one_wake_for_a_batch(Twin::EarlyWake);
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
