//! Loom: the read word between a reader in three contexts, a kernel socket, and every kind of taker.
//!
//! State: none; `model` has the stand-in. Thread class: tests. Laws: 1, 2 (drained rule), 12 (stop against park: the
//! taker signals after it has published why). What is asserted: the reader never sleeps with bytes, a FIN, a close or
//! a drain pending and nobody who wakes it.

mod model;

use self::model::{FIN, Reader, Scenario, Shared, Twin};
use super::read_word::Mark;
use crate::sync::atomic::Ordering;
use loom::sync::Arc;
use loom::thread;

const PLAIN: Scenario = Scenario {
    arrivals: &[1, 1],
    early: 0,
    space: 8,
    stops_short: false,
    sticky: false,
    close: false,
    drain: false,
    ask: false,
    polls: &[0, 0],
    twin: Twin::Right,
};

fn run(scenario: Scenario) {
    loom::model(move || {
        let s = Arc::new(Shared::new(scenario));
        let (early, late) = scenario.arrivals.split_at(scenario.early);
        early.iter().for_each(|what| s.arrive(*what));
        s.pass();
        let mut threads = Vec::new();
        let on = s.clone();
        threads.push(thread::spawn(move || late.iter().for_each(|what| on.arrive(*what))));
        let on = s.clone();
        threads.push(thread::spawn(move || {
            on.pass();
            on.pass();
        }));
        if scenario.close || scenario.drain {
            let on = s.clone();
            threads.push(thread::spawn(move || {
                if scenario.drain {
                    on.signal(Mark::Draining);
                }
                if scenario.close {
                    on.close();
                }
            }));
        }
        if scenario.ask {
            let on = s.clone();
            threads.push(thread::spawn(move || on.ask()));
        }
        let mut reader = Reader::default();
        for context in scenario.polls {
            reader.poll(&s, *context);
        }
        for thread in threads {
            thread.join().unwrap();
        }
        // Nobody else acts any more: the reactor looks at the edges that are left, and whoever was woken reads on.
        loop {
            let edge = s.pass();
            let woken = reader.asleep.filter(|context| s.woken[*context].load(Ordering::Acquire));
            match woken {
                Some(context) => reader.poll(&s, context),
                None if edge => {}
                None => break,
            }
        }
        let sent: usize = scenario.arrivals.iter().map(|what| what & (FIN - 1)).sum();
        let fin = scenario.arrivals.iter().any(|what| what & FIN != 0);
        if scenario.close || scenario.drain {
            assert!(reader.is_finished(), "lost wake: the mark is pending and the reader sleeps");
        } else {
            assert_eq!(reader.got, sent, "lost wake: bytes are left and the reader sleeps");
            assert_eq!(reader.over, fin, "lost wake: the FIN is pending and the reader sleeps");
        }
        assert!(s.word.is_parked() || reader.is_finished());
        if s.asked.load(Ordering::Acquire) {
            assert!(reader.answered || reader.got > 0 || reader.is_finished(), "lost question: the reader sleeps on");
        }
    });
}

#[test]
fn loom_home_task_sees_every_byte() {
    run(PLAIN);
    run(Scenario { early: 1, ..PLAIN });
}

/// Own task, foreign waker, another foreign waker, back again: the last one that parked is woken.
#[test]
fn loom_the_waiter_moves_between_contexts() {
    run(Scenario { polls: &[0, 1, 0], ..PLAIN });
    run(Scenario { polls: &[1, 2], ..PLAIN });
    run(Scenario { polls: &[1, 0, 2], ..PLAIN });
}

#[test]
fn loom_a_full_space_is_read_on() {
    run(Scenario { arrivals: &[2, 1], space: 1, polls: &[0, 1], ..PLAIN });
}

/// The FIN may come with the data, in an edge of its own, or in one that merges with the data's.
#[test]
fn loom_data_and_fin() {
    run(Scenario { arrivals: &[1 | FIN], ..PLAIN });
    run(Scenario { arrivals: &[1, FIN], polls: &[0, 1], ..PLAIN });
}

