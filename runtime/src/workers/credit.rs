//! The credit word of the blocking pool: who runs a job is decided by one compare-and-swap.
//!
//! State: one `AtomicU64`: credit, threads, overflow, closed. Who touches it: whoever submits, and the pool's threads.
//! Thread class: any thread. Law 13 (credit = parked - queued).
//!
//! All jobs wait in ONE queue beside this word. Every admission but `Full` and `Closed` promises exactly one push, and
//! every thread that is told [`Next::Take`], was just started, or whose credit was claimed takes exactly one, waiting
//! for it if the push is still on its way. Which thread takes which job does not matter. So the queue never holds a
//! job for which no thread is on its way, except for those that are counted as overflow; and these exist only while
//! nobody is parked, because both are in the same word: a submitter cannot count itself into the overflow while a
//! thread gives credit, and a thread cannot give credit past a counted overflow. Kept in two words, each side would
//! have to look at the other's again after its own step; that is one of the broken twins in the loom tests below.

use crate::sync::atomic::{AtomicU64, Ordering};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Credit {
    word: AtomicU64,
}

/// What becomes of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "an admission promises a push"]
pub(super) enum Place {
    /// A parked thread was claimed for it: push.
    Parked,
    /// There is room for another thread: start it, then push. If it cannot be started: [`Credit::not_started`].
    NewThread,
    /// Every thread is busy: push; the first one that finishes takes it.
    Overflow,
    /// The overflow is full.
    Full,
    /// The pool has stopped.
    Closed,
}

/// What a thread does after a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a thread that was told to take a job owes it"]
pub(super) enum Next {
    /// A job of the overflow is its own: take one from the queue.
    Take,
    /// It has given its credit: take one from the queue when there is one, or retire.
    Park,
    /// The pool has stopped and nothing is left for it: end.
    Leave,
}

/// What the word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// Parked threads that nobody has claimed.
    pub(super) credit: usize,
    /// Threads that exist or are being started.
    pub(super) threads: usize,
    /// Jobs that no thread has been promised to.
    pub(super) overflow: usize,
    pub(super) closed: bool,
}

/// The most threads and the most overflow that fit.
pub(super) const MAX_THREADS: usize = 0xffff;
pub(super) const MAX_OVERFLOW: usize = 0x7fff_ffff;

const CLOSED: u64 = 1 << 63;

impl Counts {
    fn unpack(word: u64) -> Self {
        Self {
            credit: (word & 0xffff) as usize,
            threads: (word >> 16 & 0xffff) as usize,
            overflow: (word >> 32 & 0x7fff_ffff) as usize,
            closed: word & CLOSED != 0,
        }
    }

    fn pack(self) -> u64 {
        let closed = if self.closed { CLOSED } else { 0 };
        self.credit as u64 | (self.threads as u64) << 16 | (self.overflow as u64) << 32 | closed
    }
}

impl Credit {
    pub(super) fn new() -> Self {
        Self { word: AtomicU64::new(0) }
    }

