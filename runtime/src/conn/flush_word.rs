//! The flush word: decides who sends, so that nobody sends twice and no writable edge is lost.
//!
//! State: one word a connection. Who touches it: writers kick, the owner of Flushing leaves, the reactor brings
//! edges and serves Owed, anybody closes. Thread class: any thread. Laws: 3, 6, 8, 11, 15.
//!
//! ```text
//! bits 0..2  state   Idle      nothing queued, nobody sends
//!                    Flushing  one owner sends
//!                    Again     one owner sends and must look once more before it leaves
//!                    Blocked   the socket refused; the next writable edge claims the flush
//!                    Owed      out of budget; the reactor claims the flush from the back of its queue
//! bit  3     closed  nothing is sent any more: the queue is freed by the owner, or by the closer if there is none
//! bit  4     fin     FIN goes out when the queue is empty
//! bit  5     waited  somebody waits by ticket (shared mode): the owner must not leave by the quiet way, which wakes nobody
//! ```
//! | event             | Idle             | Flushing        | Again         | Blocked      | Owed         |
//! |-------------------|------------------|-----------------|---------------|--------------|--------------|
//! | claim (writer)    | -> Flushing, own | no              | no            | no           | no           |
//! | kick (writer)     | -> Flushing, own | -> Again, wait  | wait          | wait         | wait         |
//! | finish (owner)    | -                | -> Idle         | -> Flushing   | -            | -            |
//! | block (owner)     | -                | -> Blocked      | -> Flushing   | -            | -            |
//! | owe (owner)       | -                | -> Owed         | -> Owed       | -            | -            |
//! | writable (edge)   | nothing          | -> Again        | nothing       | -> Flushing, own | nothing  |
//! | serve (reactor)   | no               | no              | no            | no           | -> Flushing, own |
//! | fin               | send it now      | owner sends it  | owner         | later owner  | later owner  |
//! | close             | closer frees     | owner frees     | owner frees   | closer frees | closer frees |
//!
//! Idle with fin is an end: the FIN has gone or is about to go, so what a racing writer appended must not follow it, in
//! part perhaps; the writer is refused. Once closed is set: claim, kick, writable and serve refuse, so no new owner appears; finish, block and owe leave
//! the state as it is and say so, and the owner frees the queue before it calls `left_closed`. The owner puts an
//! unsent remainder into the queue BEFORE it leaves Flushing, and takes it back if it is told to look again.

use crate::sync::atomic::{AtomicU32, Ordering};

const IDLE: u32 = 0;
const FLUSHING: u32 = 1;
const AGAIN: u32 = 2;
const BLOCKED: u32 = 3;
const OWED: u32 = 4;
const STATE: u32 = 7;
const CLOSED: u32 = 1 << 3;
const FIN: u32 = 1 << 4;
const WAITED: u32 = 1 << 5;

/// What a writer does after it appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kick {
    /// The caller owns the flush: take a batch and send.
    Own,
    /// Somebody else sends, or will at the next edge or pass.
    Wait,
    /// Nothing is sent any more: closed, or the FIN has gone.
    Closed,
}

/// What the owner does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Leave {
    /// Flushing is left. `fin`: the queue is empty and the FIN was asked for, send it.
    Left { fin: bool },
    /// Still the owner: look once more.
    Again,
    /// Still the owner: free the queue, then call `left_closed`.
    Closed,
}

/// Who frees the outgoing queue of a closed connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Close {
    /// Nobody sends: the caller does.
    Free,
    /// The owner does when it leaves.
    OwnerFrees,
    /// Somebody closed before.
    Already,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct FlushWord(AtomicU32);

