//! What the workloads need of a runtime, in the words of each.
//!
//! State: async-executor's executor, a thread-local. Thread class: the main thread.

use std::cell::OnceCell;
use std::future::Future;
use std::pin::Pin;
use std::time::{Duration, Instant};

/// Spawning on the calling thread.
pub trait Rt: 'static {
    /// A spawned task: awaited, it is the task's end.
    type Task: Future + Unpin;

    /// Runs the future as a task of a single-threaded runtime with all its drivers.
    fn block_on(future: impl Future<Output = ()> + 'static);
    fn spawn(future: impl Future<Output = ()> + 'static) -> Self::Task;
    fn yield_now() -> impl Future<Output = ()>;
}

/// Sleeping. tokio's sleep must be pinned, so the workload that keeps many boxes them, for every runtime.
pub trait Timers: Rt {
    type Sleep: Future<Output = ()> + 'static;

    fn sleep_until(deadline: Instant) -> Self::Sleep;

    fn sleep(duration: Duration) -> Self::Sleep {
        Self::sleep_until(Instant::now() + duration)
    }
}

/// Closures that may block, on threads of the runtime's pool.
pub trait Pool: Rt {
    /// Ready with the closure's result.
    fn spawn_blocking(job: impl FnOnce() -> u64 + Send + 'static) -> impl Future<Output = u64>;
}

pub enum Epoxide {}

impl Rt for Epoxide {
    type Task = epoxide::JoinHandle<()>;

    fn block_on(future: impl Future<Output = ()> + 'static) {
        epoxide::block_on(async move { epoxide::spawn_local(future).await.expect("the workload ends") });
    }

    fn spawn(future: impl Future<Output = ()> + 'static) -> Self::Task {
        epoxide::spawn_local(future)
    }

    fn yield_now() -> impl Future<Output = ()> {
        epoxide::yield_now()
    }
}

impl Timers for Epoxide {
    type Sleep = epoxide::time::Sleep;

    fn sleep_until(deadline: Instant) -> Self::Sleep {
        epoxide::time::sleep_until(deadline)
    }
}

impl Pool for Epoxide {
    async fn spawn_blocking(job: impl FnOnce() -> u64 + Send + 'static) -> u64 {
        epoxide::workers::spawn_blocking(job).await.expect("the job ends")
    }
}

pub enum Tokio {}

impl Rt for Tokio {
    type Task = tokio::task::JoinHandle<()>;

    fn block_on(future: impl Future<Output = ()> + 'static) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio starts");
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async { tokio::task::spawn_local(future).await.expect("the workload ends") });
    }

    fn spawn(future: impl Future<Output = ()> + 'static) -> Self::Task {
        tokio::task::spawn_local(future)
    }

    fn yield_now() -> impl Future<Output = ()> {
        tokio::task::yield_now()
    }
}

impl Timers for Tokio {
    type Sleep = tokio::time::Sleep;

    fn sleep_until(deadline: Instant) -> Self::Sleep {
        tokio::time::sleep_until(deadline.into())
    }
}

impl Pool for Tokio {
    async fn spawn_blocking(job: impl FnOnce() -> u64 + Send + 'static) -> u64 {
        tokio::task::spawn_blocking(job).await.expect("the job ends")
    }
}

pub enum AsyncExecutor {}

thread_local! {
    static EXECUTOR: OnceCell<&'static async_executor::LocalExecutor<'static>> = const { OnceCell::new() };
}

fn executor() -> &'static async_executor::LocalExecutor<'static> {
    EXECUTOR.with(|cell| *cell.get_or_init(|| Box::leak(Box::new(async_executor::LocalExecutor::new()))))
}

/// Its task does not catch panics; nothing here panics.
pub struct Spawned(async_executor::Task<()>);

impl Future for Spawned {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl Rt for AsyncExecutor {
    type Task = Spawned;

    fn block_on(future: impl Future<Output = ()> + 'static) {
        let executor = executor();
        let task = executor.spawn(future);
        futures_lite::future::block_on(executor.run(task));
    }

    fn spawn(future: impl Future<Output = ()> + 'static) -> Self::Task {
        Spawned(executor().spawn(future))
    }

    fn yield_now() -> impl Future<Output = ()> {
        futures_lite::future::yield_now()
    }
}
