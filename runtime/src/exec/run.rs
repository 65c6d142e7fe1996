//! Polls tasks: a bounded batch, one panic boundary a poll.
//!
//! A task that is woken during the batch is polled in the same one, except by its own wake: a yield ends its turn, so a
//! flooded reader gets one share a pass, and tasks that wake each other cost no pass each. Wakes of other threads are
//! the caller's to bring in (`refill`).
//!
//! State: none of its own. Thread class: reactor only. Laws: 8 (budget), 10 (panics are caught per task, the pass
//! goes on; no user code under a borrow), 6 (what a discarded task held is reset).

use crate::exec::local::{self, Discard};
use crate::exec::task::Task;
use crate::exec::watched;
use crate::id::TaskId;
use crate::stats::Count;
use crate::sync::quiet::quiet;
use crate::trace;
use std::any::Any;
use std::panic::{AssertUnwindSafe, Location, catch_unwind};
use std::task::Poll;

/// The most polls of one pass, whatever its budget: tasks that wake each other for ever do not hold it.
const MAX_POLLS: usize = 65_536;

/// Polls runnable tasks, at most `budget`, also those that are woken meanwhile by others. `refill` is asked
/// when nothing is runnable any more: true, it may have made something so. `polled` is told after each poll where that
/// task was spawned. Returns how many there were.
#[inline]
pub(crate) fn batch(
    budget: usize,
    mut refill: impl FnMut() -> bool,
    mut polled: impl FnMut(Option<&'static Location<'static>>),
) -> usize {
    let mut pending: Option<(TaskId, Task)> = None;
    let (limit, mut polls) = (budget.min(MAX_POLLS), 0);
    loop {
        while polls < limit {
            // One borrow a task: the last one goes back, the next one comes out.
            let next = local::with_tasks(|tasks| {
                if let Some((id, task)) = pending.take() {
                    tasks.put_back(id, task);
                }
                tasks.next()
            });
            let Some((id, task)) = next else { break };
            pending = poll(id, task);
            polled(watched::last_polled());
            polls += 1;
        }
        if polls == 0 || polls == limit || !refill() {
            break;
        }
    }
    local::with_tasks(|tasks| {
        if let Some((id, task)) = pending.take() {
            tasks.put_back(id, task);
        }
        tasks.end_pass();
    });
    polls
}

/// One poll. What is pending comes back. Always inlined: a call costs a dozen instructions a request.
#[inline(always)]
fn poll(id: TaskId, mut task: Task) -> Option<(TaskId, Task)> {
    watched::set_polled(task.header().spawned_at);
    if task.header().marks.is_aborted() {
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
            finish(id, task);
            None
        }
        Err(payload) => {
            local::count_here(Count::Panics, 1);
            trace::panicked(task.header().spawned_at, &*payload);
            discard(id, task, Discard::Panicked, Some(payload));
            None
        }
    }
}

/// A future has returned: drops it, and keeps its header for another task.
fn finish(id: TaskId, task: Task) {
    let header = task.header().clone();
    caught_inside(|| drop(task));
    local::retire(id, header);
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
    watched::note_outside();
    caught_inside(f)
}

/// The same as a part of a task's poll: its time is that task's.
#[inline]
fn caught_inside(f: impl FnOnce()) -> bool {
    let ok = quiet(f);
    if !ok {
        local::count_here(Count::Panics, 1);
        trace::panicked_outside();
    }
    ok
}

/// Tasks that the destructors of a reactor's last tasks may spawn.
const SPAWNED_AT_THE_END: u64 = 10_000;

/// The end of the reactor: every task's future is dropped here, in whatever order; tasks spawned meanwhile too, up to a
/// bound, past which spawning is refused: a task whose destructor spawns its like must not hold a stop for ever.
pub(crate) fn discard_all() {
    let mut left = local::with_tasks(|tasks| tasks.live() as u64).saturating_add(SPAWNED_AT_THE_END);
    let mut slot = 0;
    while let Some((id, task)) = local::with_tasks(|tasks| tasks.take_any(slot)) {
        left = left.saturating_sub(1);
        if left == 0 {
            watched::refuse_spawns(true);
        }
        slot = id.slot();
        discard(id, task, Discard::Stopped, None);
    }
}
