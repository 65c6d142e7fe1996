//! The workloads.
//!
//! State: none. Thread class: the runtime's thread; `cross` has one more, which wakes.

use crate::rt::{Rt, Timers};
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Tasks that exist side by side.
const AT_ONCE: u64 = 64;

/// Spawns a task, which ends at its first poll, and awaits it.
pub async fn spawn<R: Rt>(n: u64) {
    let done = Rc::new(Cell::new(0));
    let mut tasks = Vec::new();
    for _ in 0..n / AT_ONCE {
        for _ in 0..AT_ONCE {
            let done = done.clone();
            tasks.push(R::spawn(async move { done.set(done.get() + 1) }));
        }
        for task in tasks.drain(..) {
            task.await;
        }
    }
    assert_eq!(done.get(), n / AT_ONCE * AT_ONCE);
}

/// Several tasks that yield to each other.
pub async fn yields<R: Rt>(n: u64) {
    let tasks: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            R::spawn(async move {
                for _ in 0..n / AT_ONCE {
                    R::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}

/// One side of a ping-pong on one thread.
#[derive(Default)]
struct Side {
    waker: RefCell<Option<Waker>>,
    turns: Cell<u64>,
}

impl Side {
    fn wake(&self) {
        self.turns.set(self.turns.get() + 1);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    async fn wait_past(&self, seen: u64) {
        poll_fn(|cx| {
            if self.turns.get() > seen {
                return Poll::Ready(());
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// Two tasks wake each other, N wakes in all.
pub async fn wake<R: Rt>(n: u64) {
    let sides = Rc::new([Side::default(), Side::default()]);
    let tasks: Vec<_> = [0, 1]
        .map(|me: usize| {
            let sides = sides.clone();
            R::spawn(async move {
                for turn in 0..n / 2 {
                    if me == 0 {
                        sides[1].wake();
                    }
                    sides[me].wait_past(turn).await;
                    if me == 1 {
                        sides[0].wake();
                    }
                }
            })
        })
        .into();
    for task in tasks {
        task.await;
    }
}

/// A task and a thread take turns: the thread wakes the task as soon as it is asked, mostly before the task's runtime has
/// gone to sleep: valgrind lets one thread run at a time.
pub async fn cross<R: Rt>(n: u64) {
    take_turns::<R>(n, Duration::ZERO).await;
}

/// The same with a pause before each wake, in which the runtime goes to sleep.
pub async fn asleep<R: Rt>(n: u64) {
    take_turns::<R>(n, Duration::from_micros(200)).await;
}

async fn take_turns<R: Rt>(n: u64, pause: Duration) {
    let slot = Arc::new(Mutex::new(None::<Waker>));
    let turns = Arc::new(AtomicU64::new(0));
    let thread = std::thread::spawn({
        let (slot, turns) = (slot.clone(), turns.clone());
        move || {
            for _ in 0..n {
                let waker = loop {
                    let taken = slot.lock().expect("no holder panics").take();
                    match taken {
                        Some(waker) => break waker,
                        None => std::thread::park(),
                    }
                };
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
                turns.fetch_add(1, Ordering::Release);
                waker.wake();
            }
        }
    });
    for turn in 0..n {
        let mut asked = false;
        poll_fn(|cx| {
            if turns.load(Ordering::Acquire) > turn {
                return Poll::Ready(());
            }
            if !asked {
                asked = true;
                *slot.lock().expect("no holder panics") = Some(cx.waker().clone());
                thread.thread().unpark();
            }
            Poll::Pending
        })
        .await;
    }
    thread.join().expect("the waking thread ends");
}

/// Deadlines between ten and seventy minutes away, in no order: none may pass while a million are armed under valgrind.
fn far(i: u64) -> Duration {
    Duration::from_millis(600_000 + i * 7919 % 3_600_000)
}

/// Arms a timer and cancels it, one after the other.
pub async fn churn<R: Timers>(n: u64) {
    for i in 0..n {
        let mut sleep = pin!(R::sleep(far(i)));
        let pending = poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_pending())).await;
        assert!(pending);
    }
}

/// Arms N timers, then cancels them all.
pub async fn batch<R: Timers>(n: u64) {
    let mut sleeps: Vec<_> = (0..n).map(|i| Box::pin(R::sleep(far(i)))).collect();
    poll_fn(|cx| {
        assert!(sleeps.iter_mut().all(|sleep| sleep.as_mut().poll(cx).is_pending()));
        Poll::Ready(())
    })
    .await;
    drop(sleeps);
}

/// N timers due within one second, a task each. Prints how many were early, how many came, and the latest one.
pub async fn due<R: Timers>(n: u64) {
    let (early, done, latest) =
        (Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(0_u64)), Rc::new(Cell::new(Duration::ZERO)));
    let begin = Instant::now() + Duration::from_millis(500);
    let tasks: Vec<_> = (0..n)
        .map(|i| {
            let (early, done, latest) = (early.clone(), done.clone(), latest.clone());
            let deadline = begin + Duration::from_nanos(1_000_000_000 / n * (i * 7919 % n));
            R::spawn(async move {
                R::sleep_until(deadline).await;
                let now = Instant::now();
                early.set(early.get() + u64::from(now < deadline));
                done.set(done.get() + 1);
                latest.set(latest.get().max(now.saturating_duration_since(deadline)));
            })
        })
        .collect();
    let armed = Instant::now();
    for task in tasks {
        task.await;
    }
    println!(
        "timers {n} early {} came {} latest_us {} armed_in_time {}",
        early.get(),
        done.get(),
        latest.get().as_micros(),
        armed < begin
    );
}
