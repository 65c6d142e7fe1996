//! Spawning on this thread's reactor, and what a spawned future may return.
//!
//! State: none of its own. Thread class: reactor only. Laws: 9, 10.

use crate::exec::join::{self, JoinHandle};
use crate::exec::join_error::JoinError;
use crate::exec::local;
use crate::exec::task::Task;
use crate::exec::watched;
use crate::stats::Count;
use crate::trace;
use std::fmt::Display;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What a handler may return: nothing, or a `Result` whose error can be shown.
///
/// Sealed. An error is counted ([`Stats::handler_errors`](crate::Stats::handler_errors)); the connection ends as it
/// would have ended anyway.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let mut server = epoxide::Runtime::builder();
/// server.listen("127.0.0.1:0", |_conn| async {}); // `()`
/// server.listen("127.0.0.1:0", |mut conn| async move { conn.send_all(b"hi").await }); // a `Result`
/// # Ok(())
/// # }
/// ```
pub trait Outcome: sealed::Sealed {
    /// `Err` holds the text of the error.
    #[doc(hidden)]
    fn settle(self) -> Result<(), String>;
}

mod sealed {
    #[allow(unnameable_types, reason = "this is what seals the trait")]
    pub trait Sealed {}
    impl Sealed for () {}
    impl<E> Sealed for Result<(), E> {}
}

impl Outcome for () {
    fn settle(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: Display> Outcome for Result<(), E> {
    fn settle(self) -> Result<(), String> {
        self.map_err(|error| error.to_string())
    }
}

/// Spawns a future on this thread's reactor and returns a handle to its result. It is polled there only, so it may
/// be `!Send`. Dropping the handle detaches the task.
///
/// While a reactor ends, the destructors of its tasks may spawn 10 000 more, which are dropped like the others; a future
/// past that is leaked, counted ([`Stats::spawns_refused`](crate::Stats::spawns_refused)), and its handle says
/// [`JoinError::Stopped`].
///
/// # Panics
/// When no reactor runs on this thread. [`ReactorHandle::current`](crate::ReactorHandle::current) tells; from other
/// threads use [`ReactorHandle::spawn`](crate::ReactorHandle::spawn).
#[track_caller]
pub fn spawn_local<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + 'static,
    F::Output: 'static,
{
    let Some(header) = local::header(Location::caller()) else {
        panic!("spawn_local was called on a thread without a reactor; use ReactorHandle::spawn from there");
    };
    if watched::refuses_spawns() {
        return refused(future);
    }
    let (handle, task) = join::joined(header.clone(), future);
    local::insert_task(Task::new(task, header));
    handle
}

/// A reactor that ends drops its tasks, and their destructors may spawn others without end: past a bound it takes no
/// more. The future is leaked: dropping it is what would spawn the next one.
#[cold]
fn refused<F: Future>(future: F) -> JoinHandle<F::Output> {
    let _leaked = ManuallyDrop::new(future);
    local::count_here(Count::SpawnsRefused, 1);
    trace::refused(local::home().map_or(0, |home| home.index), "tasks spawned at the end", 1);
    join::settled(JoinError::Stopped)
}

/// Lets every other runnable task of this executor run first: the task goes to the BACK of the queue.
///
/// Cancel safety: nothing happens when dropped. Any thread.
pub fn yield_now() -> YieldNow {
    YieldNow { yielded: false }
}

/// The future of [`yield_now`].
///
/// ```
/// # epoxide::block_on(async {
/// epoxide::yield_now().await; // others had their turn
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
