//! Loom: a recv that brings no bytes beside a send in flight, over the real flush word.
//!
//! State: none. Thread class: tests. Laws: 11, 3. The kernel is a stand-in behind a mutex, as a socket is behind its lock:
//! the peer's FIN is in, its reset may come; a call that fails takes the error with it, and our FIN is acknowledged at once.

use super::flush_word::{FlushWord, Leave};
use super::input_end::is_untold_reset;
use crate::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

#[derive(Clone, Copy, PartialEq)]
enum Twin {
    Right,
    LooksOnceForTheFlight,
    NeverLooks,
    StoresAfterItLeft,
}

#[derive(Default)]
struct Kernel {
    error: bool,
    closed: bool,
    taken_by_send: bool,
}

struct Shared {
    flush: FlushWord,
    /// `Body::reason`.
    was_reset: AtomicBool,
    kernel: Mutex<Kernel>,
}

impl Shared {
    /// One send, then the FIN that was asked for: `drive::go_on`, `left_idle` and `leave_closed`.
    fn send_and_end(&self, twin: Twin) {
        let failed = {
            let mut kernel = self.kernel.lock().unwrap();
            kernel.taken_by_send = std::mem::take(&mut kernel.error);
            kernel.closed
        };
        if failed {
            if twin != Twin::StoresAfterItLeft {
                self.was_reset.store(true, Ordering::Release);
            }
            let _ = self.flush.close();
            self.flush.left_closed();
            if twin == Twin::StoresAfterItLeft {
                self.was_reset.store(true, Ordering::Release);
            }
            return;
        }
        assert_eq!(self.flush.finish(), Leave::Left { fin: true });
        self.kernel.lock().unwrap().closed = true;
    }

    /// `ReadHalf::end_of_input`. `Some(true)`: a reset. `None`: recv reported it by itself.
    fn read(&self, twin: Twin) -> Option<(bool, bool)> {
        let hidden = {
            let mut kernel = self.kernel.lock().unwrap();
            if std::mem::take(&mut kernel.error) {
                return None;
            }
            kernel.taken_by_send
        };
        let closed = || self.kernel.lock().unwrap().closed;
        let untold = match twin {
            Twin::LooksOnceForTheFlight => self.flush.is_flushing() && closed(),
            Twin::NeverLooks => false,
            _ => is_untold_reset(&self.flush, closed),
        };
        Some((hidden, untold || self.was_reset.load(Ordering::Acquire)))
    }
}

fn model(resets: bool, twin: Twin) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            flush: FlushWord::new(),
            was_reset: AtomicBool::new(false),
            kernel: Mutex::new(Kernel::default()),
        });
        assert!(shared.flush.claim());
        assert!(!shared.flush.fin(), "behind what is sent");
        let sender = {
            let shared = shared.clone();
            thread::spawn(move || shared.send_and_end(twin))
        };
        let peer = resets.then(|| {
            let shared = shared.clone();
            thread::spawn(move || {
                let mut kernel = shared.kernel.lock().unwrap();
                if !kernel.closed {
                    (kernel.error, kernel.closed) = (true, true);
                }
            })
        });
        match shared.read(twin) {
            Some((true, is_reset)) => assert!(is_reset, "a reset is told as the peer's FIN"),
            Some((false, is_reset)) => assert!(resets || !is_reset, "an end in good order is told as a reset"),
            None => {}
        }
        sender.join().unwrap();
        peer.into_iter().for_each(|peer| peer.join().unwrap());
    });
}

#[test]
fn loom_an_end_in_good_order_is_no_reset() {
    model(false, Twin::Right);
}

#[test]
fn loom_a_reset_that_a_send_took_is_told() {
    model(true, Twin::Right);
}

#[test]
#[should_panic(expected = "told as a reset")]
fn loom_twin_looks_once_for_the_flight() {
    model(false, Twin::LooksOnceForTheFlight);
}

#[test]
#[should_panic(expected = "told as the peer's FIN")]
fn loom_twin_never_looks_for_the_flight() {
    model(true, Twin::NeverLooks);
}

#[test]
#[should_panic(expected = "told as the peer's FIN")]
fn loom_twin_stores_the_reason_after_it_left() {
    model(true, Twin::StoresAfterItLeft);
}
