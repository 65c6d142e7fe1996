//! What users hold: sleep, timeout, interval.

use std::future::{pending, ready};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::{Counter, HOUR, MS, block_on, idle_driver, park, poll};
use crate::time::driver::{self, Driver};
use crate::time::{
    Elapsed, Interval, MissedTick, Sleep, Tick, Timeout, interval, interval_at, sleep, sleep_until, timeout,
};

#[test]
fn without_a_driver_the_timer_thread_does_it() {
    assert!(driver::current().is_none());
    let begun = Instant::now();
    block_on(sleep(20 * MS));
    assert!(begun.elapsed() >= 20 * MS);
    let threads: Vec<_> = (1..=8).map(|n| thread::spawn(move || block_on(sleep(n * 3 * MS)))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("a sleep panicked"));
    let names = std::fs::read_dir("/proc/self/task")
        .expect("procfs")
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    assert_eq!(names.filter(|name| name.trim() == "epoxide-timer").count(), 1);
}

#[test]
fn the_longest_waits_are_legal_and_cost_nothing() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    let mut sleeps = [sleep(Duration::MAX), sleep(Duration::from_secs(1 << 41)), sleep(Duration::from_secs(1 << 39))];
    let counters: Vec<_> = sleeps.iter_mut().map(park).collect();
    assert_eq!(driver.armed(), 3);
    assert_eq!(driver.fire(Instant::now() + 1000 * HOUR), 0);
    assert!(driver.next_deadline().is_some_and(|at| at > Instant::now() + 1_000_000 * HOUR));
    // Beside them a short one still works, and from MAX one can come back.
    let mut short = sleep(HOUR);
    let counter = park(&mut short);
    sleeps[0].reset(short.deadline());
    assert_eq!((driver.fire(Instant::now() + 1001 * HOUR), counter.wakes(), counters[0].wakes()), (2, 1, 1));
    assert_eq!(block_on(timeout(Duration::MAX, ready(7))), Ok(7));
    let mut ticks = interval(Duration::MAX);
    block_on(ticks.tick());
    assert!(pin!(ticks.tick()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

#[test]
fn reset_moves_a_deadline_either_way_and_loses_no_wake() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    let begun = Instant::now();
    let mut sleep = sleep_until(begun + HOUR);
    let counter = park(&mut sleep);
    // Later: only a number. The wake at the old time is spurious, the poll registers anew.
    sleep.reset(begun + 2 * HOUR);
    sleep.reset(begun + 3 * HOUR);
    assert!(poll(&mut sleep, &counter).is_pending());
    assert_eq!(driver.fire(begun + HOUR + MS), 1);
    assert!(poll(&mut sleep, &counter).is_pending());
    assert_eq!(driver.fire(begun + 3 * HOUR - MS), 0);
    // Later, then half way back, while it is armed.
    sleep.reset(begun + 5 * HOUR);
    sleep.reset(begun + 4 * HOUR);
    assert_eq!(driver.fire(begun + 3 * HOUR + 2 * MS), 0, "moved within its slot, it need not wake");
    // Earlier: the waiting task is woken without another poll.
    sleep.reset(begun + 3 * HOUR + 10 * MS);
    assert_eq!((driver.fire(begun + 3 * HOUR + 11 * MS), counter.wakes()), (1, 2));
    // Into the past: ready, again and again; then once more from the start.
    sleep.reset(begun);
    assert!(sleep.is_elapsed() && poll(&mut sleep, &counter).is_ready() && poll(&mut sleep, &counter).is_ready());
    sleep.reset(Instant::now() + HOUR);
    assert!(!sleep.is_elapsed() && poll(&mut sleep, &counter).is_pending());
}

#[test]
fn the_last_poll_is_the_one_that_is_woken_whatever_thread_made_it() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    let mut sleep = sleep(HOUR);
    let first = park(&mut sleep);
    let (mut sleep, second) = thread::spawn(move || {
        let second = park(&mut sleep);
        (sleep, second)
    })
    .join()
    .expect("the poll panicked");
    assert_eq!((driver.armed(), Arc::strong_count(&first)), (1, 1), "it stays with its driver, the old waker goes");
    assert_eq!((driver.fire(Instant::now() + 2 * HOUR), first.wakes(), second.wakes()), (1, 0, 1));
    assert!(poll(&mut sleep, &first).is_pending());
}

