//! Many timers, several threads: none early, none lost, none kept. Cites ids of the list of behaviours.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use super::{CEILING, Counter, HOUR, Loop, MS, block_on, idle_driver, park, poll, wait_until};
use crate::time::{Sleep, sleep, sleep_until};

/// TIM-05, TIM-06: a burst of waits beside a longer one.
#[test]
fn a_burst_of_1100_beside_a_longer_one_keeps_every_deadline() {
    let fixture = Loop::start();
    let _current = fixture.driver.enter_remote();
    for burst in [1000, 1100] {
        let begun = Instant::now();
        let mut first = pin!(sleep(20 * MS));
        let mut rest: Vec<_> = (0..burst).map(|_| Some(sleep(MS))).collect();
        let mut expired = 0;
        block_on(std::future::poll_fn(|cx| {
            for slot in &mut rest {
                let Some(sleep) = slot else { continue };
                let deadline = sleep.deadline();
                if Pin::new(sleep).poll(cx).is_ready() {
                    assert!(Instant::now() >= deadline, "early");
                    *slot = None;
                    expired += 1;
                }
            }
            if rest.iter().all(Option::is_none) { first.as_mut().poll(cx) } else { Poll::Pending }
        }));
        assert!(begun.elapsed() >= 20 * MS && expired == burst);
        assert_eq!(fixture.driver.armed(), 0);
    }
}

#[test]
fn of_100_000_timers_within_a_second_none_is_early_and_none_is_lost() {
    let fixture = Loop::start();
    let _current = fixture.driver.enter_remote();
    let begun = Instant::now();
    let total = 100_000_u32;
    // Polled only by their wakers' count; the first may be due before the last is armed.
    let mut armed = Vec::new();
    for i in 0..total {
        let mut sleep = sleep_until(begun + 250 * MS + i * 7_919 % total * Duration::from_micros(10));
        let counter = Counter::new(Some(sleep.deadline()));
        let ready = poll(&mut sleep, &counter).is_ready();
        armed.push((sleep, counter, ready));
    }
    let parked = armed.iter().filter(|(_, _, ready)| !ready).count();
    assert!(parked > 0, "all were due before they were armed");
    let done = |(_, counter, ready): &(Sleep, Arc<Counter>, bool)| *ready || counter.wakes() > 0;
    let mut first_open = 0;
    wait_until("a timer", || {
        first_open += armed[first_open..].iter().take_while(|timer| done(timer)).count();
        first_open == armed.len()
    });
    assert!(begun.elapsed() >= 250 * MS);
    for (sleep, counter, ready) in &mut armed {
        assert!(!counter.early.load(Ordering::SeqCst), "woken early");
        assert!(*ready || counter.wakes() == 1, "woken {} times", counter.wakes());
        assert!(poll(sleep, counter).is_ready());
    }
    assert_eq!(fixture.driver.armed(), 0);
}

#[test]
fn timers_armed_and_dropped_by_several_threads_share_one_driver() {
    let fixture = Loop::start();
    let workers: Vec<_> = (0..4_u64)
        .map(|worker| {
            let driver = Arc::clone(&fixture.driver);
            thread::spawn(move || {
                let _current = driver.enter_remote();
                for i in 0..200 {
                    // Waits of 1 ms, longer ones that are dropped, and one that another thread drops.
                    let mut long: Vec<_> = (1..10).map(|n| sleep(HOUR + (i * n) as u32 * MS)).collect();
                    long.iter_mut().for_each(|sleep| drop(park(sleep)));
                    let begun = Instant::now();
                    block_on(sleep(Duration::from_micros(200 * (1 + (i + worker) % 4))));
                    assert!(begun.elapsed() >= Duration::from_micros(200 * (1 + (i + worker) % 4)));
                    if i % 50 == 0 {
                        thread::spawn(move || drop(long)).join().expect("a drop panicked");
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("a worker panicked");
    }
    assert_eq!(fixture.driver.armed(), 0);
    assert!(fixture.driver.next_deadline().is_none(), "the loop would wake for nothing");
}

#[test]
fn a_cancel_that_races_the_fire_wakes_at_most_once_and_keeps_nothing() {
    let (driver, _) = idle_driver();
    let (go, done) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let stop = Arc::new(AtomicBool::new(false));
    let firing = thread::spawn({
        let (driver, go, done, stop) = (Arc::clone(&driver), Arc::clone(&go), Arc::clone(&done), Arc::clone(&stop));
        move || {
            loop {
                go.wait();
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                driver.fire(Instant::now() + 2 * HOUR);
                done.wait();
            }
        }
    });
    let _current = driver.enter_remote();
    let (mut woken, mut cancelled, mut rounds) = (0, 0, 0);
    let begun = Instant::now();
    // Until both have won, or much longer than it takes.
    while rounds < 3_000 || ((woken == 0 || cancelled == 0) && begun.elapsed() < CEILING) {
        rounds += 1;
        let mut timers: Vec<_> = (0..8).map(|_| sleep(HOUR)).collect();
        let counter = Counter::new(None);
        for timer in &mut timers {
            assert!(poll(timer, &counter).is_pending());
        }
        go.wait();
        (0..rounds % 50 * 20).for_each(|_| std::hint::spin_loop());
        drop(timers);
        done.wait();
        assert!(counter.wakes() <= 8, "woken twice");
        woken += counter.wakes();
        cancelled += 8 - counter.wakes();
        assert_eq!((driver.armed(), Arc::strong_count(&counter)), (0, 1), "something was kept");
        assert!(driver.next_deadline().is_none());
    }
    stop.store(true, Ordering::SeqCst);
    go.wait();
    firing.join().expect("the firing thread panicked");
    assert!(woken > 0 && cancelled > 0, "no race: {woken} woken, {cancelled} cancelled");
}

#[test]
fn shutting_down_races_arming_and_settles_every_sleep() {
    for round in 0..100 {
        let fixture = Loop::start();
        let driver = Arc::clone(&fixture.driver);
        let sleeper = thread::spawn(move || {
            let _current = driver.enter_remote();
            for _ in 0..20 {
                block_on(sleep(Duration::from_micros(300)));
            }
        });
        (0..round * 200).for_each(|_| std::hint::spin_loop());
        fixture.driver.shutdown();
        sleeper.join().expect("a sleep was lost");
        assert_eq!(fixture.driver.armed(), 0);
    }
}
