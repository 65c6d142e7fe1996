//! Deadlines and the read clock's guard.
//!
//! State: one armed deadline a connection, behind a mutex that guards no user code. Who touches it: the user sets and
//! clears, the timer that fires closes. Thread class: any thread. Laws: 9 (the timer holds the body weakly), 11.

use crate::conn::body::Body;
use crate::conn::ending;
use crate::conn::locator::Locator;
use crate::error::{Clock, CloseReason};
use crate::stats::Count;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::sys;
use crate::time::{self, Sleep};
use crate::trace;
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
    /// What was asked for, whoever has it in hand: it goes along when the connection moves.
    asked: Option<(Instant, &'static str)>,
    /// Somebody came to look while another look had it: the timer may have fired for the last time.
    missed: bool,
}

struct Armed {
    sleep: Sleep,
    what: &'static str,
}

/// What a look finds when it puts the deadline back.
enum Back {
    Kept,
    /// Kept, and to be looked at again.
    Missed,
    /// It was set anew or cleared meanwhile.
    Gone(Box<Armed>),
}

impl Slot {
    /// Whatever was armed comes back, to be dropped with no lock held.
    fn set(&mut self, asked: Option<(Instant, &'static str)>, next: Option<Box<Armed>>) -> Option<Box<Armed>> {
        self.asked = asked;
        self.epoch = self.epoch.wrapping_add(1);
        std::mem::replace(&mut self.armed, next)
    }

    /// Begins a look. `None`: it was cleared, or another look has it and is told.
    fn take(&mut self) -> Option<(u32, Box<Armed>)> {
        let armed = self.armed.take();
        self.missed = armed.is_none();
        Some((self.epoch, armed?))
    }

    fn put_back(&mut self, epoch: u32, armed: Box<Armed>) -> Back {
        if self.epoch != epoch {
            return Back::Gone(armed);
        }
        self.armed = Some(armed);
        if self.missed { Back::Missed } else { Back::Kept }
    }
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
    let old = lock(&body.deadline).set(at.map(|at| (at, what)), next);
    // Its drop takes the timer's lock: not under ours.
    drop(old);
    if at.is_some() {
        look(body);
    }
}

/// What was asked for.
pub(crate) fn asked(body: &Body) -> Option<(Instant, &'static str)> {
    lock(&body.deadline).asked
}

/// Disarms it; for the end of the connection.
pub(crate) fn clear(body: &Body) {
    take(body);
}

/// Disarms it and says what it was, for a connection that moves.
pub(crate) fn take(body: &Body) -> Option<(Instant, &'static str)> {
    let mut slot = lock(&body.deadline);
    let asked = slot.asked.take();
    let old = slot.set(None, None);
    drop(slot);
    drop(old);
    asked
}

/// Looks repeated for an alarm that came during a look. More than one is rare; where no timer is to be had, each poll
/// is such an alarm, and the caller must not be held.
const LOOKS: usize = 8;

/// Looks whether the deadline has passed, and arms its timer if not. The timer is polled with no lock held: it may wake
/// at once, start a thread, wake a reactor.
fn look(body: &Arc<Body>) {
    for _ in 0..LOOKS {
        let taken = lock(&body.deadline).take();
        let Some((epoch, mut armed)) = taken else { return };
        if body.flush.is_closed() {
            // Both directions are over: there is nothing left to end, and no timer is looked for (the reactor may be
            // gone).
            return;
        }
        let waker = Waker::from(Arc::new(Alarm(Arc::downgrade(body))));
        if Pin::new(&mut armed.sleep).poll(&mut Context::from_waker(&waker)) == Poll::Pending {
            let back = lock(&body.deadline).put_back(epoch, armed);
            match back {
                Back::Missed => continue,
                Back::Kept => return,
                Back::Gone(old) => return drop(old),
            }
        }
        let what = armed.what;
        drop(armed);
        if lock(&body.deadline).epoch == epoch {
            ran_out(body, CloseReason::Timeout(Clock::Deadline(what)));
        }
        return;
    }
}

/// Has nothing happened for longer than `read_timeout`, and does nothing hold that clock? Whether anybody waits is
/// another question.
pub(crate) fn read_clock_ran_out(body: &Body, now_ms: u32) -> bool {
    let limit = body.home.config.read_timeout;
    let held =
        body.locator.get().is_some_and(|at| at.is_suspended()) || !body.flush.is_idle() || body.flush.is_closed();
    if limit.is_zero() || held {
        return false;
    }
    let idle = now_ms.wrapping_sub(body.activity.load(Ordering::Relaxed));
    // A stamp from another thread may be a tick of the coarse clock ahead of this one.
    let idle = if idle > u32::MAX / 2 { 0 } else { idle };
    u128::from(idle) > limit.as_millis()
}

/// A clock closes a connection: what waits on it resumes with the reason. With output under way the peer sees a reset
/// (what it did not get must not look whole), else a FIN.
pub(crate) fn ran_out(body: &Body, reason: CloseReason) {
    if !body.socket.is_ours() {
        return;
    }
    body.home.count(Count::Timeouts, 1);
    trace::timed_out(body.home.index, body.key(), reason);
    if !body.flush.is_idle() {
        ending::reset(body, reason);
        return;
    }
    body.store_reason(reason);
    if body.socket.cut() {
        let _ = sys::socket::shutdown_both(body.as_fd());
    }
    body.end(reason);
}

/// While it lives, the connection's read clock stands still; from its drop on it counts anew. Guards nest.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let patience = conn.suspend_read_timeout();
/// // However long the peer thinks, this read does not time out.
/// # peer.write_all(b"x")?;
/// let data = conn.read().await?;
/// drop(patience);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the read clock runs again when the guard is dropped"]
pub struct ReadTimeoutSuspended {
    /// Weakly: a guard that is kept for long keeps no descriptor.
    at: Arc<Locator>,
}

impl ReadTimeoutSuspended {
    pub(crate) fn new(body: &Arc<Body>) -> Self {
        let at = Locator::of(body);
        at.suspend();
        Self { at }
    }
}

impl Drop for ReadTimeoutSuspended {
    fn drop(&mut self) {
        // The new start first: a tick between the two must not see the old one.
        self.at.apply(|body| body.touch(crate::exec::local::here(&body.home)));
        self.at.resume();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn armed(what: &'static str) -> Box<Armed> {
        Box::new(Armed { sleep: time::sleep_until(time::now()), what })
    }

    /// The timer fires while the look that armed it still holds the deadline: that look must look again, for no other
    /// alarm will come.
    #[test]
    fn an_alarm_during_a_look_is_not_lost() {
        let mut slot = Slot::default();
        assert!(slot.set(None, Some(armed("a"))).is_none());
        let (epoch, taken) = slot.take().unwrap();
        assert!(slot.take().is_none(), "two looks have it");
        assert!(matches!(slot.put_back(epoch, taken), Back::Missed));
        let (epoch, taken) = slot.take().unwrap();
        assert!(matches!(slot.put_back(epoch, taken), Back::Kept), "looked at again without an alarm");
    }

    #[test]
    fn a_deadline_that_was_set_anew_or_cleared_during_a_look_is_not_put_back() {
        let mut slot = Slot::default();
        drop(slot.set(None, Some(armed("old"))));
        let (epoch, taken) = slot.take().unwrap();
        assert!(slot.set(None, Some(armed("new"))).is_none());
        assert!(matches!(slot.put_back(epoch, taken), Back::Gone(old) if old.what == "old"));
        let (epoch, taken) = slot.take().unwrap();
        assert_eq!(taken.what, "new");
        drop(slot.set(None, None));
        assert!(matches!(slot.put_back(epoch, taken), Back::Gone(_)));
        assert!(slot.take().is_none());
    }
}
