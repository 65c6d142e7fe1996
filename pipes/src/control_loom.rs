//! Loom: a read or flush that waits, against a handle that cancels or completes it.
//!
//! State: none. Thread class: tests. Laws: 10. Over the real handle; its broken twin stores the waker after the poll of
//! the transport, in a step of its own, which is what the order in `control` forbids.

use super::{Asked, PipeHandle};
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use std::task::{Wake, Waker};

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

fn run(ask: fn(&PipeHandle), asked: Asked, twin: bool) {
    loom::model(move || {
        let handle = PipeHandle::new();
        let flag = std::sync::Arc::new(Flag(AtomicBool::new(false)));
        let other = handle.clone();
        let canceller = thread::spawn(move || ask(&other));
        let waker = Waker::from(flag.clone());
        let mut seen = if twin {
            let seen = handle.check();
            if seen == Asked::Nothing {
                handle.store(&waker);
            }
            seen
        } else {
            handle.check_or_wait(&waker)
        };
        canceller.join().unwrap();
        if seen == Asked::Nothing && flag.0.load(Ordering::Acquire) {
            seen = handle.check_or_wait(&waker);
        }
        assert!(seen == asked, "it was asked to end and sleeps");
        let after = if asked == Asked::Complete { Asked::Complete } else { Asked::Nothing };
        assert_eq!(handle.check(), after, "a cancel is told once, a completion for good");
    });
}

#[test]
fn loom_a_cancel_ends_the_wait() {
    run(PipeHandle::cancel, Asked::Cancel, false);
}

#[test]
fn loom_a_completion_ends_the_wait() {
    run(PipeHandle::complete, Asked::Complete, false);
}

#[test]
#[should_panic(expected = "asked to end and sleeps")]
fn loom_twin_looks_and_registers_in_two_steps() {
    run(PipeHandle::cancel, Asked::Cancel, true);
}
