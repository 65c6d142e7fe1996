//! Wakes have a queue of their own, everything else the inbox: what a thread posted before it woke a task is seen before the task is
//! polled (law 7: a pass takes wakes, THEN looks at the inbox).
//!
//! State: stand-ins for the two queues, from atomics only. Thread class: loom's. Laws: 7, 8.

use crate::sync::atomic::{AtomicBool, Ordering};
use loom::sync::Arc;
use loom::thread;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    Right,
    LooksFirst,
    WakesFirst,
}

fn run(variant: Variant) {
    loom::model(move || {
        let queues = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let producer = thread::spawn({
            let queues = queues.clone();
            move || {
                let [inbox, wakes] = &*queues;
                let order = if variant == Variant::WakesFirst { [wakes, inbox] } else { [inbox, wakes] };
                order.iter().for_each(|queue| queue.store(true, Ordering::Release));
            }
        });
        let [inbox, wakes] = &*queues;
        let (woken, has_messages) = if variant == Variant::LooksFirst {
            let has_messages = inbox.load(Ordering::Acquire);
            (wakes.load(Ordering::Acquire), has_messages)
        } else {
            (wakes.load(Ordering::Acquire), inbox.load(Ordering::Acquire))
        };
        // A pass that has messages ends, and the next one serves them before its tasks.
        assert!(!woken || has_messages, "out of order: a task is polled before what was posted before its wake");
        producer.join().unwrap();
    });
}

#[test]
fn loom_what_was_posted_before_a_wake_is_seen_with_it() {
    run(Variant::Right);
}

#[test]
#[should_panic(expected = "out of order")]
fn loom_twin_the_inbox_looked_at_first() {
    run(Variant::LooksFirst);
}

#[test]
#[should_panic(expected = "out of order")]
fn loom_twin_the_wake_pushed_first() {
    run(Variant::WakesFirst);
}
