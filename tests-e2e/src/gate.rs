//! Job: let a test thread decide when a handler goes on, without a sleep on either side.
//! State owned: a flag and the wakers that wait for it. Thread class: any thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// A gate that starts closed and opens once. Clones share it.
///
/// [`Gate::wait`] is for handlers, [`Gate::wait_blocking`] for test threads. It also serves the
/// other way round: a handler opens it to say "I am here".
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    opened: Condvar,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the gate and wakes everybody. Wakers run after the lock is let go.
    pub fn open(&self) {
        let waiting = {
            let mut state = self.lock();
            state.open = true;
            std::mem::take(&mut state.waiting)
        };
        self.0.opened.notify_all();
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether the gate is open.
    pub fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Waits for the gate inside a task.
    pub fn wait(&self) -> GateWait {
        GateWait(self.clone())
    }

    /// Waits for the gate on this thread; false when `within` passed first.
    #[must_use]
    pub fn wait_blocking(&self, within: Duration) -> bool {
        let state = self.lock();
        let waited = self.0.opened.wait_timeout_while(state, within, |s| !s.open);
        waited.map(|(state, _)| state.open).unwrap_or(false)
    }

    /// Waits on this thread until `count` tasks wait in front of the gate; false when `within` passed first.
    #[must_use]
    pub fn wait_waiting(&self, count: usize, within: Duration) -> bool {
        let state = self.lock();
        let waited = self.0.arrived.wait_timeout_while(state, within, |s| s.waiting.len() < count);
        waited.map(|(state, _)| state.waiting.len() >= count).unwrap_or(false)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The future of [`Gate::wait`]. Cancel safe: a waker that is left behind costs a spurious wake.
#[derive(Debug)]
#[must_use = "a future does nothing unless awaited"]
pub struct GateWait(Gate);

impl Future for GateWait {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if state.open {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|w| w.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
            self.0.0.arrived.notify_all();
        }
        Poll::Pending
    }
}
