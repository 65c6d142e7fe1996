//! A nap before the wait, so that one wait brings the events of several.
//!
//! Where handlers run on other threads, a reactor that waits at once is woken for an event or two, again and again, and
//! each time it takes a CPU from those who serve them. After a pass that ran no task of its own it may sleep for a moment
//! first. How long adapts: longer while naps pay (the next wait brings several events), half as long whenever one brought
//! a single event or a post had to wait for its end.
//!
//! State: how long the next nap is. Who touches it: its reactor. Thread class: pure, but for [`Reactor::nap_if_it_pays`],
//! which blocks: with epoll_wait the only place of the loop that does. Laws: 7 (the reactor counts as awake meanwhile,
//! and every source is looked at again before it waits).

use super::Reactor;
use crate::exec::home::Stage;
use crate::stats::Count;
use crate::sys;
use crate::time;
use std::time::Duration;

/// The first nap of a row, in microseconds; less is none.
const LEAST_US: u32 = 4;

/// See the module's text. In microseconds.
#[derive(Debug)]
pub(super) struct Moderation {
    most: u32,
    next: u32,
    napped: bool,
}

impl Moderation {
    pub(super) fn new(most: Duration) -> Self {
        Self { most: u32::try_from(most.as_micros()).unwrap_or(u32::MAX), next: 0, napped: false }
    }

    /// A wait brought `events`, `posted` says whether messages of other threads were there, and `ran` polls were made.
    fn came(&mut self, events: usize, posted: bool, ran: usize) {
        self.next = match (events > 1 && !posted, self.next) {
            _ if ran > 0 => 0,
            // It begins without a nap: several events came by themselves.
            (true, 0) => LEAST_US.min(self.most),
            (true, next) if self.napped => (2 * next).min(self.most),
            (true, next) => next,
            (false, next) if next / 2 < LEAST_US => 0,
            (false, next) => next / 2,
        };
        self.napped = false;
    }

    /// The nap to be taken now, if there is one and `fits` lets it be: one that is not taken has not paid.
    fn nap(&mut self, fits: impl FnOnce(Duration) -> bool) -> Option<Duration> {
        let nap = Duration::from_micros(self.next.into());
        self.napped = self.next > 0 && fits(nap);
        self.napped.then_some(nap)
    }
}

impl Reactor {
    /// At the end of a pass that `ran` so many polls of tasks.
    #[inline(always)]
    pub(super) fn moderate(&mut self, events: usize, posted: bool, ran: usize) {
        if self.moderation.most > 0 {
            self.moderation.came(events, posted, ran);
            if ran == 0 {
                self.nap_if_it_pays();
            }
        }
    }

    #[inline(never)]
    fn nap_if_it_pays(&mut self) {
        let home = &self.home;
        if self.is_runnable() || home.has_wakes() || home.has_messages() || home.stage() > Stage::Running {
            return;
        }
        // A timer is not to be late for it.
        let timers = &self.timers;
        let in_time = |nap| timers.next_deadline().is_none_or(|at| at.saturating_duration_since(time::now()) >= nap);
        let Some(nap) = self.moderation.nap(in_time) else { return };
        self.home.counts.add_own(Count::Naps, 1);
        sys::clock::nap(nap);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn naps(most_us: u64, passes: &[(usize, bool)]) -> Vec<u64> {
        let mut moderation = Moderation::new(Duration::from_micros(most_us));
        let mut nap = |&(events, posted)| {
            moderation.came(events, posted, 0);
            moderation.nap(|_| true).map_or(0, |nap| nap.as_micros() as u64)
        };
        passes.iter().map(&mut nap).collect()
    }

    #[test]
    fn a_nap_grows_while_it_pays_and_is_halved_to_nothing() {
        let several = [(2, false); 6];
        assert_eq!(naps(50, &several), [4, 8, 16, 32, 50, 50]);
        assert_eq!(naps(3, &several[..2]), [3, 3], "never longer than was asked for");
        let one = [(9, false), (9, false), (9, false), (1, false), (1, false), (1, false), (1, false)];
        assert_eq!(naps(50, &one), [4, 8, 16, 8, 4, 0, 0]);
        let posted = [(9, false), (9, false), (9, true), (9, true), (9, true)];
        assert_eq!(naps(50, &posted), [4, 8, 4, 0, 0]);
        assert_eq!(naps(50, &[(0, false), (1, false), (1, true)]), [0, 0, 0]);
    }

    /// What came without a nap before it says nothing about naps; and a pass with tasks of its own begins anew.
    #[test]
    fn only_naps_make_it_longer() {
        let mut moderation = Moderation::new(Duration::from_micros(50));
        for _ in 0..5 {
            moderation.came(9, false, 0);
        }
        assert_eq!(moderation.nap(|_| true), Some(Duration::from_micros(4)));
        moderation.came(9, false, 1);
        assert_eq!(moderation.nap(|_| true), None);
    }

    /// A nap for which a timer was too near has not been taken, and what came without it says nothing.
    #[test]
    fn a_nap_that_was_not_taken_has_not_paid() {
        let mut moderation = Moderation::new(Duration::from_micros(50));
        for _ in 0..5 {
            moderation.came(9, false, 0);
            assert_eq!(moderation.nap(|nap| nap < Duration::from_micros(4)), None);
        }
        assert_eq!(moderation.nap(|_| true), Some(Duration::from_micros(4)), "as long as at first");
        moderation.came(9, false, 0);
        assert_eq!(moderation.nap(|_| true), Some(Duration::from_micros(8)), "one that was taken and paid");
    }
}
