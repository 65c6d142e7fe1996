//! Polls tasks: a bounded batch, one panic boundary a poll.
//!
//! State: none of its own. Thread class: reactor only. Laws: 8 (budget), 10 (panics are caught per task, the pass
//! goes on; no user code under a borrow), 6 (what a discarded task held is reset).

use crate::exec::local::{self, Discard, Task, Tasks};
use crate::id::TaskId;
use crate::stats::Count;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll};

/// Polls the tasks that are runnable now, at most `budget`. Tasks woken meanwhile wait for the next batch.
pub(crate) fn batch(budget: usize) -> usize {
    let n = local::with_tasks(|tasks| tasks.ready_len()).min(budget);
    let mut polled = 0;
    for _ in 0..n {
        let Some((id, mut task)) = local::with_tasks(Tasks::next) else { break };
        polled += 1;
        if task.header.is_aborted() {
            discard(id, task, Discard::Aborted, None);
            continue;
        }
        local::set_current(id, &task.waker);
        let result =
            catch_unwind(AssertUnwindSafe(|| task.future.as_mut().poll_erased(&mut Context::from_waker(&task.waker))));
        local::clear_current();
        match result {
            Ok(Poll::Pending) => local::with_tasks(|tasks| tasks.put_back(id, task)),
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
    local::count_here(Count::TaskPolls, polled);
    polled as usize
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
