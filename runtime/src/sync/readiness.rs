//! Readiness of one direction of a watched descriptor, for any number of waiters.
//!
//! State: one word, `tick << 1 | ready`, and the wakers of those who wait, behind a mutex. Who touches it: the reactor
//! signals at edges, users look, wait and clear, from any thread. Thread class: any thread. Laws: 1 (readiness is what
//! an edge said and nobody has disproved since), 10 (wakers are cloned before and woken after the lock).
//!
//! ```text
//! user                                    reactor, at an edge
//!   tick = look()                           word = tick + 1, ready
//!   system call: EAGAIN                     take the waiters out, wake them
//!   clear(tick): only if no edge came since
//!   register, then look again
//! ```
//! An edge that comes between the look and the clear has another tick, so it is not lost: the twin without the tick is
//! in the loom tests. The waiter registers BEFORE it looks, the reactor marks BEFORE it takes the waiters out: whichever
//! of the two holds the lock second sees what the other did.

use super::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::Mutex;
#[cfg(not(loom))]
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::Waker;

const READY: u64 = 1;
const ONE_TICK: u64 = 2;

/// The edge that readiness was learnt from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tick(u64);

/// A waiter's place, kept by it from poll to poll.
#[derive(Debug, Default)]
pub(crate) struct Place(Option<u64>);

impl Place {
    /// The one place of the poll forms, which remember the last waker only.
    pub(crate) fn of_polls() -> Self {
        Self(Some(0))
    }
}

#[derive(Default)]
struct Waiters {
    last: u64,
    list: Vec<(u64, Waker)>,
}

/// See the module's text.
pub(crate) struct Readiness {
    word: AtomicU64,
    waiters: Mutex<Waiters>,
}

impl Readiness {
    pub(crate) fn new() -> Self {
        Self { word: AtomicU64::new(0), waiters: Mutex::new(Waiters::default()) }
    }

    /// The edge that said "ready", if nobody has found otherwise since.
    pub(crate) fn look(&self) -> Option<Tick> {
        let word = self.word.load(Ordering::Acquire);
        (word & READY != 0).then_some(Tick(word))
    }

    /// Looks, and waits in `place` if there is nothing to see.
    pub(crate) fn poll(&self, waker: &Waker, place: &mut Place) -> Option<Tick> {
        if let Some(tick) = self.look() {
            return Some(tick);
        }
        self.wait(waker.clone(), place);
        self.look()
    }

    /// Registers, in place of an earlier waker of the same place.
    fn wait(&self, waker: Waker, place: &mut Place) {
        let old = {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            let id = *place.0.get_or_insert_with(|| {
                waiters.last += 1;
                waiters.last
            });
            match waiters.list.iter_mut().find(|waiter| waiter.0 == id) {
                Some(waiter) => Some(std::mem::replace(&mut waiter.1, waker)),
                None => {
                    waiters.list.push((id, waker));
                    None
                }
            }
        };
        drop(old);
    }

    /// The waiter of a place is gone.
    pub(crate) fn forget(&self, place: &Place) {
        let Some(id) = place.0 else { return };
        let old = {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            let at = waiters.list.iter().position(|waiter| waiter.0 == id);
            at.map(|at| waiters.list.swap_remove(at))
        };
        drop(old);
    }

    /// A system call found nothing: not ready, unless an edge came after `tick`.
    pub(crate) fn clear(&self, tick: Tick) {
        // Err: another edge, or somebody cleared it already.
        let _ = self.word.compare_exchange(tick.0, tick.0 & !READY, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// An edge. The caller wakes whom it is given.
    #[must_use = "the waiters that were taken out must be woken"]
    pub(crate) fn signal(&self) -> Vec<(u64, Waker)> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            let next = word.wrapping_add(ONE_TICK) | READY;
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        std::mem::take(&mut self.waiters.lock().unwrap_or_else(PoisonError::into_inner).list)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn readiness_is_cleared_only_by_who_saw_the_last_edge() {
        let readiness = Readiness::new();
        let mut place = Place::default();
        assert_eq!(readiness.poll(Waker::noop(), &mut place), None);
        assert_eq!(readiness.signal().len(), 1);
        let first = readiness.look().unwrap();
        assert!(readiness.signal().is_empty(), "the waiter was taken out already");
        readiness.clear(first);
        let second = readiness.look().expect("an edge came after the first");
        readiness.clear(second);
        assert_eq!(readiness.look(), None);
    }

    #[test]
    fn a_place_holds_one_waker_and_a_forgotten_one_none() {
        let readiness = Readiness::new();
        let (mut one, mut two) = (Place::default(), Place::default());
        for _ in 0..3 {
            assert_eq!(readiness.poll(Waker::noop(), &mut one), None);
            assert_eq!(readiness.poll(Waker::noop(), &mut two), None);
        }
        readiness.forget(&one);
        assert_eq!(readiness.signal().len(), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicBool;
    use loom::thread;
    use std::task::Wake;

    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, Ordering::Release);
        }
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Variant {
        Right,
        /// Clears whatever the word says now.
        ClearWithoutTick,
        /// Looks, then registers, and does not look again.
        RegisterAfterLook,
    }

    /// One user drains a descriptor that the reactor fills twice, with an edge each. Every item is either seen by the
    /// user or announced to its waker.
    fn run(variant: Variant) {
        loom::model(move || {
            let readiness = Arc::new(Readiness::new());
            // The descriptor: what is there, and what "EAGAIN" is judged by. The first edge is there from the start.
            let items = Arc::new(AtomicU64::new(1));
            assert!(readiness.signal().is_empty());
            let reactor = {
                let (readiness, items) = (readiness.clone(), items.clone());
                thread::spawn(move || {
                    items.fetch_add(1, Ordering::AcqRel);
                    for (_, waker) in readiness.signal() {
                        waker.wake();
                    }
                })
            };
            let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
            let waker = Waker::from(flag.clone());
            let mut place = Place::default();
            let mut seen = 0;
            let parked = loop {
                let tick = match variant {
                    Variant::RegisterAfterLook => {
                        let tick = readiness.look();
                        if tick.is_none() {
                            readiness.wait(waker.clone(), &mut place);
                        }
                        tick
                    }
                    _ => readiness.poll(&waker, &mut place),
                };
                let Some(tick) = tick else { break true };
                match items.swap(0, Ordering::AcqRel) {
                    0 if variant == Variant::ClearWithoutTick => {
                        readiness.word.fetch_and(!READY, Ordering::AcqRel);
                    }
                    0 => readiness.clear(tick),
                    n => seen += n,
                }
                if seen == 2 {
                    break false;
                }
            };
            reactor.join().unwrap();
            let woken = flag.0.load(Ordering::Acquire);
            assert!(!parked || woken, "lost edge: {seen} of 2 items seen, and nobody woke the waiter");
        });
    }

    #[test]
    fn loom_no_edge_is_lost() {
        run(Variant::Right);
    }

    #[test]
    #[should_panic(expected = "lost edge")]
    fn loom_twin_clear_without_a_tick() {
        run(Variant::ClearWithoutTick);
    }

    #[test]
    #[should_panic(expected = "lost edge")]
    fn loom_twin_register_after_the_look() {
        run(Variant::RegisterAfterLook);
    }
}