    /// One step: `step` decides on what it is shown; `None` leaves the word as it is.
    fn update<T>(&self, mut step: impl FnMut(&mut Counts) -> T) -> T {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let mut counts = Counts::unpack(word);
            let said = step(&mut counts);
            let new = counts.pack();
            if new == word {
                return said;
            }
            match self.word.compare_exchange_weak(word, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return said,
                Err(now) => word = now,
            }
        }
    }

    /// Submitter: where does a job go?
    pub(super) fn admit(&self, max_threads: usize, max_overflow: usize) -> Place {
        self.update(|counts| {
            if counts.closed {
                Place::Closed
            } else if counts.credit > 0 {
                counts.credit -= 1;
                Place::Parked
            } else if counts.threads < max_threads {
                counts.threads += 1;
                Place::NewThread
            } else if counts.overflow < max_overflow {
                counts.overflow += 1;
                Place::Overflow
            } else {
                Place::Full
            }
        })
    }

    /// Submitter that was told [`Place::NewThread`]: the thread could not be started. The job's other place, and how
    /// many jobs of the overflow now wait for threads that do not exist: take those out and settle them.
    pub(super) fn not_started(&self, max_overflow: usize) -> (Place, usize) {
        self.update(|counts| {
            counts.threads -= 1;
            if counts.credit > 0 {
                counts.credit -= 1;
                (Place::Parked, 0)
            } else if counts.threads > 0 && counts.overflow < max_overflow {
                counts.overflow += 1;
                (Place::Overflow, 0)
            } else if counts.threads > 0 {
                (Place::Full, 0)
            } else {
                (Place::Full, std::mem::take(&mut counts.overflow))
            }
        })
    }

    /// Thread, after a job: overflow comes before credit.
    pub(super) fn finished(&self) -> Next {
        self.update(|counts| {
            if counts.overflow > 0 {
                counts.overflow -= 1;
                Next::Take
            } else if counts.closed {
                counts.threads -= 1;
                Next::Leave
            } else {
                counts.credit += 1;
                Next::Park
            }
        })
    }

    /// Parked thread that would rather end: it must claim a credit first. False: all are claimed, so a job is on its
    /// way to it.
    pub(super) fn retire(&self) -> bool {
        self.update(|counts| {
            let free = counts.credit > 0;
            if free {
                counts.credit -= 1;
                counts.threads -= 1;
            }
            free
        })
    }

    /// Nothing is admitted from now on.
    pub(super) fn close(&self) {
        self.update(|counts| counts.closed = true);
    }

    /// Stop: whoever calls it takes this many jobs out of the queue, in the place of threads.
    pub(super) fn take_overflow(&self) -> usize {
        self.update(|counts| std::mem::take(&mut counts.overflow))
    }

    pub(super) fn counts(&self) -> Counts {
        Counts::unpack(self.word.load(Ordering::Acquire))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_job_goes_to_a_parked_thread_then_a_new_one_then_the_overflow() {
        let word = Credit::new();
        assert_eq!(word.admit(2, 1), Place::NewThread);
        assert_eq!(word.finished(), Next::Park);
        assert_eq!(word.admit(2, 1), Place::Parked);
        assert_eq!(word.admit(2, 1), Place::NewThread);
        assert_eq!(word.admit(2, 1), Place::Overflow);
        assert_eq!(word.admit(2, 1), Place::Full);
        assert_eq!(word.counts(), Counts { credit: 0, threads: 2, overflow: 1, closed: false });
        assert_eq!(word.finished(), Next::Take, "overflow comes before credit");
        assert_eq!(word.finished(), Next::Park);
        assert!(word.retire());
        assert!(!word.retire(), "the other thread is busy: there is no credit to claim");
        word.close();
        assert_eq!(word.admit(9, 9), Place::Closed);
        assert_eq!(word.finished(), Next::Leave);
        assert_eq!(word.counts(), Counts { closed: true, ..Counts::default() });
    }

    #[test]
    fn a_thread_that_does_not_start_leaves_no_job_without_one() {
        let word = Credit::new();
        assert_eq!(word.admit(1, 9), Place::NewThread);
        assert_eq!(word.admit(1, 9), Place::Overflow);
        assert_eq!(word.not_started(9), (Place::Full, 1), "the only thread: what waits for it is handed out");
        assert_eq!(word.counts(), Counts::default());
        assert_eq!(word.admit(2, 9), Place::NewThread);
        assert_eq!(word.admit(2, 9), Place::NewThread);
        assert_eq!(word.not_started(9), (Place::Overflow, 0), "the other thread takes it");
        assert_eq!(word.finished(), Next::Take);
        assert_eq!(word.finished(), Next::Park);
        assert_eq!(word.admit(2, 9), Place::Parked);
        assert_eq!(word.admit(2, 9), Place::NewThread);
        assert_eq!(word.finished(), Next::Park);
        assert_eq!(word.not_started(9), (Place::Parked, 0), "somebody has parked meanwhile");
    }

    #[test]
    fn the_counts_survive_packing_at_their_limits() {
        for closed in [false, true] {
            let counts = Counts { credit: MAX_THREADS, threads: MAX_THREADS, overflow: MAX_OVERFLOW, closed };
            assert_eq!(Counts::unpack(counts.pack()), counts);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[derive(Clone, Copy, PartialEq)]
    enum Twin {
        Right,
        /// Pushes to a parked thread without claiming it.
        NoClaim,
        /// Leaves without claiming its own credit.
        RetireUnclaimed,
        /// Counts itself into the overflow in a step of its own, and does not look for a parked thread again.
        OverflowUnchecked,
    }

    const THREADS: usize = 2;

    /// What a submitter does: jobs pushed for a parked thread, jobs pushed to the overflow.
    fn submit(word: &Credit, twin: Twin) -> (usize, usize) {
        match twin {
            Twin::NoClaim if word.counts().credit > 0 => return (1, 0),
            Twin::OverflowUnchecked if word.counts().credit == 0 => {
                word.word.fetch_add(1 << 32, Ordering::AcqRel);
                return (0, 1);
            }
            _ => {}
        }
        match word.admit(THREADS, 9) {
            Place::Parked => (1, 0),
            Place::Overflow => (0, 1),
            // One has retired: the job has a thread of its own, which does not come back here.
            Place::NewThread => (0, 0),
            other => panic!("{other:?}: the pool is open and has room"),
        }
    }

    /// What a thread does that ends a job: (jobs it takes, whether it is parked in the end).
    fn work(word: &Credit, twin: Twin, retires: bool) -> (usize, bool) {
        let mut taken = 0;
        loop {
            match word.finished() {
                // Its job is short.
                Next::Take => taken += 1,
                Next::Park if !retires => return (taken, true),
                Next::Park if twin == Twin::RetireUnclaimed => return (taken, false),
                Next::Park => return (taken, !word.retire()),
                Next::Leave => panic!("the pool is open"),
            }
        }
    }

    /// Both threads finish a job, one of them would retire; two submitters come meanwhile.
    fn run(twin: Twin) {
        loom::model(move || {
            let word = Arc::new(Credit::new());
            for _ in 0..THREADS {
                assert_eq!(word.admit(THREADS, 9), Place::NewThread);
            }
            let threads: Vec<_> = [false, true]
                .into_iter()
                .map(|retires| {
                    let word = word.clone();
                    thread::spawn(move || work(&word, twin, retires))
                })
                .collect();
            let first = submit(&word, twin);
            let second = submit(&word, twin);
            let (mut taken, mut parked) = (0, 0);
            for thread in threads {
                let (jobs, is_parked) = thread.join().unwrap();
                taken += jobs;
                parked += usize::from(is_parked);
            }
            let (claimed, overflowed) = (first.0 + second.0, first.1 + second.1);
            let counts = word.counts();
            assert!(claimed <= parked, "{claimed} jobs for {parked} parked threads: one is taken by nobody");
            assert!(counts.overflow == 0 || parked == claimed, "a job waits in the overflow while a thread is parked");
            assert_eq!(counts.credit, parked - claimed, "credit = parked - queued");
            assert_eq!(overflowed, taken + counts.overflow);
        });
    }

    #[test]
    fn loom_no_job_waits_while_a_thread_is_parked() {
        run(Twin::Right);
    }

    #[test]
    #[should_panic(expected = "taken by nobody")]
    fn loom_twin_a_parked_thread_is_not_claimed() {
        run(Twin::NoClaim);
    }

    #[test]
    #[should_panic(expected = "credit = parked - queued")]
    fn loom_twin_retiring_without_its_own_credit() {
        run(Twin::RetireUnclaimed);
    }

    #[test]
    #[should_panic(expected = "overflow while a thread is parked")]
    fn loom_twin_overflow_without_a_second_look() {
        run(Twin::OverflowUnchecked);
    }
}
