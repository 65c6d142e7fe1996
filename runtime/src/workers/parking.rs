//! Where the async workers sleep: no push into their run queue is slept through.
//!
//! State: a count of parked workers that nobody has claimed, and the wakes on their way to them. Who touches it: any
//! thread that pushes, the workers. Thread class: any thread; [`Parking::park`] blocks. Law 7, with several sleepers.
//!
//! ```text
//! producer                           worker
//!   push                               parked += 1
//!   fence(SeqCst)                      fence(SeqCst)
//!   if parked > 0: claim one (CAS),    re-check the queue; if it has work: claim one back and go on,
//!   and post a wake                    or, if all are claimed, a wake is on its way: take it
//! ```
//! Store-then-load on both sides (Dekker): at least one of the two sees the other. A worker that goes on without
//! claiming its own place leaves a phantom that the next producer wakes in vain.

use crate::sync::atomic::{AtomicUsize, Ordering, fence};
use crate::sync::lock;
use std::sync::{Condvar, Mutex, PoisonError};

/// The modelled half: who is parked.
#[derive(Debug)]
struct Places {
    parked: AtomicUsize,
}

impl Places {
    fn new() -> Self {
        Self { parked: AtomicUsize::new(0) }
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

    /// Producer, AFTER its push: has it claimed a worker, which it must then wake?
    fn claim_after_push(&self) -> bool {
        fence(Ordering::SeqCst);
        self.claim()
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Parking {
    places: Places,
    /// Wakes on their way: one for each place that was claimed by a producer.
    wakes: Mutex<usize>,
    bell: Condvar,
}

impl Parking {
    pub(super) fn new() -> Self {
        Self { places: Places::new(), wakes: Mutex::new(0), bell: Condvar::new() }
    }

    /// Producer, AFTER its push: wakes one parked worker, if there is one. No system call otherwise.
    #[inline]
    pub(super) fn wake_one(&self) {
        if self.places.claim_after_push() {
            self.post();
        }
    }

    /// Wakes every parked worker: something has changed that each must see, published before this call.
    pub(super) fn wake_all(&self) {
        while self.places.claim_after_push() {
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
    }

    /// Stand-in for the run queue, from atomics only.
    struct Shared {
        places: Places,
        items: [AtomicBool; 2],
        wakes: AtomicUsize,
    }

    fn produce(s: &Shared, i: usize, twin: Twin) {
        s.items[i].store(true, Ordering::Release);
        let claimed = if twin == Twin::NoProducerFence { s.places.claim() } else { s.places.claim_after_push() };
        if claimed {
            s.wakes.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn is_work(s: &Shared) -> bool {
        s.items.iter().any(|item| item.load(Ordering::Acquire))
    }

    fn take(s: &Shared) -> usize {
        s.items.iter().filter(|item| item.load(Ordering::Acquire) && item.swap(false, Ordering::AcqRel)).count()
    }

    /// One round of a worker's loop: true if it sleeps until a wake is posted.
    fn sleeps(s: &Shared, twin: Twin) -> bool {
        if twin == Twin::CheckThenAnnounce {
            let work = is_work(s);
            s.places.announce();
            return !(work && s.places.claim());
        }
        if twin == Twin::NoWorkerFence {
            s.places.parked.fetch_add(1, Ordering::Relaxed);
        } else {
            s.places.announce();
        }
        if is_work(s) && (twin == Twin::Phantom || s.places.claim()) {
            return false;
        }
        true
    }

    /// A worker goes to sleep while two producers push.
    fn run(twin: Twin) {
        loom::model(move || {
            let s = Arc::new(Shared {
                places: Places::new(),
                items: [AtomicBool::new(false), AtomicBool::new(false)],
                wakes: AtomicUsize::new(0),
            });
            let producers: Vec<_> = (0..2)
                .map(|i| {
                    let s = s.clone();
                    thread::spawn(move || produce(&s, i, twin))
                })
                .collect();
            let mut got = take(&s);
            let mut asleep = sleeps(&s, twin);
            if !asleep {
                // Awake: takes what there is and parks for good.
                got += take(&s);
                asleep = sleeps(&s, twin);
                if !asleep {
                    got += take(&s);
                }
            }
            for producer in producers {
                producer.join().unwrap();
            }
            fence(Ordering::SeqCst);
            let left = take(&s);
            let wakes = s.wakes.load(Ordering::Acquire);
            let parked = s.places.parked.load(Ordering::Acquire);
            assert!(!(asleep && left > 0 && wakes == 0), "lost wake: {left} items sleep");
            assert_eq!(usize::from(asleep), parked + wakes, "a place or a wake that belongs to nobody");
            assert_eq!(got + left, 2);
        });
    }

    #[test]
    fn loom_no_push_is_slept_through() {
        run(Twin::Right);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_check_before_announcement() {
        run(Twin::CheckThenAnnounce);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_fence_in_the_producer() {
        run(Twin::NoProducerFence);
    }

    #[test]
    #[should_panic(expected = "lost wake")]
    fn loom_twin_no_fence_in_the_worker() {
        run(Twin::NoWorkerFence);
    }

    #[test]
    #[should_panic(expected = "belongs to nobody")]
    fn loom_twin_going_on_without_its_own_place() {
        run(Twin::Phantom);
    }
}
