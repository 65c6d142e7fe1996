//! One wheel that threads share: arming, firing, and which driver a thread uses.
//!
//! Job: keep deadlines for one loop (a reactor's, or the timer thread's), wake what is due, wake the loop when it
//! would sleep too long. State: the table below. Thread class: any thread; `fire` by the loop. Laws: 9, 10, 12.
//!
//! | field | written | read | guarded by |
//! |---|---|---|---|
//! | `state` | any thread | any thread | its lock; no user code inside (law 10) |
//! | `next` | under the lock | the loop, any time | atomic |
//! | `seen`: the tick of the last `fire`, a hint | whoever fires | arming | atomic |
//! | `near`: what is past this tick is far ahead | the loop | the loop | atomic |
//! | `wake_panics` | whoever fires | anyone | atomic |
//!
//! 1. `next` is a tick before which nothing is due: what the loop may sleep until. Only arming lowers it, and
//!    whoever lowers it on a thread that does not run the loop calls `notify` after unlocking. `notify` must order
//!    itself against the loop's look at `next_deadline` (a lock, or the fence of law 7): one of the two sees the other.
//! 2. A waker is cloned before the lock and dropped or called after it.
//! 3. Once shut, a driver takes nothing: who arms gets its waker back and goes elsewhere (law 12).

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, take};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
// std atomic: the locks here order what matters; these protocols are not modelled.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use super::clock::Epoch;
use super::wheel::{Key, Wheel};

/// `next` while nothing is armed; later than every tick.
const NEVER: u64 = u64::MAX;
/// How many entries one critical section of `fire` looks at.
const BATCH: usize = 256;
/// A second: what is further ahead than this is not compared with the clock before it is armed.
const FAR_TICKS: u64 = 1000;

/// See the module's text.
pub(crate) struct Driver {
    epoch: Epoch,
    next: AtomicU64,
    seen: AtomicU64,
    near: AtomicU64,
    state: Mutex<State>,
    wake_panics: AtomicU64,
    notify: Box<dyn Fn() + Send + Sync>,
}

struct State {
    wheel: Wheel<Waker>,
    shut: bool,
    /// The buffer of the last `fire`, at most BATCH long.
    spare: Vec<Waker>,
}

