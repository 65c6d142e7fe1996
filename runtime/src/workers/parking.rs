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
pub(super) struct Places {
    pub(super) parked: AtomicUsize,
    waking: AtomicBool,
}

impl Places {
    pub(super) fn new() -> Self {
        Self { parked: AtomicUsize::new(0), waking: AtomicBool::new(false) }
    }

    /// Worker: says that it is about to sleep. The queue must be looked at again AFTER this call.
    pub(super) fn announce(&self) {
        self.parked.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes a parked worker's place, if there is one.
    pub(super) fn claim(&self) -> bool {
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
    pub(super) fn claim_wake(&self, is_work: impl Fn() -> bool) -> bool {
        fence(Ordering::SeqCst);
        self.parked.load(Ordering::Relaxed) > 0 && self.claim_flag(is_work)
    }

    pub(super) fn claim_flag(&self, is_work: impl Fn() -> bool) -> bool {
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
    pub(super) fn arrive(&self) {
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
