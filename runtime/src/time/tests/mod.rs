//! The time room as its users and its loop see it, and what the tests share. Lower bounds are exact, ceilings
//! generous.

mod driver;
mod futures;
mod stress;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

use super::Sleep;
use super::driver::Driver;
use super::thread::Bell;

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);
/// Far beyond what a loaded machine needs; only a lost timer gets there.
const CEILING: Duration = Duration::from_secs(60);

/// A driver and a thread that runs its loop.
struct Loop {
    driver: Arc<Driver>,
    bell: Arc<Bell>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Loop {
    fn start() -> Self {
        let (bell, stop) = (Arc::new(Bell::default()), Arc::new(AtomicBool::new(false)));
        let ring = Arc::clone(&bell);
        let driver = Driver::new(Box::new(move || ring.ring()));
        let thread = thread::spawn({
            let (driver, bell, stop) = (Arc::clone(&driver), Arc::clone(&bell), Arc::clone(&stop));
            move || {
                let _entered = driver.enter();
                while !stop.load(Ordering::Acquire) {
                    driver.fire(Instant::now());
                    bell.wait(&driver);
                }
            }
        });
        Self { driver, bell, stop, thread: Some(thread) }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.bell.ring();
        let ended = self.thread.take().expect("taken only here").join();
        assert!(ended.is_ok() || thread::panicking(), "the loop panicked");
    }
}

/// A driver without a loop, and how often it was notified.
fn idle_driver() -> (Arc<Driver>, Arc<AtomicUsize>) {
    let notified = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&notified);
    (Driver::new(Box::new(move || _ = count.fetch_add(1, Ordering::SeqCst))), notified)
}

/// Counts its wakes and unparks who waits for them.
struct Counter {
    wakes: AtomicUsize,
    waiter: Thread,
    /// A wake before this is early.
    not_before: Option<Instant>,
    early: AtomicBool,
}

impl Counter {
    fn new(not_before: Option<Instant>) -> Arc<Self> {
        let (wakes, early) = (AtomicUsize::new(0), AtomicBool::new(false));
        Arc::new(Self { wakes, waiter: thread::current(), not_before, early })
    }

    fn wakes(&self) -> usize {
        self.wakes.load(Ordering::SeqCst)
    }
}

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        if self.not_before.is_some_and(|at| Instant::now() < at) {
            self.early.store(true, Ordering::SeqCst);
        }
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.waiter.unpark();
    }
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + CEILING;
    while !done() {
        let now = Instant::now();
        assert!(now < end, "lost: {what}");
        thread::park_timeout(end - now);
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let counter = Counter::new(None);
    let waker = Waker::from(Arc::clone(&counter));
    let (mut future, mut seen) = (pin!(future), 0);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        wait_until("a wake", || counter.wakes() > seen);
        seen = counter.wakes();
    }
}

fn poll(sleep: &mut Sleep, counter: &Arc<Counter>) -> Poll<()> {
    Pin::new(sleep).poll(&mut Context::from_waker(&Waker::from(Arc::clone(counter))))
}

fn park(sleep: &mut Sleep) -> Arc<Counter> {
    let counter = Counter::new(Some(sleep.deadline()));
    assert!(poll(sleep, &counter).is_pending(), "it is due already");
    counter
}
