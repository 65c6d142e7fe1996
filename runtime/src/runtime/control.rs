//! Who still runs, what was cut, and who waits for the end.
//!
//! State: one record a runtime, behind a mutex. Who touches it: reactor threads as they end, anybody who waits.
//! Thread class: any thread. Laws: 10 (wakers are woken after unlock), 12.

use crate::reactor::Ended;
use crate::sync::lock;
use crate::sync::quiet::wake_all;
use crate::time;
use crate::workers::pools::Pools;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long a stop waits past its deadline for threads whose user code does not come back: nothing can interrupt it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Default)]
struct State {
    running: usize,
    cut: usize,
    fault: Option<io::Error>,
    waiters: Vec<Waker>,
    /// A stop has not waited for all.
    given_up: bool,
}

/// See the module's text.
pub(crate) struct Control {
    state: Mutex<State>,
    ended: Condvar,
    pub(crate) pools: Arc<Pools>,
}

impl Control {
    pub(crate) fn new(reactors: usize, pools: Arc<Pools>) -> Self {
        let state = State { running: reactors, ..State::default() };
        Self { state: Mutex::new(state), ended: Condvar::new(), pools }
    }

    /// A reactor has ended.
    pub(crate) fn reactor_ended(&self, ended: Ended, fault: Option<io::Error>) {
        let mut state = lock(&self.state);
        state.running -= 1;
        state.cut += ended.cut;
        if state.fault.is_none() {
            state.fault = fault;
        }
        // The first fault ends the wait as well: whoever waits decides what becomes of the others.
        let waiters = std::mem::take(&mut state.waiters);
        let was_last = state.running == 0;
        drop(state);
        if was_last {
            // Also when nobody waits: a shutdown's future may have been dropped, perhaps with a task of this runtime.
            self.pools.close();
        }
        self.ended.notify_all();
        wake_all(waiters);
    }

    pub(crate) fn is_over(&self) -> bool {
        lock(&self.state).running == 0
    }

    pub(crate) fn has_fault(&self) -> bool {
        lock(&self.state).fault.is_some()
    }

    pub(crate) fn take_fault(&self) -> Option<io::Error> {
        lock(&self.state).fault.take()
    }

    pub(crate) fn cut(&self) -> usize {
        lock(&self.state).cut
    }

    /// Waits until every reactor has ended, or `deadline`. True: they have.
    pub(crate) fn wait_until(&self, deadline: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        while state.running > 0 {
            state = match deadline {
                None => self.ended.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(time::now());
                    if left.is_zero() {
                        return false;
                    }
                    self.ended.wait_timeout(state, left).unwrap_or_else(std::sync::PoisonError::into_inner).0
                }
            };
        }
        true
    }

    /// Waits until every reactor has ended, but not for long past `deadline`, at which they end what they can.
    pub(crate) fn wait_past(&self, deadline: Instant) {
        if !self.wait_until(Some(deadline)) {
            let state = lock(&self.state);
            // Its result says nothing that `running` does not.
            drop(self.ended.wait_timeout_while(state, PATIENCE, |state| state.running > 0));
        }
    }

    /// Reactors that have not ended.
    pub(crate) fn running(&self) -> usize {
        lock(&self.state).running
    }

    /// A stop leaves threads behind: nobody is to wait for them any more.
    pub(crate) fn give_up(&self) {
        lock(&self.state).given_up = true;
    }

    pub(crate) fn has_given_up(&self) -> bool {
        lock(&self.state).given_up
    }

    /// Is everything over? If not, `waker` is woken when another reactor ends.
    pub(crate) fn poll_over(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        if state.running > 0 && !state.waiters.iter().any(|waiter| waiter.will_wake(&waker)) {
            state.waiters.push(waker);
        }
        state.running == 0
    }
}
