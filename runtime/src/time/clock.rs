//! Instants to ticks and back.
//!
//! Job: the one place of this room that reads the clock, and the rounding that keeps every deadline from being
//! early: a deadline is rounded UP to the tick, the present is rounded DOWN. State: none. Thread class: pure.

use std::time::{Duration, Instant};

/// The longest wait that is told from "for ever": 2^40 s, some 34 000 years. Longer ones are taken as this, so that
/// no sum of instants overflows and a longer wait never ends before a shorter one.
const FAR: Duration = Duration::from_secs(1 << 40);

/// CLOCK_MONOTONIC now, in full resolution (a few ns through the vDSO; see `clock_gettime(2)`).
#[inline]
pub(crate) fn now() -> Instant {
    #[cfg(epoxide_chaos)]
    return Instant::now() + Duration::from_millis(crate::sys::clock::offset_ms());
    #[cfg(not(epoxide_chaos))]
    Instant::now()
}

/// `from + wait`, saturating.
#[inline]
pub(crate) fn after(from: Instant, wait: Duration) -> Instant {
    // The second fallback is for an instant that the user has pushed to the end of the clock by hand.
    from.checked_add(wait.min(FAR)).unwrap_or(from)
}

/// Tick 0 of one wheel; a tick is one millisecond.
#[derive(Clone, Copy, Debug)]
pub(super) struct Epoch(Instant);

impl Epoch {
    /// The last tick. The number after it is free for "never".
    const LAST: u64 = u64::MAX - 1;

    pub(super) fn new() -> Self {
        Self(now())
    }

    /// The first tick that is not before `deadline`.
    #[inline]
    pub(super) fn tick_of_deadline(self, deadline: Instant) -> u64 {
        let since = deadline.saturating_duration_since(self.0);
        if since.as_secs() >= Self::LAST / 1000 {
            return Self::LAST;
        }
        // Two instructions less than `div_ceil`; it cannot overflow.
        #[allow(clippy::manual_div_ceil, reason = "counted: every timer that is armed comes by here")]
        let part = (since.subsec_nanos() + 999_999) / 1_000_000;
        since.as_secs() * 1000 + u64::from(part)
    }

    /// The last tick that is not after `now`.
    #[inline]
    pub(super) fn tick_of_now(self, now: Instant) -> u64 {
        let since = now.saturating_duration_since(self.0);
        let part = u64::from(since.subsec_millis());
        since.as_secs().saturating_mul(1000).saturating_add(part).min(Self::LAST)
    }

    /// When `tick` begins. The clock holds 2^63 seconds, so every tick has an instant.
    #[inline]
    pub(super) fn instant_of(self, tick: u64) -> Instant {
        self.0.checked_add(Duration::from_millis(tick)).unwrap_or_else(|| after(self.0, FAR))
    }
}

#[cfg(test)]
mod tests {
    use super::{Epoch, FAR, after};
    use std::time::Duration;

    #[test]
    fn deadlines_round_up_and_the_present_rounds_down() {
        let epoch = Epoch::new();
        for nanos in [0, 1, 999_999, 1_000_000, 1_000_001, 999_999_999, 1_000_000_000, 1_000_000_001] {
            let at = epoch.0 + Duration::from_nanos(nanos);
            assert_eq!(epoch.tick_of_deadline(at), nanos.div_ceil(1_000_000), "{nanos} ns up");
            assert_eq!(epoch.tick_of_now(at), nanos / 1_000_000, "{nanos} ns down");
            assert!(epoch.instant_of(epoch.tick_of_deadline(at)) >= at, "{nanos} ns: early");
        }
        assert_eq!(epoch.tick_of_deadline(epoch.0.checked_sub(Duration::from_secs(1)).unwrap()), 0);
    }

    #[test]
    fn the_longest_waits_saturate_in_order() {
        let epoch = Epoch::new();
        let longest = after(epoch.0, Duration::MAX);
        assert_eq!(longest, epoch.0 + FAR);
        assert!(after(epoch.0, Duration::from_secs(1 << 39)) < longest);
        // The end of the clock itself: no panic, a tick that never comes.
        let end = epoch.0.checked_add(Duration::from_secs((1 << 63) - (1 << 40))).unwrap();
        assert_eq!(after(end, Duration::MAX), end);
        assert_eq!(epoch.tick_of_deadline(end), Epoch::LAST);
        assert!(epoch.instant_of(Epoch::LAST) > longest);
    }
}
