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

/// An armed deadline.
pub(crate) struct Deadline {
    sleep: Sleep,
    what: &'static str,
}

/// What the timer wakes: it holds the connection weakly, so that an armed deadline keeps nothing open.
struct Alarm(Weak<Body>);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        if let Some(body) = self.0.upgrade() {
            check(&body);
        }
    }
}

/// Sets, moves or (with `None`) clears the deadline.
pub(crate) fn set(body: &Arc<Body>, at: Option<Instant>, what: &'static str) {
    let next = at.map(|at| Box::new(Deadline { sleep: time::sleep_until(at), what }));
    let old = std::mem::replace(&mut *lock(&body.deadline), next);
    // Its drop takes the timer's lock: not under ours.
    drop(old);
    if at.is_some() {
        check(body);
    }
}

/// Looks whether the deadline has passed, and arms its timer if not.
fn check(body: &Arc<Body>) {
    let waker = Waker::from(Arc::new(Alarm(Arc::downgrade(body))));
    let mut slot = lock(&body.deadline);
    let Some(deadline) = &mut *slot else { return };
    if body.flush.is_closed() {
        // Both directions are over: there is nothing left to end, and no timer is kept for it.
        let unused = slot.take();
        drop(slot);
        drop(unused);
        return;
    }
    if Pin::new(&mut deadline.sleep).poll(&mut Context::from_waker(&waker)) == Poll::Pending {
        return;
    }
    let what = deadline.what;
    let passed = slot.take();
    drop(slot);
    drop(passed);
    ran_out(body, CloseReason::Timeout(Clock::Deadline(what)));
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
    body: Arc<Body>,
}

impl ReadTimeoutSuspended {
    pub(crate) fn new(body: Arc<Body>) -> Self {
        body.suspended.fetch_add(1, Ordering::AcqRel);
        Self { body }
    }
}

impl Drop for ReadTimeoutSuspended {
    fn drop(&mut self) {
        // The new start first: a tick between the two must not see the old one.
        self.body.touch(crate::exec::local::here(&self.body.home));
        self.body.suspended.fetch_sub(1, Ordering::AcqRel);
    }
}
