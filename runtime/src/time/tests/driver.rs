//! One driver by hand: when it notifies, what it wakes, what user code may do inside it.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::{Counter, HOUR, MS, block_on, idle_driver, park, poll};
use crate::time::driver::{self, Driver};
use crate::time::{Sleep, sleep};

#[test]
fn an_earlier_deadline_armed_elsewhere_notifies_and_no_other_does() {
    // The notification looks into the driver: that would hang if a lock were held.
    static DRIVER: OnceLock<Weak<Driver>> = OnceLock::new();
    static NOTIFIED: AtomicUsize = AtomicUsize::new(0);
    let driver = Driver::new(Box::new(|| {
        DRIVER.get().and_then(Weak::upgrade).expect("alive").armed();
        NOTIFIED.fetch_add(1, Ordering::SeqCst);
    }));
    DRIVER.set(Arc::downgrade(&driver)).expect("set once");
    let count = || NOTIFIED.load(Ordering::SeqCst);
    let mut kept = Vec::new();
    let mut arm = |wait| {
        let mut sleep = sleep(wait);
        park(&mut sleep);
        kept.push(sleep);
    };
    {
        let _remote = driver.enter_remote();
        for (wait, expected) in [(10 * HOUR, 1), (20 * HOUR, 1), (10 * HOUR + 1000 * MS, 1), (5 * HOUR, 2)] {
            arm(wait);
            assert_eq!(count(), expected, "after {wait:?}");
        }
        let _here = driver.enter();
        arm(4 * HOUR);
        assert_eq!(count(), 2, "the loop's own thread needs no notification");
    }
    let (mut first, mut second) = (kept.pop().expect("armed"), kept.pop().expect("armed"));
    second.reset(Instant::now() + 4 * HOUR + HOUR / 2);
    assert_eq!(count(), 2, "earlier than before, but not the earliest");
    first.reset(Instant::now() + 6 * HOUR);
    assert_eq!(count(), 2, "later");
    first.reset(Instant::now() + HOUR);
    assert_eq!(count(), 3, "the earliest, moved on a thread that has no driver");
    assert!(driver.next_deadline().is_some_and(|at| at <= first.deadline() + MS));
}

#[test]
fn the_loop_sleeps_until_the_tick_and_then_finds_it_due() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    assert!(driver.next_deadline().is_none() && driver.fire(Instant::now() + HOUR) == 0);
    let (mut one, mut two) = (sleep(10 * HOUR + Duration::from_nanos(1)), sleep(20 * HOUR));
    let (counter, _) = (park(&mut one), park(&mut two));
    let next = driver.next_deadline().expect("armed");
    assert!(next >= one.deadline() && next < one.deadline() + MS, "rounded up to the tick");
    assert_eq!(driver.fire(next - Duration::from_nanos(1)), 0);
    assert_eq!((driver.fire(next), counter.wakes()), (1, 1));
    let next = driver.next_deadline().expect("one is left");
    assert!(next >= two.deadline() && next < two.deadline() + MS, "exact again");
    drop(two);
    assert!(driver.next_deadline().is_none());
    // The clock has not come so far: woken too early, it waits on.
    assert!(poll(&mut one, &counter).is_pending());
    assert_eq!(driver.armed(), 1);
    drop(one);
    assert!(driver.next_deadline().is_none() && Arc::strong_count(&counter) == 1);
}

/// Its wake and its last drop use the driver; the wake may panic as well.
struct Rude {
    inner: Mutex<Option<Sleep>>,
    arms: Arc<Mutex<Vec<Sleep>>>,
    panics: bool,
}

impl Wake for Rude {
    fn wake(self: Arc<Self>) {
        let mut sleep = sleep(HOUR / 2);
        drop(park(&mut sleep));
        self.arms.lock().expect("no panic inside").push(sleep);
        assert!(!self.panics, "a rude wake: this panic is part of the test");
    }
}

impl Drop for Rude {
    fn drop(&mut self) {
        // Cancels in the driver that drops this waker.
        drop(self.inner.lock().expect("no panic inside").take());
        drop(park(&mut sleep(HOUR)));
    }
}

#[test]
fn wakers_that_use_the_driver_or_panic_do_no_harm() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    let arms = Arc::new(Mutex::new(Vec::new()));
    let mut sleeps = Vec::new();
    for i in 0..1_000 {
        let mut inner = sleep(3 * HOUR);
        drop(park(&mut inner));
        let rude = Rude { inner: Mutex::new(Some(inner)), arms: Arc::clone(&arms), panics: i % 100 == 0 };
        let mut sleep = sleep(HOUR);
        assert!(Pin::new(&mut sleep).poll(&mut Context::from_waker(&Waker::from(Arc::new(rude)))).is_pending());
        sleeps.push(sleep);
    }
    let polite = sleeps.split_off(500);
    // Dropped with the sleep, replaced by another poll, woken: each ends in the waker's drop.
    drop(polite);
    let counter = Counter::new(None);
    for sleep in sleeps.iter_mut().take(100) {
        assert!(poll(sleep, &counter).is_pending());
    }
    assert_eq!(driver.armed(), 900);
    // What the wakes arm is due by this clock too; a call ends all the same.
    let woken = driver.fire(Instant::now() + 2 * HOUR);
    assert!((500..=900 + 256).contains(&woken), "woken: {woken}");
    driver.fire(Instant::now() + 2 * HOUR);
    assert_eq!(driver.take_wake_panics(), 4);
    assert_eq!((counter.wakes(), arms.lock().expect("no panic inside").len()), (100, 400));
    assert_eq!(driver.armed(), 0, "only sleeps that were fired or dropped");
}

