//! What it means that a recv brought no bytes: the peer's FIN, or a reset whose error a failed send has consumed.
//!
//! State: none. Thread class: pure; any thread asks. Laws: 11 (FIN against reset), 3 (a sender stores its reason before it
//! leaves Flushing; the FIN goes out after it has left).
//! ```text
//! reader                                   sender
//!   recv -> 0                                send fails, consumes the error
//!   in flight? no: its reason can be read    stores the reason, closes, leaves
//!   the socket's state: not CLOSE -> FIN     | send succeeds, leaves Flushing, sends the FIN; the peer, whose FIN
//!   still in flight? no: as above            |   is here, acknowledges it: CLOSE, in good order
//! ```
//! A socket is CLOSE after a reset and after both FINs. A flight that is still under way after CLOSE was seen has not sent
//! our FIN before, and once the FIN is asked for and the queue is empty there is no further flight: then it was a reset.

use crate::conn::flush_word::FlushWord;

/// Was it a reset that nobody has told of yet? False: whoever met one has stored its reason, which is to be read AFTER
/// this; with none it was the peer's FIN. `is_closed`: is the socket CLOSE? Asked while somebody sends, and only then.
pub(crate) fn is_untold_reset(flush: &FlushWord, is_closed: impl FnOnce() -> bool) -> bool {
    flush.is_flushing() && is_closed() && flush.is_flushing()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::conn::flush_word::Leave;

    #[test]
    fn a_close_in_good_order_between_two_looks_is_no_reset() {
        let word = FlushWord::new();
        assert!(!is_untold_reset(&word, || panic!("nobody sends: not asked")));
        assert!(word.claim());
        assert!(!is_untold_reset(&word, || false), "the peer's FIN, while we send");
        assert!(is_untold_reset(&word, || true), "CLOSE, and our FIN has not gone");
        // The sender ends, and its FIN with it, while the reader looks at the socket.
        let ends = || {
            assert!(!word.fin());
            assert_eq!(word.finish(), Leave::Left { fin: true });
            true
        };
        assert!(!is_untold_reset(&word, ends));
    }
}
