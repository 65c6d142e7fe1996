//! A closure for a pool of threads, and the handle of its result.
//!
//! State: one mark a job, set by whoever aborts it, read once before it runs. Thread class: any thread. Laws: 6 (a job
//! that is dropped unrun tells what it holds why), 10, 12.

use crate::exec::join::{Abort, Completer, JoinHandle, Target, discarding, pair_for};
use crate::exec::join_error::{JoinError, PanicPayload};
use crate::exec::local::Discard;
use crate::exec::run;
use crate::sync::plain::{AtomicBool, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A closure for a pool of threads. Dropping it unrun settles its handle by the thread's discard reason, like a task.
pub(crate) trait Job: Send {
    /// Runs it, unless it was aborted. `finished` is told whether it panicked, before the handle settles.
    fn run(self: Box<Self>, finished: &mut dyn FnMut(bool));
}

struct PoolJob<C, T> {
    // Dropped in this order: what the closure held is released before the handle settles.
    call: C,
    completer: Completer<T>,
    mark: Arc<Mark>,
}

struct Mark(AtomicBool);

impl Abort for Mark {
    fn abort(&self) {
        self.0.store(true, Ordering::Release);
    }
}

impl<C, T> Job for PoolJob<C, T>
where
    C: FnOnce() -> T + Send,
    T: Send,
{
    fn run(self: Box<Self>, finished: &mut dyn FnMut(bool)) {
        if self.mark.0.load(Ordering::Acquire) {
            finished(false);
            return discarding(Discard::Aborted, || drop(self));
        }
        let Self { call, mut completer, .. } = *self;
        let result =
            catch_unwind(AssertUnwindSafe(call)).map_err(|payload| JoinError::Panic(PanicPayload::new(payload)));
        finished(result.is_err());
        completer.store(result);
        run::caught(|| drop(completer));
    }
}

/// Splits a closure into a handle and the job to be queued.
pub(crate) fn joined_job<C, T>(call: C) -> (JoinHandle<T>, Box<dyn Job>)
where
    C: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let mark = Arc::new(Mark(AtomicBool::new(false)));
    let (handle, completer) = pair_for(Target::Pooled(mark.clone()));
    (handle, Box::new(PoolJob { call, completer, mark }))
}