/// Each wake arms a sleep that is due by the clock of the test, and waits for it.
struct Chain(Mutex<Vec<Sleep>>);

impl Wake for Chain {
    fn wake(self: Arc<Self>) {
        let mut next = sleep(HOUR / 2);
        assert!(Pin::new(&mut next).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&self)))).is_pending());
        self.0.lock().expect("no panic inside").push(next);
    }
}

#[test]
fn a_fire_ends_although_every_wake_arms_another() {
    let (driver, _) = idle_driver();
    let _current = driver.enter();
    let chain = Arc::new(Chain(Mutex::new(Vec::new())));
    // More than one batch, so that the first wakes arm before the last are looked for.
    (0..1_000).for_each(|_| Arc::clone(&chain).wake());
    for _ in 0..3 {
        let woken = driver.fire(Instant::now() + HOUR);
        assert!((1_000..3_000).contains(&woken), "woken: {woken}");
        assert_eq!(driver.armed(), 1_000);
    }
    chain.0.lock().expect("no panic inside").clear();
    assert_eq!((driver.armed(), Arc::strong_count(&chain)), (0, 1));
}

#[test]
fn a_driver_that_is_shut_wakes_all_and_they_go_on_elsewhere() {
    let (driver, _) = idle_driver();
    let current = driver.enter();
    let mut sleeps: Vec<_> = (0..100).map(|_| sleep(HOUR)).collect();
    let counters: Vec<_> = sleeps.iter_mut().map(park).collect();
    driver.shutdown();
    driver.shutdown();
    assert!(driver.next_deadline().is_none() && driver.armed() == 0);
    assert!(counters.iter().all(|counter| counter.wakes() == 1));
    // Still this thread's driver, but it takes nothing more.
    for mut sleep in sleeps {
        assert!(poll(&mut sleep, &counters[0]).is_pending());
        sleep.reset(Instant::now() + MS);
        let deadline = sleep.deadline();
        block_on(sleep);
        assert!(Instant::now() >= deadline);
    }
    assert_eq!(driver.armed(), 0);
    drop(current);
    assert_eq!(Arc::strong_count(&driver), 1, "someone keeps the driver");
}

#[test]
fn time_can_be_used_while_the_thread_tears_down() {
    struct AtExit(Arc<Driver>, Option<Sleep>, Arc<AtomicBool>);
    impl Drop for AtExit {
        fn drop(&mut self) {
            let _current = self.0.enter();
            drop(self.1.take());
            drop(park(&mut sleep(HOUR)));
            self.2.store(true, Ordering::SeqCst);
        }
    }
    thread_local!(static AT_EXIT: std::cell::RefCell<Option<AtExit>> = const { std::cell::RefCell::new(None) });
    let ((driver, _), ran) = (idle_driver(), Arc::new(AtomicBool::new(false)));
    // Whichever of the two thread-locals is used first, the other one's destructor may meet it.
    for enter_first in [false, true] {
        ran.store(false, Ordering::SeqCst);
        thread::spawn({
            let (driver, ran) = (Arc::clone(&driver), Arc::clone(&ran));
            move || {
                let before = enter_first.then(|| driver.enter());
                AT_EXIT.set(Some(AtExit(Arc::clone(&driver), None, ran)));
                let _current = before.unwrap_or_else(|| driver.enter());
                let mut sleep = sleep(HOUR);
                drop(park(&mut sleep));
                AT_EXIT.with_borrow_mut(|at_exit| at_exit.as_mut().expect("set above").1 = Some(sleep));
            }
        })
        .join()
        .expect("a panic in teardown");
        assert!(ran.load(Ordering::SeqCst) && driver.armed() == 0 && Arc::strong_count(&driver) == 1);
    }
}

#[test]
fn guards_nest_and_give_back_what_was_there() {
    let ((outer, _), (inner, _)) = (idle_driver(), idle_driver());
    let is = |driver: &Arc<Driver>| driver::current().is_some_and(|current| Arc::ptr_eq(&current.driver, driver));
    let first = outer.enter();
    let second = inner.enter_remote();
    assert!(is(&inner));
    drop(second);
    assert!(is(&outer));
    drop(first);
    assert!(driver::current().is_none());
}
