//! Polls tasks: a bounded batch, one panic boundary a poll.
//!
//! State: none of its own. Thread class: reactor only. Laws: 8 (budget), 10 (panics are caught per task, the pass
//! goes on; no user code under a borrow), 6 (what a discarded task held is reset).

use crate::exec::local::{self, Discard, Tasks};
use crate::exec::task::Task;
use crate::id::TaskId;
use crate::stats::Count;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// Polls the tasks that are runnable now, at most `budget`. Tasks woken meanwhile wait for the next batch.
pub(crate) fn batch(budget: usize) -> usize {
    let n = local::with_tasks(|tasks| tasks.ready_len()).min(budget);
    let mut polled = 0;
    let mut pending: Option<(TaskId, Task)> = None;
    loop {
        // One borrow a task: the last one goes back, the next one comes out.
        let next = local::with_tasks(|tasks| {
            if let Some((id, task)) = pending.take() {
                tasks.put_back(id, task);
            }
            if polled < n { tasks.next() } else { None }
        });
        let Some((id, mut task)) = next else { break };
        polled += 1;
        if task.header().is_aborted() {
            discard(id, task, Discard::Aborted, None);
            continue;
        }
        local::set_current(id, task.waker());
        let result = catch_unwind(AssertUnwindSafe(|| task.poll()));
        local::clear_current();
        match result {
            Ok(Poll::Pending) => pending = Some((id, task)),
            Ok(Poll::Ready(ok)) => {
                if !ok {
                    local::count_here(Count::HandlerErrors, 1);
                }
                discard(id, task, Discard::No, None);
            }
            Err(payload) => {
                local::count_here(Count::Panics, 1);
                discard(id, task, Discard::Panicked, Some(payload));
            }
        }
    }
    local::count_here(Count::TaskPolls, polled as u64);
    polled
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
    let ok = catch_unwind(AssertUnwindSafe(f)).is_ok();
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
