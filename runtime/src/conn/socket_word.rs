//! The socket word: may this body still end its socket?
//!
//! State: one word a connection. Who touches it: whoever ends the connection cuts, from any thread; the one user moves
//! it to another reactor or takes the socket out. Thread class: any thread. Laws: 5, 11, 12.
//!
//! A connection that moves to another reactor gets a new body there, over the same socket; for a while there are two.
//! Each body's word says whose the socket is, so that what ends one of them (a stop of its reactor, a deadline, a reset)
//! ends the socket only if it is that body's, and so that an end is never between the two.
//! ```text
//! state  Ours      whoever ends this body ends the socket
//!        Arriving  the socket is still another body's: a move is on its way here
//!        Gone      the socket is another body's by now, or the user's (`into_std`)
//! bit    cut       somebody ended this body; the reason was stored before
//! ```
//! | event               | Ours                | Arriving         | Gone         |
//! |---------------------|---------------------|------------------|--------------|
//! | cut (whoever ends)  | +cut, end the socket| +cut, leave it be| +cut, leave it be |
//! | arrive (the mover)  | -                   | -> Ours, yes; with cut: stays, no | - |
//! | leave (the user)    | -> Gone, tells cut  | -                | -            |

use crate::sync::atomic::{AtomicU32, Ordering};

const OURS: u32 = 0;
const ARRIVING: u32 = 1;
const GONE: u32 = 2;
const STATE: u32 = 3;
const CUT: u32 = 1 << 2;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct SocketWord(AtomicU32);

impl SocketWord {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(OURS))
    }

    /// Of a body that a move has made.
    pub(crate) fn arriving() -> Self {
        Self(AtomicU32::new(ARRIVING))
    }

    /// Whoever ends the connection, AFTER the reason was stored and BEFORE the socket is touched. True: end it too.
    #[must_use = "the socket may belong to another body"]
    pub(crate) fn cut(&self) -> bool {
        self.0.fetch_or(CUT, Ordering::AcqRel) & STATE == OURS
    }

    /// The mover: from here on the socket is this body's. False: the body was ended first.
    #[must_use = "a body that was ended does not get the socket"]
    pub(crate) fn arrive(&self) -> bool {
        self.0.compare_exchange(ARRIVING, OURS, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// The user: from here on the socket is not this body's. False: the connection was ended first, and the reason says
    /// why.
    #[must_use = "a connection that was ended takes its end along"]
    pub(crate) fn leave(&self) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            match self.0.compare_exchange_weak(word, GONE | word & CUT, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return word & CUT == 0,
                Err(now) => word = now,
            }
        }
    }

    /// Is the socket this body's?
    pub(crate) fn is_ours(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == OURS
    }

    /// Has it left for good?
    pub(crate) fn is_gone(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == GONE
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn table_of_states_and_events() {
        for state in [OURS, ARRIVING, GONE] {
            for cut in [0, CUT] {
                let before = state | cut;
                let word = SocketWord(AtomicU32::new(before));
                assert_eq!((word.is_ours(), word.is_gone()), (state == OURS, state == GONE));
                assert_eq!(word.cut(), state == OURS, "cut of {before}");
                assert_eq!(word.0.into_inner(), state | CUT, "after the cut of {before}");

                let word = SocketWord(AtomicU32::new(before));
                assert_eq!(word.arrive(), before == ARRIVING, "arrive of {before}");
                assert_eq!(word.0.into_inner(), if before == ARRIVING { OURS } else { before });

                let word = SocketWord(AtomicU32::new(before));
                assert_eq!(word.leave(), cut == 0, "leave of {before}");
                assert_eq!(word.0.into_inner(), GONE | cut);
            }
        }
    }
}
