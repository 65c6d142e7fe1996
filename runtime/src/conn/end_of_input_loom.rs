//! Loom: a reader whose recv returned 0, against the sender that meets the peer's reset, or ends in good order.
//!
//! State: none; the real flush word, and a stand-in for the kernel. Thread class: tests. Laws: 3, 11. The reader is
//! `ReadHalf::end_of_input`, the sender `drive::go_on` and `left_idle`. What is asserted: a clean end is told as one, a reset
//! never is. Kernel: the state of the socket and its error, which whoever comes first is told.

use super::flush_word::{FlushWord, Leave};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;

#[derive(Clone, Copy, PartialEq)]
enum Twin {
    Right,
    /// Does not look at the word again behind the kernel's answer.
    OneLook,
    /// Does not ask the kernel.
    NeverAsks,
    /// The sender leaves, then stores the reason.
    LateReason,
}

const RESET: usize = 1;

struct Shared {
    word: FlushWord,
    reason: AtomicUsize,
    /// The peer has reset, and nobody was told yet.
    error: AtomicBool,
    is_closed: AtomicBool,
}

impl Shared {
    fn send(&self, twin: Twin, reset: bool) {
        if reset {
            // ECONNRESET, or EPIPE if the reader was told.
            self.error.swap(false, Ordering::AcqRel);
            if twin != Twin::LateReason {
                self.reason.store(RESET, Ordering::Relaxed);
            }
            let _ = self.word.close();
            self.word.left_closed();
            self.reason.store(RESET, Ordering::Relaxed);
        } else if self.word.finish() == (Leave::Left { fin: false }) && self.word.fin() {
            // The FIN, which the peer acknowledges at once.
            self.is_closed.store(true, Ordering::Release);
        }
    }

    /// True: the reader is told of a reset.
    fn end_of_input(&self, twin: Twin) -> bool {
        if self.error.swap(false, Ordering::AcqRel) {
            // This recv has failed with it.
            return true;
        }
        let is_closed = || self.reason.load(Ordering::Relaxed) == 0 && self.is_closed.load(Ordering::Acquire);
        let met = match twin {
            Twin::NeverAsks => false,
            Twin::OneLook => self.word.is_flushing() && is_closed(),
            _ => self.word.has_met_reset(is_closed),
        };
        // Loaded although it may be known: by then every sender that has left has stored it.
        self.reason.load(Ordering::Relaxed) == RESET || met
    }
}

fn run(twin: Twin, reset: bool) {
    loom::model(move || {
        let word = FlushWord::new();
        assert!(word.claim());
        let (error, is_closed) = (AtomicBool::new(reset), AtomicBool::new(reset));
        let s = Arc::new(Shared { word, reason: AtomicUsize::new(0), error, is_closed });
        let on = s.clone();
        let sender = thread::spawn(move || on.send(twin, reset));
        let told = s.end_of_input(twin);
        sender.join().unwrap();
        assert_eq!(told, reset, "an end is told as what it was not");
    });
}

#[test]
fn loom_a_clean_end_beside_a_send_is_clean() {
    run(Twin::Right, false);
}

#[test]
fn loom_a_reset_that_a_send_has_met_is_no_clean_end() {
    run(Twin::Right, true);
}

#[test]
#[should_panic(expected = "told as what it was not")]
fn loom_twin_the_word_is_looked_at_once() {
    run(Twin::OneLook, false);
}

#[test]
#[should_panic(expected = "told as what it was not")]
fn loom_twin_the_kernel_is_not_asked() {
    run(Twin::NeverAsks, true);
}

#[test]
#[should_panic(expected = "told as what it was not")]
fn loom_twin_the_reason_is_stored_behind_the_leave() {
    run(Twin::LateReason, true);
}
