//! Job: poll a future on a plain thread, bounded, so that a lost wake-up is a failure and not a hang.
//! It is deliberately no executor of epoxide's own: it stands for "any other executor".
//! State owned: one parker per call. Thread class: any thread but a reactor's.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A waker that unparks the thread that made it and counts its wakes.
#[derive(Debug)]
pub struct Parker {
    thread: Thread,
    wakes: AtomicUsize,
}

impl Parker {
    /// A parker for the calling thread.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { thread: std::thread::current(), wakes: AtomicUsize::new(0) })
    }

    /// How often it was woken.
    pub fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Acquire)
    }

    /// Sleeps until it has been woken more than `seen` times; false when `deadline` passed first.
    pub fn park_past(&self, seen: usize, deadline: Instant) -> bool {
        while self.wakes() <= seen {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            std::thread::park_timeout(left);
        }
        true
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wakes.fetch_add(1, Ordering::AcqRel);
        self.thread.unpark();
    }
}

/// Drives `future` on this thread; `None` when it is not done within `within`.
///
/// It polls only when woken, so a wake-up that is lost shows as `None`.
pub fn block_within<F: Future>(future: F, within: Duration) -> Option<F::Output> {
    let deadline = Instant::now() + within;
    let parker = Parker::new();
    let waker = Waker::from(Arc::clone(&parker));
    let mut future = pin!(future);
    loop {
        let seen = parker.wakes();
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending if parker.park_past(seen, deadline) => {}
            Poll::Pending => return None,
        }
    }
}

/// Polls `future` once with `parker` as its waker.
pub fn poll_once<F: Future>(future: Pin<&mut F>, parker: &Arc<Parker>) -> Poll<F::Output> {
    let waker = Waker::from(Arc::clone(parker));
    future.poll(&mut Context::from_waker(&waker))
}