#[test]
fn loom_unix_sockets_start_sticky() {
    run(Scenario { arrivals: &[2, 1], stops_short: true, sticky: true, ..PLAIN });
}

#[test]
fn loom_close_against_park() {
    run(Scenario { arrivals: &[], close: true, polls: &[0, 1], ..PLAIN });
    run(Scenario { arrivals: &[1], close: true, ..PLAIN });
    run(Scenario { arrivals: &[1], close: true, polls: &[1], ..PLAIN });
}

#[test]
fn loom_drain_against_park() {
    run(Scenario { arrivals: &[], drain: true, polls: &[1, 0], ..PLAIN });
    run(Scenario { arrivals: &[1], drain: true, close: true, ..PLAIN });
    run(Scenario { arrivals: &[0], drain: true, polls: &[0], ..PLAIN });
}

/// The clock runs out while bytes come, the reader moves, or it is being closed: nothing is lost, and a reader that waits
/// says so.
#[test]
fn loom_the_clock_asks_against_park_and_edge() {
    run(Scenario { arrivals: &[], ask: true, polls: &[0, 1], ..PLAIN });
    run(Scenario { arrivals: &[1], ask: true, ..PLAIN });
    run(Scenario { arrivals: &[1], ask: true, polls: &[1], ..PLAIN });
    run(Scenario { arrivals: &[], ask: true, close: true, polls: &[0], ..PLAIN });
}

/// A question that leaves nothing to be looked at: the reader is woken, parks again and is asked for ever.
#[test]
#[should_panic(expected = "lost question")]
fn loom_twin_asked_without_ready() {
    run(Scenario { arrivals: &[], ask: true, polls: &[0], twin: Twin::AskedToIdle, ..PLAIN });
}

#[test]
#[should_panic(expected = "lost wake: bytes are left")]
fn loom_twin_ready_consumed_after_the_recv() {
    run(Scenario { early: 1, twin: Twin::ConsumeAfterRecv, ..PLAIN });
}

#[test]
#[should_panic(expected = "lost wake: bytes are left")]
fn loom_twin_parked_to_idle_at_the_edge() {
    run(Scenario { twin: Twin::ParkedToIdle, ..PLAIN });
}

#[test]
#[should_panic(expected = "lost wake: bytes are left")]
fn loom_twin_waker_stored_after_the_cas() {
    run(Scenario { polls: &[1], twin: Twin::WakerAfterCas, ..PLAIN });
}

#[test]
#[should_panic(expected = "lost wake: bytes are left")]
fn loom_twin_the_old_waiter_is_kept() {
    run(Scenario { polls: &[0, 1], twin: Twin::KeepOldWaiter, ..PLAIN });
}

#[test]
#[should_panic(expected = "lost wake: the FIN is pending")]
fn loom_twin_sticky_after_the_word() {
    run(Scenario { arrivals: &[1 | FIN], twin: Twin::StickyAfterWord, ..PLAIN });
}

/// The short-recv rule where it does not hold.
#[test]
#[should_panic(expected = "lost wake: bytes are left")]
fn loom_twin_no_probe_after_a_recv_that_stops_short() {
    run(Scenario { arrivals: &[2], stops_short: true, ..PLAIN });
}

/// A read after the end must look once more: the close's own Ready may have gone into a recv that brought bytes.
#[test]
#[should_panic(expected = "lost wake: the mark is pending")]
fn loom_twin_close_leaves_no_mark() {
    run(Scenario { arrivals: &[1], close: true, twin: Twin::CloseWithoutMark, ..PLAIN });
}

#[test]
#[should_panic(expected = "lost wake: the mark is pending")]
fn loom_twin_signal_before_the_reason() {
    run(Scenario { arrivals: &[], close: true, twin: Twin::PublishAfterSignal, ..PLAIN });
}

/// A drain between the look and the consume: its Ready is gone, its mark is not to be missed.
#[test]
#[should_panic(expected = "lost wake: the mark is pending")]
fn loom_twin_parks_upon_a_look_from_before_the_consume() {
    run(Scenario { arrivals: &[0], drain: true, polls: &[0], twin: Twin::StaleLook, ..PLAIN });
}
