//! `Interval`: ticks at a fixed period.
//!
//! Job: one `Sleep` that is reset at each tick, and what to do when ticks were missed. State: the sleep, the period, ticks
//! since it waited. Thread class: any thread. Laws: 8 (one that cannot catch up yields), 9, 10.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;

use super::clock;
use super::sleep::{Sleep, sleep_until};

/// Ticks every `period`; the first tick is due at once.
///
/// A period of zero is taken as 1 ms, the resolution of the wheel; one past 2^40 seconds is taken as that. Any thread
/// may call it; it neither fails nor panics.
pub fn interval(period: Duration) -> Interval {
    interval_at(clock::now(), period)
}

/// Ticks at `start` and every `period` after it. Otherwise as [`interval`].
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    let period = if period.is_zero() { Duration::from_millis(1) } else { period };
    Interval { sleep: sleep_until(start), period, missed: MissedTick::default(), in_a_row: 0 }
}

/// Ticks in a row that are ready at once before others get their turn.
const IN_A_ROW: u32 = 16;

/// What an [`Interval`] does when a tick is taken so late that the next one has been missed as well.
///
/// With a period of 10 and ticks due at 0, 10, 20, ..., where the tick of 10 is taken at 35:
///
/// ```
/// # epoxide::block_on(async {
/// use epoxide::time::{MissedTick, interval};
/// use std::time::Duration;
///
/// let mut ticks = interval(Duration::from_millis(1));
/// ticks.set_missed_tick(MissedTick::Skip);
/// ticks.tick().await;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum MissedTick {
    /// No tick is left out: the next ones follow at once until the interval has caught up (20 and 30 at 35, then 40).
    #[default]
    Burst,
    /// The schedule moves: the next tick is a period from now (45, 55, ...).
    Delay,
    /// Missed ticks are left out and the schedule stays (40, 50, ...).
    Skip,
}

/// Ticks at a fixed period: [`tick`](Interval::tick), or as an endless [`Stream`]. An item is the moment at which the
/// tick was due; it never comes before that.
///
/// Between two ticks nothing is armed unless it is polled. One that is behind yields to other tasks every 16 ticks. `Send`,
/// `Sync` and `Unpin`.
///
/// ```
/// # epoxide::block_on(async {
/// use std::time::{Duration, Instant};
///
/// let begin = Instant::now();
/// let mut ticks = epoxide::time::interval(Duration::from_millis(1));
/// for _ in 0..3 {
///     ticks.tick().await; // the first one at once
/// }
/// assert!(begin.elapsed() >= Duration::from_millis(2));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "an interval does nothing unless it is polled"]
pub struct Interval {
    sleep: Sleep,
    period: Duration,
    missed: MissedTick,
    /// Ticks since it last waited or yielded.
    in_a_row: u32,
}

impl Interval {
    /// The next tick.
    ///
    /// Cancel safety: a tick that was not returned is not lost; the next call returns it.
    pub fn tick(&mut self) -> Tick<'_> {
        Tick { interval: self }
    }

    /// Polls for the next tick; the last poll's waker is the one that is woken.
    pub fn poll_tick(&mut self, cx: &mut Context<'_>) -> Poll<Instant> {
        if self.in_a_row >= IN_A_ROW {
            // Its period is shorter than what is done at each tick: the task would never let go of its thread.
            self.in_a_row = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if Pin::new(&mut self.sleep).poll(cx).is_pending() {
            self.in_a_row = 0;
            return Poll::Pending;
        }
        self.in_a_row += 1;
        let due = self.sleep.deadline();
        self.sleep.reset(self.missed.next(due, clock::now(), self.period));
        Poll::Ready(due)
    }

    /// Starts anew: the next tick is a period from now.
    pub fn reset(&mut self) {
        self.sleep.reset(clock::after(clock::now(), self.period));
    }

    /// The time between two ticks.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// What happens to missed ticks; [`MissedTick::Burst`] unless it was set.
    pub fn missed_tick(&self) -> MissedTick {
        self.missed
    }

    /// Says what happens to missed ticks, from the next tick on.
    pub fn set_missed_tick(&mut self, missed: MissedTick) -> &mut Self {
        self.missed = missed;
        self
    }
}

impl Stream for Interval {
    type Item = Instant;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Instant>> {
        self.get_mut().poll_tick(cx).map(Some)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::MAX, None)
    }
}

/// The future of [`Interval::tick`].
///
/// ```
/// # epoxide::block_on(async {
/// let mut ticks = epoxide::time::interval(std::time::Duration::from_millis(1));
/// let due = ticks.tick().await; // when it was due, which may be a little ago
/// assert!(due <= std::time::Instant::now());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a tick is not waited for unless it is awaited or polled"]
pub struct Tick<'a> {
    interval: &'a mut Interval,
}

impl Future for Tick<'_> {
    type Output = Instant;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Instant> {
        self.get_mut().interval.poll_tick(cx)
    }
}

impl MissedTick {
    /// When the tick after the one of `due` comes, if that one is taken at `now`.
    fn next(self, due: Instant, now: Instant, period: Duration) -> Instant {
        let next = clock::after(due, period);
        if next >= now {
            return next;
        }
        match self {
            Self::Burst => next,
            Self::Delay => clock::after(now, period),
            Self::Skip => {
                // No division by zero: a period is at least 1 ns. Not past u64: it is less than the time since `due`.
                let into = now.saturating_duration_since(due).as_nanos() % period.as_nanos();
                if into == 0 {
                    return now;
                }
                let into = Duration::new((into / 1_000_000_000) as u64, (into % 1_000_000_000) as u32);
                clock::after(now, period.saturating_sub(into))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MissedTick;
    use std::time::{Duration, Instant};

    #[test]
    fn missed_ticks_follow_the_policy() {
        let zero = Instant::now();
        let at = |ms| zero + Duration::from_millis(ms);
        let next = |policy: MissedTick, due, now| policy.next(at(due), at(now), Duration::from_millis(10));
        for policy in [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip] {
            // Late, but the next tick is still ahead: the schedule stays.
            assert_eq!(next(policy, 10, 10), at(20), "{policy:?}");
            assert_eq!(next(policy, 10, 20), at(20), "{policy:?}");
        }
        assert_eq!(next(MissedTick::Burst, 10, 35), at(20));
        assert_eq!(next(MissedTick::Delay, 10, 35), at(45));
        assert_eq!(next(MissedTick::Skip, 10, 35), at(40));
        assert_eq!(next(MissedTick::Skip, 10, 30), at(30), "a tick that is due right now is not missed");
    }
}
