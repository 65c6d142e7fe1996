//! `Sleep`: a future that is ready at a deadline.
//!
//! Job: register with a driver at the first poll that finds the deadline ahead, keep the waker up to date, let go.
//! State: the deadline and the registration. Thread class: any thread. Laws: 9, 10, 12.
//!
//! The clock alone decides: a poll at or after the deadline is ready whether or not a driver has fired, and a poll
//! before it is pending whatever woke the task. So a wake too many costs a poll, and no driver can make it early.
//! With one exception, which saves a reading of the clock (75 instructions; a poll in 28 ns, not 48) for all that is
//! seldom waited for to its end: on its loop's own thread, a deadline that lay more than a second ahead when the pass
//! first looked at the clock is pending. Should it have passed all the same (the pass has taken that second), the next
//! one wakes the task.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::driver::{Driver, current};
use super::wheel::Key;
use super::{clock, thread};

/// Waits for `duration` from NOW: the deadline is fixed here, not at the first poll.
///
/// Never ends early; usually ends within about a millisecond after the deadline, later when the reactor is busy.
/// Every duration is legal: one past 2^40 seconds, [`Duration::MAX`] too, is taken as that (some 34 000 years).
/// Any thread may call it, with or without a runtime; it neither fails nor panics.
pub fn sleep(duration: Duration) -> Sleep {
    sleep_until(clock::after(clock::now(), duration))
}

/// Waits until `deadline`; one in the past is ready at the first poll, or on a reactor whose pass has lasted for more than
/// a second, in its next pass. Otherwise as [`sleep`].
pub fn sleep_until(deadline: Instant) -> Sleep {
    Sleep { deadline, registration: None }
}

/// The future of [`sleep`] and [`sleep_until`].
///
/// `Send`, `Sync` and `Unpin`: it can be polled by one task, moved, and polled or dropped by another, on any thread;
/// the last poll's waker is the one that is woken. Polling it again after it was ready gives ready again.
///
/// Cancel safety: dropping it forgets the deadline, at once and from any thread, and has no other effect.
///
/// The deadline waits in the wheel of the thread's current runtime, else on one process-wide timer thread. When a
/// runtime stops, the sleeps that waited in it are woken, and those polled after that go on waiting elsewhere. If
/// the timer thread cannot be started (no more threads are allowed) the task is woken over and over instead: still
/// on time, but at the price of a busy thread.
///
/// ```
/// # epoxide::block_on(async {
/// use std::time::{Duration, Instant};
///
/// let sleep = epoxide::time::sleep(Duration::from_millis(2));
/// let deadline = sleep.deadline();
/// sleep.await;
/// assert!(Instant::now() >= deadline); // never early
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a sleep does nothing unless it is awaited or polled"]
pub struct Sleep {
    deadline: Instant,
    registration: Option<Registration>,
}

#[derive(Debug)]
struct Registration {
    driver: Arc<Driver>,
    key: Key,
    /// The tick of the deadline that it was made for: the present one is no earlier.
    due: u64,
}

impl Sleep {
    /// When it is ready.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Has the deadline passed?
    pub fn is_elapsed(&self) -> bool {
        clock::now() >= self.deadline
    }

    /// Moves the deadline, earlier or later, whether or not it has passed.
    ///
    /// Made to be called often: a later deadline only stores a number, and costs one wake for nothing when the old one
    /// passes. A task that waits on this sleep is still woken; one that has seen it ready must poll it again, as with
    /// a new one.
    pub fn reset(&mut self, deadline: Instant) {
        if let Some(registration) = &mut self.registration
            && deadline < self.deadline
        {
            registration.due = registration.driver.tick_of(deadline);
            registration.driver.rearm(registration.key, registration.due);
        }
        // A later one is not told to the driver: it wakes the task at the old time, and that poll registers anew.
        self.deadline = deadline;
    }

    /// Keeps the waker with the thread's driver. Ready: the deadline has passed.
    #[inline]
    fn register(&mut self, waker: &Waker) -> Poll<()> {
        let Some(current) = current() else { return self.register_elsewhere(waker) };
        let due = current.driver.tick_of(self.deadline);
        if !current.runs_here {
            if self.is_elapsed() {
                return Poll::Ready(());
            }
        } else if !current.driver.is_far(due) {
            let now = clock::now();
            if now >= self.deadline {
                return Poll::Ready(());
            }
            current.driver.looked(now);
        }
        match current.driver.arm(due, waker.clone(), current.runs_here) {
            Ok(key) => {
                self.registration = Some(Registration { driver: current.driver, key, due });
                Poll::Pending
            }
            // It has been shut down.
            Err(back) => {
                drop(back);
                self.register_elsewhere(waker)
            }
        }
    }

    /// With the process-wide timer thread.
    #[cold]
    fn register_elsewhere(&mut self, waker: &Waker) -> Poll<()> {
        if self.is_elapsed() {
            return Poll::Ready(());
        }
        let Ok(driver) = thread::driver() else {
            waker.wake_by_ref();
            return Poll::Pending;
        };
        let due = driver.tick_of(self.deadline);
        match driver.arm(due, waker.clone(), false) {
            Ok(key) => self.registration = Some(Registration { driver: Arc::clone(driver), key, due }),
            Err(back) => back.wake(),
        }
        Poll::Pending
    }

    fn disarm(&mut self) {
        if let Some(Registration { driver, key, .. }) = self.registration.take() {
            driver.cancel(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if let Some(Registration { driver, key, due }) = &this.registration {
            let is_far = driver.is_far(*due) && driver.runs_here();
            if !is_far && this.is_elapsed() {
                this.disarm();
                return Poll::Ready(());
            }
            if driver.refresh(*key, cx.waker()) {
                return Poll::Pending;
            }
            // It fired for a deadline that was moved since, or the driver was shut down.
            this.registration = None;
        }
        this.register(cx.waker())
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.disarm();
    }
}
