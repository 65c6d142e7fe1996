//! Deadlines and the read clock's guard.
//!
//! State: one armed deadline a connection, behind a mutex that guards no user code. Who touches it: the user sets and
//! clears, the timer that fires closes. Thread class: any thread. Laws: 9 (the timer holds the body weakly), 11.

use crate::conn::body::Body;
use crate::conn::ending;
use crate::error::{Clock, CloseReason};
use crate::stats::Count;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::sys;
use crate::time::{self, Sleep};
use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// The deadline of a connection.
#[derive(Default)]
pub(crate) struct Slot {
    /// Counts the settings: a look that began under an earlier one puts nothing back.
    epoch: u32,
    armed: Option<Box<Armed>>,
}

struct Armed {
    sleep: Sleep,
    what: &'static str,
}

/// What the timer wakes: it holds the connection weakly, so that an armed deadline keeps nothing open.
struct Alarm(Weak<Body>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(body) = self.0.upgrade() {
            look(&body);
        }
    }
}

/// Sets, moves or (with `None`) clears the deadline.
pub(crate) fn set(body: &Arc<Body>, at: Option<Instant>, what: &'static str) {
    let next = at.map(|at| Box::new(Armed { sleep: time::sleep_until(at), what }));
    let old = {
        let mut slot = lock(&body.deadline);
        slot.epoch = slot.epoch.wrapping_add(1);
        std::mem::replace(&mut slot.armed, next)
    };
    // Its drop takes the timer's lock: not under ours.
    drop(old);
    if at.is_some() {
        look(body);
    }
}

/// Disarms it; for the end of the connection.
pub(crate) fn clear(body: &Body) {
    let old = {
        let mut slot = lock(&body.deadline);
        slot.epoch = slot.epoch.wrapping_add(1);
        slot.armed.take()
    };
    drop(old);
}

/// Looks whether the deadline has passed, and arms its timer if not. The timer is polled with no lock held: it may wake
/// at once, start a thread, wake a reactor.
fn look(body: &Arc<Body>) {
    let (epoch, armed) = {
        let mut slot = lock(&body.deadline);
        (slot.epoch, slot.armed.take())
    };
    // Another thread looks right now, or it was cleared.
    let Some(mut armed) = armed else { return };
    if body.flush.is_closed() {
        // Both directions are over: there is nothing left to end, and no timer is looked for (the reactor may be gone).
        return;
    }
    let waker = Waker::from(Arc::new(Alarm(Arc::downgrade(body))));
    if Pin::new(&mut armed.sleep).poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        let mut slot = lock(&body.deadline);
        if slot.epoch == epoch {
            slot.armed = Some(armed);
            return;
        }
        drop(slot);
        // Set anew or cleared meanwhile: this one is no more.
        drop(armed);
        return;
    }
    let what = armed.what;
    drop(armed);
    if lock(&body.deadline).epoch == epoch {
        ran_out(body, CloseReason::Timeout(Clock::Deadline(what)));
    }
}

/// A clock closes a connection: what waits on it resumes with the reason. With output under way the peer sees a reset
/// (what it did not get must not look whole), else a FIN.
pub(crate) fn ran_out(body: &Body, reason: CloseReason) {
    body.home.count(Count::Timeouts, 1);
    if !body.flush.is_idle() {
        ending::reset(body, reason);
        return;
    }
    body.store_reason(reason);
    let _ = sys::socket::shutdown_both(body.as_fd());
    body.end(reason);
}

/// While it lives, the connection's read clock stands still; from its drop on it counts anew. Guards nest.
#[derive(Debug)]
#[must_use = "the read clock runs again when the guard is dropped"]
pub struct ReadTimeoutSuspended {
    /// Weakly: a guard that is kept for long keeps no descriptor.
    body: Weak<Body>,
}

impl ReadTimeoutSuspended {
    pub(crate) fn new(body: &Arc<Body>) -> Self {
        body.suspended.fetch_add(1, Ordering::AcqRel);
        Self { body: Arc::downgrade(body) }
    }
}

impl Drop for ReadTimeoutSuspended {
    fn drop(&mut self) {
        let Some(body) = self.body.upgrade() else { return };
        // The new start first: a tick between the two must not see the old one.
        body.touch(crate::exec::local::here(&body.home));
        body.suspended.fetch_sub(1, Ordering::AcqRel);
    }
}
