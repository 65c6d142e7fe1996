//! A wait on a member's writer that no task makes: whoever wakes it goes on, on its own thread.
//!
//! State: the future, until it is done. Who touches it: who arms it, and whoever makes progress on the writer. Thread
//! class: any thread. Laws: 9 (a waker that stays in a connection holds its member weakly), 10 (wakers run without
//! any lock).

use crate::hub::member::Inner;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Wake, Waker};

type Wait = Pin<Box<dyn Future<Output = ()> + Send>>;

/// See the module's text.
#[derive(Default)]
pub(super) struct Watch {
    wait: Mutex<Option<Wait>>,
}

impl Watch {
    /// Begins a wait. False: there is nothing to wait for. Otherwise the waker is called, and may be before this returns.
    pub(super) fn arm(&self, wait: Wait, waker: &Waker) -> bool {
        let mut slot = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        let old = slot.replace(wait);
        let done = poll(&mut slot, waker);
        drop(slot);
        drop(old);
        done.is_none()
    }

    /// After a wake: is the wait over? True once for each wait.
    pub(super) fn is_over(&self, waker: &Waker) -> bool {
        let mut slot = self.wait.lock().unwrap_or_else(PoisonError::into_inner);
        let done = poll(&mut slot, waker);
        drop(slot);
        done.is_some()
    }

    /// Nobody waits any more.
    pub(super) fn disarm(&self) {
        let old = self.wait.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(old);
    }
}

/// Polls what is there; a future that is done comes out, to be dropped after the lock.
fn poll(slot: &mut Option<Wait>, waker: &Waker) -> Option<Wait> {
    let wait = slot.as_mut()?;
    if wait.as_mut().poll(&mut Context::from_waker(waker)).is_ready() { slot.take() } else { None }
}

/// The connection has ended: its membership ends.
pub(super) struct OnEnd(pub(super) Weak<Inner>);

impl Wake for OnEnd {
    fn wake(self: Arc<Self>) {
        if let Some(member) = self.0.upgrade() {
            member.is_woken_by_the_end(&Waker::from(self));
        }
    }
}

/// The writer is empty: what waits in the hub moves on. Holds its member, so that what was accepted for one that has left
/// goes out; the connection lets go of the waker once there is room, or at its end.
pub(super) struct OnEmpty(pub(super) Arc<Inner>);

impl Wake for OnEmpty {
    fn wake(self: Arc<Self>) {
        let member = self.0.clone();
        member.is_woken_by_room(&Waker::from(self));
    }
}