impl Driver {
    /// `notify` wakes the loop that calls `fire` (rule 1); it is called with no lock held and must not panic.
    pub(crate) fn new(notify: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self {
            epoch: Epoch::new(),
            next: AtomicU64::new(NEVER),
            seen: AtomicU64::new(0),
            near: AtomicU64::new(NEVER),
            state: Mutex::new(State { wheel: Wheel::new(), shut: false, spare: Vec::new() }),
            wake_panics: AtomicU64::new(0),
            notify,
        })
    }

    /// Makes this the driver of the calling thread, WHICH RUNS ITS LOOP: arming here never calls `notify`. Guards
    /// are dropped in the reverse order of their making.
    pub(crate) fn enter(self: &Arc<Self>) -> Entered {
        Entered::new(Some(Current { driver: Arc::clone(self), runs_here: true }))
    }

    /// Makes this the driver of a thread that does not run its loop: arming here notifies it as from any other.
    pub(crate) fn enter_remote(self: &Arc<Self>) -> Entered {
        Entered::new(Some(Current { driver: Arc::clone(self), runs_here: false }))
    }

    /// Until when the loop may sleep; `None`: nothing is armed. One load. Rounded up to the tick, so a loop that
    /// sleeps until then (its own timeout rounded up too) finds it due and does not spin.
    #[inline]
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        match self.next.load(Ordering::Acquire) {
            NEVER => None,
            tick => Some(self.epoch.instant_of(tick)),
        }
    }

    /// Wakes what is due at `now` and returns how many. One load when nothing is. What wakers arm meanwhile may wait
    /// for the next call.
    pub(crate) fn fire(&self, now: Instant) -> usize {
        let tick = self.epoch.tick_of_now(now);
        self.seen.store(tick, Ordering::Relaxed);
        self.near.store(tick.saturating_add(FAR_TICKS), Ordering::Relaxed);
        if tick < self.next.load(Ordering::Acquire) {
            return 0;
        }
        let mut state = self.lock();
        let armed = state.wheel.len();
        let mut batch = take(&mut state.spare);
        let mut woken = 0;
        loop {
            let done = state.wheel.expire(tick, BATCH, &mut batch);
            self.next.store(state.wheel.next_due().unwrap_or(NEVER), Ordering::Release);
            drop(state);
            woken += batch.len();
            for waker in batch.drain(..) {
                self.wake(waker);
            }
            state = self.lock();
            // Bounded, whatever the wakers do: no more than was armed when it began.
            if done || woken >= armed {
                state.spare = batch;
                return woken;
            }
        }
    }

    /// Takes nothing more, and wakes all that waits: a sleep polled after this finds another driver. Idempotent.
    pub(crate) fn shutdown(&self) {
        let mut all = Vec::new();
        let mut state = self.lock();
        state.shut = true;
        state.wheel.drain(&mut all);
        self.next.store(NEVER, Ordering::Release);
        drop(state);
        for waker in all {
            self.wake(waker);
        }
    }

    /// How many wake calls of this driver have panicked. The panic was caught and the pass went on.
    pub(crate) fn take_wake_panics(&self) -> u64 {
        self.wake_panics.swap(0, Ordering::Relaxed)
    }

    /// How many deadlines wait.
    #[cfg(test)]
    pub(super) fn armed(&self) -> usize {
        self.lock().wheel.len()
    }

    /// The tick at which `deadline` is due.
    #[inline]
    pub(super) fn tick_of(&self, deadline: Instant) -> u64 {
        self.epoch.tick_of_deadline(deadline)
    }

    /// The loop, as a pass begins: nothing is known to be far ahead until somebody looks at the clock, `fire` (which is not
    /// called with nothing armed) or a sleep.
    #[inline]
    pub(crate) fn begin_pass(&self) {
        self.near.store(NEVER, Ordering::Relaxed);
    }

    /// The loop's own thread has looked at the clock.
    #[inline]
    pub(super) fn looked(&self, now: Instant) {
        if self.near.load(Ordering::Relaxed) == NEVER {
            self.near.store(self.epoch.tick_of_now(now).saturating_add(FAR_TICKS), Ordering::Relaxed);
        }
    }

    /// For the loop's own thread: was this tick far ahead when the pass looked at the clock, if it did?
    #[inline]
    pub(super) fn is_far(&self, due: u64) -> bool {
        due > self.near.load(Ordering::Relaxed)
    }

    /// Keeps `waker` until the tick `due`; gives it back if the driver is shut (rule 3). One that has passed fires with
    /// the loop's next look.
    #[inline]
    pub(super) fn arm(&self, due: u64, waker: Waker, runs_here: bool) -> Result<Key, Waker> {
        let mut state = self.lock();
        if state.shut {
            return Err(waker);
        }
        let key = state.wheel.insert(self.seen.load(Ordering::Relaxed), due, waker);
        let lowered = self.lower_next(due);
        drop(state);
        if lowered && !runs_here {
            (self.notify)();
        }
        Ok(key)
    }

    /// Moves a deadline to the tick `due`. Gone (fired, shut): nothing happens.
    pub(super) fn rearm(&self, key: Key, due: u64) {
        let mut state = self.lock();
        let lowered = state.wheel.rearm(key, due) && self.lower_next(due);
        drop(state);
        if lowered && !self.runs_here() {
            (self.notify)();
        }
    }

    /// A poll that found itself registered: brings the waker up to date. False: the entry has gone.
    pub(super) fn refresh(&self, key: Key, waker: &Waker) -> bool {
        let mut state = self.lock();
        let Some(kept) = state.wheel.payload(key) else { return false };
        if kept.will_wake(waker) {
            return true;
        }
        drop(state);
        let mut waker = waker.clone();
        let mut state = self.lock();
        // It may have gone in between.
        let kept = state.wheel.payload(key).map(|kept| std::mem::swap(kept, &mut waker)).is_some();
        drop(state);
        drop(waker);
        kept
    }

    /// Takes a deadline out. Gone already: nothing happens.
    pub(super) fn cancel(&self, key: Key) {
        let mut state = self.lock();
        let cancelled = state.wheel.cancel(key);
        if let Some((due, _)) = &cancelled {
            // Saves the loop a wake for nothing. What is left as it was is still a tick before which nothing is due.
            if state.wheel.is_empty() {
                self.next.store(NEVER, Ordering::Release);
            } else if *due == self.next.load(Ordering::Relaxed) {
                let start = state.wheel.next_start().unwrap_or(NEVER);
                self.next.store(start.max(*due), Ordering::Release);
            }
        }
        drop(state);
        drop(cancelled);
    }

    /// Under the lock: is `due` before what the loop sleeps until?
    #[inline]
    fn lower_next(&self, due: u64) -> bool {
        let lowered = due < self.next.load(Ordering::Relaxed);
        if lowered {
            self.next.store(due, Ordering::Release);
        }
        lowered
    }

    /// Does the calling thread run this driver's loop?
    #[inline]
    pub(super) fn runs_here(&self) -> bool {
        with_current(|current| current.is_some_and(|c| c.runs_here && std::ptr::eq(&*c.driver, self)))
    }

    fn wake(&self, waker: Waker) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
            self.wake_panics.fetch_add(1, Ordering::Relaxed);
            // A payload may panic as it is dropped. One that does so again is left to leak.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                let _leaked = ManuallyDrop::new(again);
            }
        }
    }

    /// No user code runs under this lock, so what a panic left behind is whole.
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("next_deadline", &self.next_deadline()).finish_non_exhaustive()
    }
}

/// A thread's driver.
#[derive(Clone)]
pub(super) struct Current {
    pub(super) driver: Arc<Driver>,
    /// Is this the thread that calls `fire`?
    pub(super) runs_here: bool,
}

thread_local! {
    // ManuallyDrop: without a destructor the cell can be used while the thread tears down (law 9). What a leaked
    // guard leaves in it leaks with it.
    static CURRENT: Cell<ManuallyDrop<Option<Current>>> = const { Cell::new(ManuallyDrop::new(None)) };
}

/// The calling thread's driver, if it has one.
#[inline]
pub(super) fn current() -> Option<Current> {
    with_current(|current| current.cloned())
}

/// `look` must not use the cell: it sees an empty one.
#[inline]
fn with_current<R>(look: impl FnOnce(Option<&Current>) -> R) -> R {
    CURRENT.with(|cell| {
        let current = cell.take();
        let seen = look(current.as_ref());
        cell.set(current);
        seen
    })
}

/// While it lives, the thread that made it has a driver; then what it had before.
#[must_use = "the thread has this driver only while the guard lives"]
pub(crate) struct Entered {
    before: Option<Current>,
    /// It belongs to its thread.
    not_send: PhantomData<Rc<()>>,
}

impl Entered {
    fn new(current: Option<Current>) -> Self {
        Self { before: Self::swap(current), not_send: PhantomData }
    }

    fn swap(current: Option<Current>) -> Option<Current> {
        CURRENT.with(|cell| ManuallyDrop::into_inner(cell.replace(ManuallyDrop::new(current))))
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Dropped outside the cell: it may be the last handle of its driver.
        drop(Self::swap(self.before.take()));
    }
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}
