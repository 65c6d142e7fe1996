//! The read word: decides who looks at the socket's input next, and whom to wake.
//!
//! State: one word a connection. Who touches it: the one reader consumes and parks; takers (edge, close, reset,
//! deadline, drain, stop) signal, from any thread. Thread class: any thread. Laws: 1, 2.
//!
//! ```text
//! bits 0..1  state    Idle    no readiness known, nobody waits
//!                     Ready   an edge came (or somebody wants the reader to look)
//!                     Parked  the reader waits; the upper bits say who
//! bit  2     sticky   a short recv no longer proves that the socket is drained (law 2): read to EAGAIN
//! bit  3     draining the reactor drains: an idle read ends
//! bit  4     foreign  the waiter is a cloned waker in the connection's slot, not a task id
//! bit  5     asked    the read clock ran out: a reader that has waited all the time is to say so
//! bits 8..63 the parked task: slot (32) and generation (24)
//! ```
//! | event            | Idle          | Ready         | Parked(who)               |
//! |------------------|---------------|---------------|---------------------------|
//! | consume (reader) | no            | -> Idle, yes  | no                        |
//! | park w (reader)  | -> Parked(w)  | refused       | -> Parked(w), replaces    |
//! | signal (takers)  | -> Ready      | stays         | -> Ready, wake who        |
//! | ask (sweep)      | no            | no            | -> Ready, asked, wake who |
//!
//! Ready is consumed BEFORE the recv: an edge that comes during the recv makes the word Ready again. The taker goes
//! to Ready and not to Idle: the edge it carried must reach the next look. A re-poll that finds Parked must replace
//! the waiter: the old one may belong to a future that is gone.
//!
//! For the same reason Parked does not prove that anybody waits: the future may have been given up (a timeout around
//! it), and futures have no destructor here, which would hold the borrow of the connection. So the read clock does not
//! end a connection by itself: it asks. Whoever is woken by that, finds nothing to receive and has waited since before,
//! ends it (`ReadHalf::answer`); one that was given up stays silent, and its next read begins a wait of its own.

use crate::id::TaskId;
use crate::sync::atomic::{AtomicU64, Ordering};

const IDLE: u64 = 0;
const READY: u64 = 1;
const PARKED: u64 = 2;
const STATE: u64 = 3;
const STICKY: u64 = 1 << 2;
const DRAINING: u64 = 1 << 3;
const FOREIGN: u64 = 1 << 4;
const ASKED: u64 = 1 << 5;
/// The bits that every transition keeps.
const KEPT: u64 = STICKY | DRAINING | ASKED;
const ID_SHIFT: u32 = 8;

/// Who waits for input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// A task of the connection's home reactor.
    Task(TaskId),
    /// Whoever's waker is in the connection's waiter slot.
    Foreign,
}

/// What a signal adds to the word, in the same step as the wake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Nothing,
    Sticky,
    Draining,
}

/// One look at the word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look(u64);

impl Look {
    #[inline]
    pub(crate) fn is_ready(self) -> bool {
        self.0 & STATE == READY
    }

    /// Ready, and nothing else is to be looked at.
    #[inline]
    pub(crate) fn is_plainly_ready(self) -> bool {
        self.0 & (STATE | DRAINING | ASKED) == READY
    }

    /// Neither Ready nor draining: nothing is to be looked at.
    #[inline]
    pub(crate) fn is_quiet(self) -> bool {
        self.0 & (READY | DRAINING) == 0
    }

    #[inline]
    pub(crate) fn is_draining(self) -> bool {
        self.0 & DRAINING != 0
    }

    #[inline]
    pub(crate) fn is_asked(self) -> bool {
        self.0 & ASKED != 0
    }
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct ReadWord(AtomicU64);

impl ReadWord {
    /// Starts Idle: the kernel reports a socket that is already readable when it is registered. Sockets other than
    /// TCP start sticky: there a short recv can leave data without an edge.
    pub(crate) fn new(sticky: bool) -> Self {
        Self(AtomicU64::new(if sticky { IDLE | STICKY } else { IDLE }))
    }

    /// Reader: what the word says now.
    #[inline]
    pub(crate) fn look(&self) -> Look {
        Look(self.0.load(Ordering::Acquire))
    }

    /// Reader: takes the readiness, if there is any. To be called BEFORE the recv.
    #[inline]
    pub(crate) fn consume(&self) -> bool {
        // Only the reader leaves Ready: clearing its bit turns Ready into Idle and changes neither Idle nor Parked.
        self.0.fetch_and(!READY, Ordering::AcqRel) & STATE == READY
    }

