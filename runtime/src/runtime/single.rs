//! One reactor on the calling thread, and `block_on`.
//!
//! State: none. Thread class: any thread that is not a reactor's. Laws: 7 (the root future is a source that is
//! re-checked), 9, 12.

use crate::config::ReactorConfig;
use crate::exec::home::Home;
use crate::exec::local;
use crate::reactor::Reactor;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs a future on a temporary reactor of the calling thread: for clients, tests and tools. `spawn_local` works
/// inside; what was spawned and is not done when the future is, is dropped.
///
/// # Errors
/// With the errno of epoll or eventfd when the reactor cannot be made.
///
/// # Panics
/// On a reactor thread, which must not block; and with the future's own panic.
#[track_caller]
pub fn block_on<F: Future>(future: F) -> F::Output {
    refuse_reactor_thread();
    match try_block_on(future) {
        Ok(output) => output,
        Err(error) => panic!("block_on could not run a reactor on this thread: {error}"),
    }
}

#[track_caller]
fn refuse_reactor_thread() {
    assert!(
        !local::is_reactor_thread(),
        "block_on was called on a reactor thread: it would stop every connection of the reactor. Await the future, or spawn it"
    );
}

fn try_block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let home = Arc::new(Home::new(0, ReactorConfig::default())?);
    let mut reactor = Reactor::new(home.clone())?;
    let root = Arc::new(Root { home, woken: AtomicBool::new(true) });
    let waker = Waker::from(root.clone());
    let mut future = pin!(future);
    // The future is the caller's and its panic too, but the reactor is torn down first.
    let result = catch_unwind(AssertUnwindSafe(|| {
        loop {
            if root.woken.swap(false, Ordering::AcqRel)
                && let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker))
            {
                return Ok(output);
            }
            reactor.turn_for(|| root.woken.load(Ordering::Acquire))?;
        }
    }));
    reactor.teardown();
    match result {
        Ok(output) => output,
        Err(payload) => resume_unwind(payload),
    }
}

/// The waker of a future that a reactor polls beside its tasks.
struct Root {
    home: Arc<Home>,
    woken: AtomicBool,
}

impl Wake for Root {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Published before the home looks whether its reactor sleeps (law 7).
        if !self.woken.swap(true, Ordering::AcqRel) {
            self.home.wake();
        }
    }
}

/// Runs a future on the calling thread, parking it while the future waits; no reactor of its own.
#[track_caller]
pub(super) fn park_on<F: Future>(future: F) -> F::Output {
    refuse_reactor_thread();
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        thread::park();
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}
