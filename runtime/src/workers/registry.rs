//! Which tasks an async pool has, so that an abort and a stop reach them wherever they wait.
//!
//! State: slots with generations, behind a mutex. Who touches it: whoever spawns or aborts, the worker that ends a
//! task, whoever stops the pool. Thread class: any thread; no user code runs under the lock: tasks are handed out and
//! cancelled by the caller. Laws: 9 (foreign hands hold ids), 10, 12.

use crate::id::TaskId;
use crate::sync::lock;
use async_task::Task;
use std::sync::Mutex;

#[derive(Default)]
struct Slot {
    generation: u32,
    /// `None` before it is filled and after it was cancelled.
    task: Option<Task<()>>,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
    closed: bool,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Registry(Mutex<State>);

impl Registry {
    /// A slot for a task that is to be made. `None`: the pool has stopped.
    pub(super) fn reserve(&self) -> Option<TaskId> {
        let mut state = lock(&self.0);
        if state.closed {
            return None;
        }
        let slot = state.free.pop().unwrap_or_else(|| {
            state.slots.push(Slot::default());
            (state.slots.len() - 1) as u32
        });
        state.live += 1;
        Some(TaskId::new(slot, state.slots[slot as usize].generation))
    }

    /// The reserved slot's task, BEFORE its first poll. It comes back, to be cancelled, if the pool has stopped since.
    pub(super) fn fill(&self, id: TaskId, task: Task<()>) -> Result<(), Task<()>> {
        let mut state = lock(&self.0);
        if state.closed {
            return Err(task);
        }
        state.slots[id.slot()].task = Some(task);
        Ok(())
    }

    /// Hands out a task that is to be cancelled. `None`: it is over, or cancelled already.
    pub(super) fn take(&self, id: TaskId) -> Option<Task<()>> {
        let mut state = lock(&self.0);
        let slot = state.slots.get_mut(id.slot()).filter(|slot| id.is_generation(slot.generation))?;
        slot.task.take()
    }

    /// The task's future is gone: frees its slot. True: it was the last one of a pool that has stopped.
    pub(super) fn remove(&self, id: TaskId) -> (Option<Task<()>>, bool) {
        let mut state = lock(&self.0);
        let slot = &mut state.slots[id.slot()];
        slot.generation = id.next_generation();
        let task = slot.task.take();
        state.free.push(id.slot() as u32);
        state.live -= 1;
        (task, state.closed && state.live == 0)
    }

    /// Takes nothing more, and hands out every task, to be cancelled.
    pub(super) fn close(&self) -> Vec<Task<()>> {
        let mut state = lock(&self.0);
        state.closed = true;
        state.slots.iter_mut().filter_map(|slot| slot.task.take()).collect()
    }

    pub(super) fn live(&self) -> usize {
        lock(&self.0).live
    }

    /// Has the pool stopped?
    pub(super) fn is_closed(&self) -> bool {
        lock(&self.0).closed
    }

    /// Has the pool stopped, and is nothing left in it?
    pub(super) fn is_over(&self) -> bool {
        let state = lock(&self.0);
        state.closed && state.live == 0
    }
}
