//! Loom: a drain against an idle read beside a flush in flight, over the real read word and the real flush word.
//!
//! State: none. Thread class: tests. Laws: 1, 3, 12. A flush in flight is a request in progress, so an idle reader
//! that meets the drain goes on waiting; whoever ends the flush must make it look again. Fence and look on both sides
//! (Dekker over two words): the reader sees the flush over, or the flush's end sees the drain.

use super::flush_word::FlushWord;
use super::read_word::{Mark, ReadWord, Waiter};
use crate::id::TaskId;
use crate::sync::atomic::{AtomicBool, Ordering, fence};
use loom::sync::Arc;
use loom::thread;

#[derive(Clone, Copy, PartialEq)]
enum Twin {
    Right,
    NobodyLooks,
    NoFenceAtTheEnd,
    NoFenceInTheReader,
    ParksOnAnOldLook,
    LooksForTheDrainOnly,
}

struct Shared {
    read: ReadWord,
    flush: FlushWord,
    woken: AtomicBool,
}

impl Shared {
    fn signal(&self, mark: Mark) {
        if self.read.signal(mark).is_some() {
            self.woken.swap(true, Ordering::Release);
        }
    }

    /// The end of a flush, as `flush_is_over` of the body.
    fn end_flush(&self, twin: Twin) {
        assert!(self.flush.finish_quiet());
        if twin != Twin::NoFenceAtTheEnd {
            fence(Ordering::SeqCst);
        }
        if twin != Twin::NobodyLooks && self.read.is_draining() {
            self.signal(Mark::Nothing);
        }
    }

    /// An idle read of a socket that has nothing. True: the drain ended it.
    fn poll_read_idle(&self, twin: Twin) -> bool {
        self.woken.swap(false, Ordering::Acquire);
        loop {
            let look = self.read.look();
            if look.is_draining() {
                if twin != Twin::NoFenceInTheReader {
                    fence(Ordering::SeqCst);
                }
                if self.flush.is_idle() {
                    return true;
                }
            }
            if look.is_ready() {
                self.read.consume();
                // Nothing was there: this Ready may have been the drain's or the flush's end's, from after the look.
                let looks_again = match twin {
                    Twin::ParksOnAnOldLook => false,
                    Twin::LooksForTheDrainOnly => !look.is_draining() && self.read.look().is_draining(),
                    _ => true,
                };
                if looks_again {
                    continue;
                }
            }
            if self.read.park(Waiter::Task(TaskId::new(1, 1))) {
                return false;
            }
        }
    }
}

fn run(twin: Twin) {
    loom::model(move || {
        let s = Arc::new(Shared { read: ReadWord::new(false), flush: FlushWord::new(), woken: AtomicBool::new(false) });
        assert!(s.flush.claim());
        let on = s.clone();
        let writer = thread::spawn(move || on.end_flush(twin));
        let on = s.clone();
        let drain = thread::spawn(move || on.signal(Mark::Draining));
        let mut drained = s.poll_read_idle(twin);
        writer.join().unwrap();
        drain.join().unwrap();
        while !drained && s.woken.load(Ordering::Acquire) {
            drained = s.poll_read_idle(twin);
        }
        assert!(drained, "the drain is pending and the reader sleeps");
    });
}

#[test]
fn loom_the_end_of_a_flush_lets_a_drain_go_on() {
    run(Twin::Right);
}

#[test]
#[should_panic(expected = "the drain is pending")]
fn loom_twin_nobody_looks_after_the_flush() {
    run(Twin::NobodyLooks);
}

#[test]
#[should_panic(expected = "the drain is pending")]
fn loom_twin_no_fence_after_the_flush() {
    run(Twin::NoFenceAtTheEnd);
}

#[test]
#[should_panic(expected = "the drain is pending")]
fn loom_twin_no_fence_in_the_reader() {
    run(Twin::NoFenceInTheReader);
}

#[test]
#[should_panic(expected = "the drain is pending")]
fn loom_twin_parks_upon_what_it_saw_before_the_consume() {
    run(Twin::ParksOnAnOldLook);
}

/// The flush word was looked at before the consume, too.
#[test]
#[should_panic(expected = "the drain is pending")]
fn loom_twin_looks_for_the_drain_but_not_for_the_flush_again() {
    run(Twin::LooksForTheDrainOnly);
}