#[test]
fn a_deadline_is_fixed_at_creation_and_the_clock_alone_decides() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    let (late, mut armed) = (sleep(2 * MS), sleep(2 * MS));
    let counter = Counter::new(None);
    let _ = poll(&mut armed, &counter);
    while !late.is_elapsed() || !armed.is_elapsed() {
        thread::yield_now();
    }
    // Nobody fired.
    for mut sleep in [late, armed] {
        assert!(poll(&mut sleep, &counter).is_ready());
    }
    assert_eq!(driver.armed(), 0);
}

/// The one exception: what was more than a second away when its loop's pass began is not looked at again in that pass.
#[test]
fn a_deadline_that_passes_within_one_long_pass_is_ready_in_the_next() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    let mut far = sleep(1100 * MS);
    let counter = Counter::new(Some(far.deadline()));
    assert!(poll(&mut far, &counter).is_pending());
    // sleep: the pass takes longer than what counts as far ahead.
    thread::sleep(1200 * MS);
    assert!(far.is_elapsed() && poll(&mut far, &counter).is_pending());
    driver.fire(Instant::now());
    assert_eq!((counter.wakes(), counter.early.load(Ordering::SeqCst)), (1, false));
    assert!(poll(&mut far, &counter).is_ready());
    assert_eq!(driver.armed(), 0);
}

#[test]
fn a_timeout_polls_the_future_first_and_says_how_long_it_was_given() {
    assert_eq!(block_on(timeout(Duration::ZERO, ready(1))), Ok(1));
    let begun = Instant::now();
    let elapsed = block_on(timeout(5 * MS, pending::<()>())).expect_err("it never ends");
    assert!(begun.elapsed() >= 5 * MS && elapsed.after() == 5 * MS);
    let error = std::io::Error::from(elapsed);
    assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
    assert_eq!(error.to_string(), "timed out: the operation was not complete after 5ms");
    // The future can be taken back and goes on.
    let mut ended = timeout(Duration::ZERO, sleep(10 * MS));
    assert!(block_on(&mut ended).is_err());
    block_on(ended.into_inner());
    assert!(begun.elapsed() >= 15 * MS);
}

#[test]
fn an_interval_ticks_on_its_schedule_as_a_stream_too() {
    use futures_core::Stream;
    let start = Instant::now() + 2 * MS;
    let mut ticks = interval_at(start, 2 * MS);
    for n in 0..5 {
        let due = block_on(ticks.tick());
        assert!(Instant::now() >= due && due == start + n * 2 * MS);
    }
    // A tick that was not waited for to the end is not lost. Far enough ahead that the poll is no tick on a busy machine.
    let start = Instant::now() + 500 * MS;
    let mut ticks = interval_at(start, 2 * MS);
    assert!(pin!(ticks.tick()).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let next = block_on(std::future::poll_fn(|cx| Pin::new(&mut ticks).poll_next(cx)));
    assert_eq!(next, Some(start));
    ticks.set_missed_tick(MissedTick::Delay).reset();
    let due = block_on(ticks.tick());
    assert!(due >= start + 2 * MS && ticks.missed_tick() == MissedTick::Delay);
    assert_eq!(interval(Duration::ZERO).period(), MS);
}

#[test]
fn what_is_public_can_go_to_any_thread() {
    fn all<T: Send + Sync + Unpin + std::fmt::Debug + 'static>() {}
    all::<Sleep>();
    all::<Timeout<std::future::Ready<()>>>();
    all::<Elapsed>();
    all::<Interval>();
    all::<Tick<'static>>();
    all::<MissedTick>();
    fn shared<T: Send + Sync>() {}
    shared::<Driver>();
}

/// A reactor with nothing armed does not look at the clock: what is past is ready at the first poll all the same.
#[test]
fn a_deadline_in_the_past_is_ready_at_the_first_poll_of_a_reactor_without_timers() {
    crate::block_on(async {
        // sleep: the clock must have gone on by more than what counts as far ahead.
        std::thread::sleep(1200 * MS);
        for _ in 0..3 {
            crate::yield_now().await;
        }
        let mut past = sleep_until(Instant::now());
        assert!(Pin::new(&mut past).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert!(Pin::new(&mut past).poll(&mut Context::from_waker(Waker::noop())).is_ready());
    });
}
