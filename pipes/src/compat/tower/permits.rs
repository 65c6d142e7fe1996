//! Permits, and who waits for one, first come first served.
//!
//! Job: a counting semaphore for `poll_ready`. State owned: the count and the wakers, under one mutex that guards no user
//! code. Thread class: any thread. Laws kept: 10 (a waker is cloned before the lock, woken and dropped after it; its panic
//! is not that of the call which ends).
//!
//! A permit that comes back is handed to the first waiter (it is marked in `waiting`), not put up for whoever comes
//! first; a waiter that leaves passes on what it was handed. Every step is under the mutex, so none is lost.

use crate::quiet::wake_all;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Permits(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    next_ticket: u64,
    waiting: VecDeque<Waiter>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    /// `None`: it was handed a permit and has been woken.
    waker: Option<Waker>,
}

/// One permit; it goes back when dropped.
#[derive(Debug)]
pub(super) struct Permit(Arc<Permits>);

/// A place in the queue; leaving it passes on what it was handed.
#[derive(Debug)]
pub(super) struct Ticket {
    permits: Arc<Permits>,
    number: Option<u64>,
}

impl Permits {
    pub(super) fn new(free: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { free, next_ticket: 0, waiting: VecDeque::new() })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self) {
        let waker = self.lock().release();
        wake_all(waker);
    }
}

impl State {
    /// Hands a permit to the first who waits for one. The waker is to be woken.
    fn release(&mut self) -> Option<Waker> {
        match self.waiting.iter_mut().find_map(|waiter| waiter.waker.take()) {
            Some(waker) => Some(waker),
            None => {
                self.free += 1;
                None
            }
        }
    }
}

impl Ticket {
    pub(super) fn new(permits: &Arc<Permits>) -> Self {
        Self { permits: Arc::clone(permits), number: None }
    }

    /// A permit, or the waker waits in the place that the first call took.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<Permit> {
        let waker = waker.clone();
        let mut state = self.permits.lock();
        let place = self.number.and_then(|number| state.waiting.iter().position(|waiter| waiter.ticket == number));
        let old = match place {
            Some(place) if state.waiting[place].waker.is_none() => {
                state.waiting.remove(place);
                drop(state);
                self.number = None;
                return Poll::Ready(Permit(Arc::clone(&self.permits)));
            }
            Some(place) => state.waiting[place].waker.replace(waker),
            // A free permit means that nobody waits.
            None if state.free > 0 => {
                state.free -= 1;
                drop(state);
                return Poll::Ready(Permit(Arc::clone(&self.permits)));
            }
            None => {
                let ticket = state.next_ticket;
                state.next_ticket += 1;
                state.waiting.push_back(Waiter { ticket, waker: Some(waker) });
                self.number = Some(ticket);
                None
            }
        };
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Some(number) = self.number.take() else { return };
        let mut state = self.permits.lock();
        let Some(place) = state.waiting.iter().position(|waiter| waiter.ticket == number) else { return };
        let left = state.waiting.remove(place).and_then(|waiter| waiter.waker);
        let next = if left.is_none() { state.release() } else { None };
        drop(state);
        drop(left);
        wake_all(next);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use epoxide_tests_e2e::Parker;
    use std::time::{Duration, Instant};

    fn take(ticket: &mut Ticket) -> Option<Permit> {
        match ticket.poll(Waker::noop()) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn first_come_first_served() {
        let permits = Permits::new(1);
        let held = take(&mut Ticket::new(&permits)).expect("one is free");
        let (mut first, mut second) = (Ticket::new(&permits), Ticket::new(&permits));
        assert!(take(&mut first).is_none() && take(&mut second).is_none());
        drop(held);
        assert!(take(&mut second).is_none(), "it was handed to the first");
        assert!(take(&mut Ticket::new(&permits)).is_none(), "nobody overtakes");
        let held = take(&mut first).expect("handed over");
        drop(held);
        drop(take(&mut second).expect("now the second"));
        assert_eq!(permits.lock().free, 1);
        assert!(permits.lock().waiting.is_empty());
    }

    #[test]
    fn a_waiter_that_leaves_passes_on_what_it_was_handed() {
        let permits = Permits::new(1);
        let held = take(&mut Ticket::new(&permits)).expect("one is free");
        let (mut first, mut second) = (Ticket::new(&permits), Ticket::new(&permits));
        assert!(take(&mut first).is_none() && take(&mut second).is_none());
        drop(held);
        drop(first);
        assert!(take(&mut second).is_some(), "passed on");
        assert_eq!(permits.lock().free, 1);
    }

    /// More threads than permits: everybody gets through, and never are more in than permits.
    #[test]
    fn the_panic_of_a_waker_is_not_that_of_the_call_that_ends() {
        struct Rude;
        impl std::task::Wake for Rude {
            fn wake(self: Arc<Self>) {
                panic!("provoked on purpose");
            }
        }
        let permits = Permits::new(1);
        let held = take(&mut Ticket::new(&permits)).expect("one is free");
        let mut waiting = Ticket::new(&permits);
        assert!(waiting.poll(&Waker::from(Arc::new(Rude))).is_pending());
        drop(held);
        assert!(take(&mut waiting).is_some(), "handed over all the same");
    }

    #[test]
    fn threads_share_them() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let (permits, inside, waited) = (Permits::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    let parker = Parker::new();
                    let waker = Waker::from(Arc::clone(&parker));
                    for _ in 0..500 {
                        let mut ticket = Ticket::new(&permits);
                        let deadline = Instant::now() + Duration::from_secs(60);
                        let permit = loop {
                            let seen = parker.wakes();
                            match ticket.poll(&waker) {
                                Poll::Ready(permit) => break permit,
                                Poll::Pending => {
                                    waited.fetch_add(1, Ordering::Relaxed);
                                    assert!(parker.park_past(seen, deadline), "a permit was lost");
                                }
                            }
                        };
                        assert!(inside.fetch_add(1, Ordering::AcqRel) < 2, "more in than permits");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::AcqRel);
                        drop(permit);
                    }
                });
            }
        });
        assert!(waited.load(Ordering::Relaxed) > 0, "nobody ever waited");
        assert_eq!(permits.lock().free, 2);
    }
}
