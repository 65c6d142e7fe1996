//! The coarse clock of a pass.
//!
//! Job: CLOCK_MONOTONIC_COARSE in milliseconds. State owned: none. Thread class: any thread.
//! Laws kept: none. Timers do not use the coarse clock: it lags by up to a
//! kernel tick (4 ms is common), which would fire them early.

// Not rustix's: it looks for the vDSO by itself, which crashes where there is none to be read (under valgrind).
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Milliseconds of CLOCK_MONOTONIC_COARSE, rounded down: for the sweep only. Read from the vDSO.
pub(crate) fn monotonic_coarse_ms() -> u64 {
    // The clock exists since Linux 2.6.32, so the fallback is not taken.
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE)
        .map_or(0, |now| now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000)
        .saturating_add(offset_ms())
}

/// Sleeps, at least so long. Not a wait: nothing ends it early.
pub(crate) fn nap(time: Duration) {
    // sleep: what it is for.
    std::thread::sleep(time);
}

/// The calling thread's sleeps end when they are to, and not up to 50 us later (PR_SET_TIMERSLACK of prctl(2)).
pub(crate) fn punctual() {
    // Refused: they end later.
    let _ = nix::sys::prctl::set_timerslack(1);
}

/// How far the fault seam has moved the clocks.
#[inline(always)]
pub(crate) fn offset_ms() -> u64 {
    #[cfg(epoxide_chaos)]
    return super::chaos::offset_ms();
    #[cfg(not(epoxide_chaos))]
    0
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn the_coarse_clock_follows_the_fine_one() {
        let (coarse, fine) = (monotonic_coarse_ms(), Instant::now());
        assert!(coarse > 0);
        // sleep: time is what is measured.
        std::thread::sleep(Duration::from_millis(20));
        let (coarse, fine) = (monotonic_coarse_ms() - coarse, fine.elapsed());
        assert!(fine >= Duration::from_millis(20));
        // A tick is at most 10 ms (HZ=100) and each reading may lag by one.
        assert!(coarse >= 8, "{coarse}");
        assert!(coarse <= fine.as_millis() as u64 + 12, "{coarse} {fine:?}");
    }
    /// UCL-01: each reading lies between two of the kernel's own clock, until twenty ticks were crossed.
    #[test]
    fn every_reading_lies_between_two_of_the_kernel_s() {
        let kernel = || {
            let now = clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).unwrap();
            now.tv_sec() as u64 * 1000 + now.tv_nsec() as u64 / 1_000_000
        };
        let begun = Instant::now();
        let (mut ticks, mut last) = (0, kernel());
        while ticks < 20 {
            let (before, ours, after) = (kernel(), monotonic_coarse_ms(), kernel());
            assert!(before <= ours && ours <= after, "{before} {ours} {after}");
            ticks += u32::from(after != last);
            last = after;
            assert!(begun.elapsed() < Duration::from_secs(20), "vacuity: only {ticks} ticks in 20 s");
        }
    }
}
