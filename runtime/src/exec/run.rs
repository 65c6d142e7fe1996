//! Polls tasks: a bounded batch, one panic boundary a poll.
//!
//! A task that is woken during the batch is polled in the same one, except by its own wake: a yield ends its turn, so a
//! flooded reader gets one share a pass, and tasks that wake each other cost no pass each.
//!
//! State: none of its own. Thread class: reactor only. Laws: 8 (budget), 10 (panics are caught per task, the pass
//! goes on; no user code under a borrow), 6 (what a discarded task held is reset).

use crate::exec::local::{self, Discard};
use crate::exec::task::Task;
use crate::exec::tasks::Tasks;
use crate::id::TaskId;
use crate::stats::Count;
use crate::sync::quiet::quiet;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// The most polls of one pass, whatever its budget: tasks that wake each other for ever do not hold it.
const MAX_POLLS: usize = 65_536;

/// Polls runnable tasks, at most `budget`, also those that are woken meanwhile by others.
pub(crate) fn batch(budget: usize) {
    let mut pending: Option<(TaskId, Task)> = None;
    let mut polls = 0;
    while polls < budget.min(MAX_POLLS) {
        // One borrow a task: the last one goes back, the next one comes out.
        let next = local::with_tasks(|tasks| {
            if let Some((id, task)) = pending.take() {
                tasks.put_back(id, task);
            }
            tasks.next()
        });
        let Some((id, task)) = next else { break };
        pending = poll(id, task);
        polls += 1;
    }
    local::with_tasks(|tasks| {
        if let Some((id, task)) = pending.take() {
            tasks.put_back(id, task);
        }
        tasks.end_pass();
    });
    if polls > 0 {
        local::count_here(Count::TaskPolls, polls as u64);
    }
}

/// One poll. What is pending comes back.
#[inline]
fn poll(id: TaskId, mut task: Task) -> Option<(TaskId, Task)> {
    if task.header().is_aborted() {
        discard(id, task, Discard::Aborted, None);
        return None;
    }
    local::set_current(id, task.waker());
    let result = catch_unwind(AssertUnwindSafe(|| task.poll()));
    local::clear_current();
    match result {
        Ok(Poll::Pending) => Some((id, task)),
        Ok(Poll::Ready(ok)) => {
            if !ok {
                local::count_here(Count::HandlerErrors, 1);
            }
            discard(id, task, Discard::No, None);
            None
        }
        Err(payload) => {
            local::count_here(Count::Panics, 1);
            discard(id, task, Discard::Panicked, Some(payload));
            None
        }
    }
}

/// Drops a task's future on its own thread, telling what it holds why.
fn discard(id: TaskId, task: Task, why: Discard, thrown: Option<Box<dyn Any + Send>>) {
    local::set_discard(why, thrown);
    caught(|| drop(task));
    let unclaimed = local::set_discard(Discard::No, None);
    caught(|| drop(unclaimed));
    local::with_tasks(|tasks| tasks.remove(id));
}

/// Runs user code (a waker, a hook, a Drop); a panic is counted and goes no further.
pub(crate) fn caught(f: impl FnOnce()) -> bool {
    let ok = quiet(f);
    if !ok {
        local::count_here(Count::Panics, 1);
    }
    ok
}

/// The end of the reactor: every task's future is dropped here, in whatever order; tasks spawned meanwhile too.
pub(crate) fn discard_all() {
    while let Some((id, task)) = local::with_tasks(Tasks::take_any) {
        discard(id, task, Discard::Stopped, None);
    }
}
