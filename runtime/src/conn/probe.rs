//! Whether a recv before a park pays: off the reactor a park that was not needed costs a wake through the reactor, and a
//! recv that finds nothing costs a system call.
//!
//! State: the reader's own, never shared. Thread class: any thread, one at a time. Laws: 1 ("off the reactor one recv may
//! be tried before parking").
//!
//! After a hit every park is tried again; after misses the pauses double, so that a connection on which it never pays makes
//! less than one recv in a hundred for nothing. Going to the back of the executor's queue first, so that the next request
//! may have come, was measured and is not done: a poll more a request (260 instructions) and no more hits.

/// Parks without a try between two tries, at most.
const LONGEST_PAUSE: u8 = 127;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Probe {
    /// Parks until the next try.
    pause: u8,
    /// How long the pause is after the next miss.
    next_pause: u8,
    /// The last try has not missed.
    is_out: bool,
    /// The last recv found nothing: to try again at once is of no use.
    is_dry: bool,
}

impl Probe {
    /// About to park: is a recv to be tried first?
    #[cold]
    pub(super) fn tries(&mut self) -> bool {
        if std::mem::take(&mut self.is_out) {
            // It brought something.
            self.next_pause = 0;
        }
        if std::mem::take(&mut self.is_dry) {
            return false;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        self.is_out = true;
        true
    }

    /// A recv found nothing. True: it was a try.
    pub(super) fn missed(&mut self) -> bool {
        self.is_dry = true;
        let was_out = std::mem::take(&mut self.is_out);
        if was_out {
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause + 1).min(LONGEST_PAUSE);
        }
        was_out
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// One read that finds nothing known: a try that misses, or a park. True: it tried.
    fn misses(probe: &mut Probe) -> bool {
        let tried = probe.tries();
        if tried {
            assert!(probe.missed());
            assert!(!probe.tries(), "tried again behind a recv that found nothing");
        }
        tried
    }

    #[test]
    fn tries_that_never_hit_become_rare() {
        let mut probe = Probe::default();
        let tried = (0..10_000).filter(|_| misses(&mut probe)).count();
        assert!((78..90).contains(&tried), "{tried} tries for nothing of 10000");
    }

    #[test]
    fn after_a_hit_every_park_is_tried() {
        let mut probe = Probe::default();
        let first = (0..1000).filter(|_| misses(&mut probe)).count();
        assert!(first < 20);
        while !probe.tries() {}
        for turn in 0..100 {
            assert!(probe.tries(), "turn {turn} behind a hit");
        }
        assert!(probe.missed());
        assert!(!probe.tries() && probe.tries(), "one miss behind hits costs one pause of nothing");
    }

    #[test]
    fn a_recv_that_was_asked_for_is_no_try() {
        let mut probe = Probe::default();
        assert!(!probe.missed());
        assert!(!probe.tries(), "the socket was just seen to be empty");
        assert!(probe.tries());
    }
}