impl FlushWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(IDLE))
    }

    /// The one transition engine: every change is a read-modify-write that keeps the bits it does not name.
    #[inline]
    fn step<T>(&self, table: impl Fn(u32) -> (u32, T)) -> T {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let (next, out) = table(word);
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return out,
                Err(now) => word = now,
            }
        }
    }

    /// Writer with nothing queued: Idle -> Flushing, the fast path. Nothing but a plain Idle is claimed.
    #[inline]
    pub(crate) fn claim(&self) -> bool {
        self.0.compare_exchange(IDLE, FLUSHING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Writer, AFTER its append: own the flush or make sure that somebody looks at the queue again.
    pub(crate) fn kick(&self) -> Kick {
        self.step(|w| match w & STATE {
            _ if w & CLOSED != 0 => (w, Kick::Closed),
            IDLE if w & FIN != 0 => (w, Kick::Closed),
            IDLE => (w & !STATE | FLUSHING, Kick::Own),
            FLUSHING => (w & !STATE | AGAIN, Kick::Wait),
            _ => (w, Kick::Wait),
        })
    }

    /// Owner, the queue looked empty.
    #[inline]
    pub(crate) fn finish(&self) -> Leave {
        self.step(|w| {
            debug_assert!(matches!(w & STATE, FLUSHING | AGAIN), "finish by a non-owner: {w:#b}");
            match w & STATE {
                _ if w & CLOSED != 0 => (w, Leave::Closed),
                AGAIN => (w & !STATE | FLUSHING, Leave::Again),
                _ => (w & !STATE | IDLE, Leave::Left { fin: w & FIN != 0 }),
            }
        })
    }

    /// Owner, everything is out: [`finish`](Self::finish) where nothing else happened. False: it did, call `finish`.
    #[inline]
    pub(crate) fn finish_quiet(&self) -> bool {
        self.0.compare_exchange(FLUSHING, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// A waiter has registered; to be followed by its look. Both under the queue's mutex, as `forget_waited`. An owner that
    /// leaves later sees it; one that has left before has its progress seen by the look.
    pub(crate) fn set_waited(&self) {
        self.0.fetch_or(WAITED, Ordering::AcqRel);
    }

    /// No waiter is left.
    pub(crate) fn forget_waited(&self) {
        if self.0.load(Ordering::Relaxed) & WAITED != 0 {
            self.0.fetch_and(!WAITED, Ordering::AcqRel);
        }
    }

    /// Owner, the socket refused and the remainder is back in the queue.
    pub(crate) fn block(&self) -> Leave {
        self.step(|w| {
            debug_assert!(matches!(w & STATE, FLUSHING | AGAIN), "block by a non-owner: {w:#b}");
            match w & STATE {
                _ if w & CLOSED != 0 => (w, Leave::Closed),
                AGAIN => (w & !STATE | FLUSHING, Leave::Again),
                _ => (w & !STATE | BLOCKED, Leave::Left { fin: false }),
            }
        })
    }

    /// Owner out of budget, the remainder is back in the queue: the reactor goes on.
    pub(crate) fn owe(&self) -> Leave {
        self.step(|w| {
            debug_assert!(matches!(w & STATE, FLUSHING | AGAIN), "owe by a non-owner: {w:#b}");
            if w & CLOSED != 0 { (w, Leave::Closed) } else { (w & !STATE | OWED, Leave::Left { fin: false }) }
        })
    }

    /// Reactor, a writable edge. True: the caller owns the flush.
    #[inline]
    pub(crate) fn writable(&self) -> bool {
        // Nearly every event carries OUT: an idle word costs one load.
        if self.0.load(Ordering::Relaxed) & STATE == IDLE {
            return false;
        }
        self.step(|w| match w & STATE {
            _ if w & CLOSED != 0 => (w, false),
            BLOCKED => (w & !STATE | FLUSHING, true),
            FLUSHING => (w & !STATE | AGAIN, false),
            _ => (w, false),
        })
    }

    /// Reactor, an owed connection's turn. True: the caller owns the flush.
    pub(crate) fn serve_owed(&self) -> bool {
        self.step(|w| match w & STATE {
            OWED if w & CLOSED == 0 => (w & !STATE | FLUSHING, true),
            _ => (w, false),
        })
    }

    /// The FIN is to follow the queue. True: nothing is queued, the caller sends it now.
    pub(crate) fn fin(&self) -> bool {
        let before = self.0.fetch_or(FIN, Ordering::AcqRel);
        before & (STATE | CLOSED | FIN) == IDLE
    }

    /// Nothing is sent any more.
    pub(crate) fn close(&self) -> Close {
        let before = self.0.fetch_or(CLOSED, Ordering::AcqRel);
        match before & STATE {
            _ if before & CLOSED != 0 => Close::Already,
            FLUSHING | AGAIN => Close::OwnerFrees,
            _ => Close::Free,
        }
    }

    /// Whoever freed the queue of a closed connection.
    pub(crate) fn left_closed(&self) {
        self.step(|w| (w & !STATE | IDLE, ()));
    }

    /// Nothing queued and nobody sends (or the connection is closed and its queue is freed).
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == IDLE
    }

    /// The same on a connection that is open: everything is out.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.0.load(Ordering::Acquire) & (STATE | CLOSED) == IDLE
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED != 0
    }

    /// Is somebody inside a send right now? (law 11: it may be about to store a reason)
    pub(crate) fn is_flushing(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire) & STATE, FLUSHING | AGAIN)
    }

    /// Will nothing be sent any more? Closed, or everything is out and the FIN behind it.
    pub(crate) fn is_over(&self) -> bool {
        let word = self.0.load(Ordering::Acquire);
        word & CLOSED != 0 || word & (STATE | FIN) == IDLE | FIN
    }

    /// Was the FIN asked for?
    pub(crate) fn has_fin(&self) -> bool {
        self.0.load(Ordering::Acquire) & FIN != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NAMES: [&str; 5] = ["Idle", "Flushing", "Again", "Blocked", "Owed"];

    fn after<T>(before: u32, event: impl Fn(&FlushWord) -> T) -> (u32, T) {
        let word = FlushWord(AtomicU32::new(before));
        let out = event(&word);
        (word.0.into_inner(), out)
    }

    /// Every state with and without FIN against every event, as in the module's table.
    #[test]
    fn table_of_states_and_events() {
        let owner = |s: u32| s == FLUSHING || s == AGAIN;
        for state in [IDLE, FLUSHING, AGAIN, BLOCKED, OWED] {
            for fin in [0, FIN, WAITED, FIN | WAITED] {
                let before = state | fin;
                let name = NAMES[state as usize];
                let claimed = before == IDLE;
                assert_eq!(
                    after(before, FlushWord::claim),
                    (if claimed { FLUSHING } else { before }, claimed),
                    "{name}"
                );
                let over = after(before, FlushWord::is_over);
                assert_eq!(over, (before, state == IDLE && fin & FIN != 0), "is_over in {name}");
                for closed in [0, CLOSED] {
                    let rest = after(before | closed, FlushWord::is_at_rest);
                    assert_eq!(rest, (before | closed, state == IDLE && closed == 0), "is_at_rest in {name}");
                }
                let kick = match state {
                    IDLE if fin & FIN != 0 => (IDLE, Kick::Closed),
                    IDLE => (FLUSHING, Kick::Own),
                    FLUSHING => (AGAIN, Kick::Wait),
                    s => (s, Kick::Wait),
                };
                assert_eq!(after(before, FlushWord::kick), (kick.0 | fin, kick.1), "kick in {name}");
                let edge = match state {
                    BLOCKED => (FLUSHING, true),
                    FLUSHING => (AGAIN, false),
                    s => (s, false),
                };
                assert_eq!(after(before, FlushWord::writable), (edge.0 | fin, edge.1), "writable in {name}");
                let owed = state == OWED;
                assert_eq!(after(before, FlushWord::serve_owed), (if owed { FLUSHING } else { state } | fin, owed));
                let now = state == IDLE && fin & FIN == 0;
                assert_eq!(after(before, FlushWord::fin), (before | FIN, now), "fin in {name}");
                assert_eq!(after(before, FlushWord::set_waited).0, before | WAITED, "set_waited in {name}");
                assert_eq!(after(before, FlushWord::forget_waited).0, before & !WAITED, "forget_waited in {name}");
                let close = if owner(state) { Close::OwnerFrees } else { Close::Free };
                assert_eq!(after(before, FlushWord::close), (before | CLOSED, close), "close in {name}");
                if owner(state) {
                    let quiet = before == FLUSHING;
                    let left = if quiet { IDLE } else { before };
                    assert_eq!(after(before, FlushWord::finish_quiet), (left, quiet), "finish_quiet in {name}");
                    let again = state == AGAIN;
                    let leave =
                        |to: u32, fin: bool| if again { (FLUSHING, Leave::Again) } else { (to, Leave::Left { fin }) };
                    let (to, out) = leave(IDLE, fin & FIN != 0);
                    assert_eq!(after(before, FlushWord::finish), (to | fin, out), "finish in {name}");
                    let (to, out) = leave(BLOCKED, false);
                    assert_eq!(after(before, FlushWord::block), (to | fin, out), "block in {name}");
                    assert_eq!(
                        after(before, FlushWord::owe),
                        (OWED | fin, Leave::Left { fin: false }),
                        "owe in {name}"
                    );
                }
            }
        }
    }

    /// Once closed nobody becomes an owner, and owners are told to free the queue.
    #[test]
    fn table_of_closed_states() {
        for state in [IDLE, FLUSHING, AGAIN, BLOCKED, OWED] {
            for fin in [0, FIN, WAITED, FIN | WAITED] {
                let before = state | fin | CLOSED;
                assert_eq!(after(before, FlushWord::claim), (before, false));
                assert!(after(before, FlushWord::is_over).1);
                assert_eq!(after(before, FlushWord::kick), (before, Kick::Closed));
                assert_eq!(after(before, FlushWord::writable), (before, false));
                assert_eq!(after(before, FlushWord::serve_owed), (before, false));
                assert!(!after(before, FlushWord::fin).1);
                assert_eq!(after(before, FlushWord::close), (before, Close::Already));
                assert_eq!(after(before, FlushWord::left_closed), (fin | CLOSED, ()));
                if state == FLUSHING || state == AGAIN {
                    assert_eq!(after(before, FlushWord::finish), (before, Leave::Closed));
                    assert_eq!(after(before, FlushWord::block), (before, Leave::Closed));
                    assert_eq!(after(before, FlushWord::owe), (before, Leave::Closed));
                }
            }
        }
    }
}