    /// Reader: waits as `who`. False: an edge came first, look again. A foreign waker is in its slot BEFORE this.
    #[inline]
    #[must_use = "a refused park means that there is something to look at"]
    pub(crate) fn park(&self, who: Waiter) -> bool {
        let parked = match who {
            Waiter::Task(id) => PARKED | id.bits() << ID_SHIFT,
            Waiter::Foreign => PARKED | FOREIGN,
        };
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & STATE == READY {
                return false;
            }
            match self.0.compare_exchange_weak(word, parked | word & KEPT, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Taker: makes the reader look. The caller wakes whom it is told to.
    #[inline]
    #[must_use = "the waiter that was taken out of the word must be woken"]
    pub(crate) fn signal(&self, mark: Mark) -> Option<Waiter> {
        let set = match mark {
            Mark::Nothing => 0,
            Mark::Sticky => STICKY,
            Mark::Draining => DRAINING,
        };
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            // A read-modify-write even when nothing changes: the reader's consume must see what came before this.
            let next = READY | word & KEPT | set;
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return waiter_of(word),
                Err(now) => word = now,
            }
        }
    }

    /// Sweep: the read clock ran out. Makes a parked reader look, and say whether it still waits; whoever does not park
    /// is not asked. The caller wakes whom it is told to.
    #[must_use = "the waiter that was taken out of the word must be woken"]
    pub(crate) fn ask(&self) -> Option<Waiter> {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let waiter = waiter_of(word)?;
            let next = READY | word & KEPT | ASKED;
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Some(waiter),
                Err(now) => word = now,
            }
        }
    }

    /// Reader: takes the question. BEFORE the recv: bytes that come later are no answer to it.
    pub(crate) fn take_question(&self) {
        self.0.fetch_and(!ASKED, Ordering::AcqRel);
    }

    /// Must a recv be tried until EAGAIN before parking?
    #[inline]
    pub(crate) fn is_sticky(&self) -> bool {
        self.0.load(Ordering::Acquire) & STICKY != 0
    }

    #[inline]
    pub(crate) fn is_draining(&self) -> bool {
        self.0.load(Ordering::Acquire) & DRAINING != 0
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == PARKED
    }
}

#[inline]
fn waiter_of(word: u64) -> Option<Waiter> {
    if word & (STATE | FOREIGN) == PARKED {
        Some(Waiter::Task(TaskId::from_bits(word >> ID_SHIFT)))
    } else {
        no_task(word)
    }
}

/// Apart, so that the common case is one comparison.
#[cold]
#[inline(never)]
fn no_task(word: u64) -> Option<Waiter> {
    (word & STATE == PARKED).then_some(Waiter::Foreign)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn word(bits: u64) -> ReadWord {
        ReadWord(AtomicU64::new(bits))
    }

    /// Every state with every kept bit against every event.
    #[test]
    fn table_of_states_and_events() {
        let task = Waiter::Task(TaskId::new(7, 3));
        let other = Waiter::Task(TaskId::new(9, 1));
        let id = |w: Waiter| match w {
            Waiter::Task(id) => PARKED | id.bits() << ID_SHIFT,
            Waiter::Foreign => PARKED | FOREIGN,
        };
        let states =
            [(IDLE, None), (READY, None), (id(task), Some(task)), (id(Waiter::Foreign), Some(Waiter::Foreign))];
        let mut cases = 0;
        for (state, waiter) in states {
            for kept in (0..8).map(|n| (n & 3) << 2 | (n & 4) << 3) {
                assert_eq!(kept & !KEPT, 0);
                let before = state | kept;
                let w = word(before);
                assert_eq!(w.consume(), state == READY);
                assert_eq!(w.0.into_inner(), if state == READY { kept } else { before }, "consume of {before:#x}");

                for who in [task, other, Waiter::Foreign] {
                    let w = word(before);
                    assert_eq!(w.park(who), state != READY);
                    let after = if state == READY { before } else { id(who) | kept };
                    assert_eq!(w.0.into_inner(), after, "park of {before:#x}");
                    cases += 1;
                }
                let w = word(before);
                assert_eq!(w.ask(), waiter, "ask of {before:#x}");
                let after = if waiter.is_some() { READY | kept | ASKED } else { before };
                assert_eq!(w.look().0, after, "ask of {before:#x}");
                assert_eq!(w.look().is_plainly_ready(), after == READY || after == READY | STICKY);
                w.take_question();
                assert_eq!(w.0.into_inner(), after & !ASKED);
                for (mark, bits) in [(Mark::Nothing, 0), (Mark::Sticky, STICKY), (Mark::Draining, DRAINING)] {
                    let w = word(before);
                    assert_eq!(w.signal(mark), waiter, "signal of {before:#x}");
                    assert_eq!(w.is_sticky(), (kept | bits) & STICKY != 0);
                    assert_eq!(w.is_draining(), (kept | bits) & DRAINING != 0);
                    assert_eq!(w.0.into_inner(), READY | kept | bits);
                    cases += 1;
                }
            }
        }
        assert_eq!(cases, 4 * 8 * 6);
    }
}
