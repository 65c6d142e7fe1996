//! Loom: a writer that waits until a part of its queue has gone, against the owner that sends it.
//!
//! State: none. Thread class: tests. Laws: 3. A stand-in for `WriteHalf::poll_unsent`, `drive::put_back` and
//! `Body::wake_part_way`: the flush has parked, and what wakes early is a number beside its waker.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

#[derive(Clone, Copy, PartialEq)]
enum Twin {
    Right,
    LooksBeforeItRegisters,
    WakesBeforeItCounts,
    WakesOnlyAtTheEnd,
}

#[derive(Default)]
struct Slow {
    waiter: bool,
    wake_at: usize,
}

struct Shared {
    queued: AtomicUsize,
    slow: Mutex<Slow>,
    woken: AtomicBool,
}

impl Shared {
    /// The flush has parked already. True: one unit or less is left.
    fn poll_unsent(&self, twin: Twin) -> bool {
        let early = self.queued.load(Ordering::Relaxed);
        self.slow.lock().unwrap().waiter = true;
        self.slow.lock().unwrap().wake_at = 1;
        let left = if twin == Twin::LooksBeforeItRegisters { early } else { self.queued.load(Ordering::Relaxed) };
        left <= 1
    }

    /// The owner, the reactor: one unit goes out, then the socket refuses.
    fn send_one(&self, twin: Twin) {
        if twin != Twin::WakesBeforeItCounts {
            self.queued.fetch_sub(1, Ordering::Relaxed);
        }
        // put_back and wake_part_way: two critical sections, the second one looks.
        drop(self.slow.lock().unwrap());
        let mut slow = self.slow.lock().unwrap();
        let enough = if twin == Twin::WakesOnlyAtTheEnd { 0 } else { slow.wake_at };
        if self.queued.load(Ordering::Relaxed) <= enough {
            slow.wake_at = 0;
            let waiter = std::mem::take(&mut slow.waiter);
            drop(slow);
            if waiter {
                self.woken.store(true, Ordering::Release);
            }
        } else {
            drop(slow);
        }
        if twin == Twin::WakesBeforeItCounts {
            self.queued.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn run(twin: Twin) {
    loom::model(move || {
        let shared = Arc::new(Shared {
            queued: AtomicUsize::new(3),
            slow: Mutex::new(Slow::default()),
            woken: AtomicBool::new(false),
        });
        let owner = shared.clone();
        let owner = thread::spawn(move || {
            owner.send_one(twin);
            owner.send_one(twin);
        });
        let there = shared.poll_unsent(twin);
        owner.join().unwrap();
        assert!(there || shared.woken.load(Ordering::Acquire), "two of three have gone and the writer sleeps");
    });
}

#[test]
fn loom_a_writer_that_waits_part_of_the_way_is_woken() {
    run(Twin::Right);
}

#[test]
#[should_panic(expected = "the writer sleeps")]
fn loom_twin_looks_before_it_registers() {
    run(Twin::LooksBeforeItRegisters);
}

#[test]
#[should_panic(expected = "the writer sleeps")]
fn loom_twin_wakes_before_it_counts() {
    run(Twin::WakesBeforeItCounts);
}

#[test]
#[should_panic(expected = "the writer sleeps")]
fn loom_twin_wakes_only_at_the_end() {
    run(Twin::WakesOnlyAtTheEnd);
}
