//! The task table and its run queue: a queue through the slots themselves, so that a wake allocates nothing.
//!
//! State: the slots. A slot is free, or holds a task, or keeps the place of one that is being polled. A slot whose task
//! ended while it was queued is free when its turn comes, so that links stay whole. Who touches it: its reactor, under
//! one borrow that runs no user code (law 10). Thread class: pure. Laws: 8 (what yields goes to the back), 16 (one place
//! a task bounds the queue).

use crate::id::TaskId;

/// No slot: more than any table has.
const END: u32 = u32::MAX;

struct Slot<T> {
    /// `None` while the task is being polled, and in a free slot.
    task: Option<T>,
    /// Whose slot it is; of a free one, whose it will be. Stale ids differ.
    id: TaskId,
    /// The slot behind it in its queue.
    next: u32,
    queued: bool,
}

/// A queue through the slots.
#[derive(Clone, Copy)]
struct Queue {
    head: u32,
    tail: u32,
}

impl Queue {
    const EMPTY: Self = Self { head: END, tail: END };
}

/// See the module's text.
pub(crate) struct Tasks<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    /// Runnable, in the order of wakes.
    ready: Queue,
    /// Woken by themselves while they were polled: they yielded, to all that this pass still does and to the events of the
    /// next one.
    yielded: Queue,
    live: usize,
}

impl<T> Tasks<T> {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), ready: Queue::EMPTY, yielded: Queue::EMPTY, live: 0 }
    }

    /// Gives a task a slot and queues its first poll.
    pub(crate) fn insert(&mut self, make: impl FnOnce(TaskId) -> T) {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("fewer than 2^32 tasks: each holds memory");
            self.slots.push(Slot { task: None, id: TaskId::new(index, 0), next: END, queued: false });
            index
        });
        let slot = &mut self.slots[index as usize];
        slot.task = Some(make(slot.id));
        slot.queued = true;
        slot.next = END;
        self.live += 1;
        self.push_ready(index);
    }

    /// Queues a task, unless it is queued or gone.
    #[inline]
    pub(crate) fn wake(&mut self, id: TaskId) {
        self.wake_told(id, |_| ());
    }

    /// The same; `told` sees the task first, unless it is gone or being polled.
    #[inline]
    pub(crate) fn wake_told(&mut self, id: TaskId, told: impl FnOnce(&T)) {
        let Some(slot) = self.slots.get_mut(id.slot()).filter(|slot| slot.id == id) else { return };
        if let Some(task) = &slot.task {
            told(task);
        }
        if slot.queued {
            return;
        }
        slot.queued = true;
        slot.next = END;
        if slot.task.is_none() {
            self.yields(id);
            return;
        }
        self.push_ready(id.slot() as u32);
    }

    /// The slot is linked into no queue, and its `next` is `END`.
    #[inline]
    fn push_ready(&mut self, index: u32) {
        match self.slots.get_mut(self.ready.tail as usize) {
            Some(last) => last.next = index,
            None => self.ready.head = index,
        }
        self.ready.tail = index;
    }

    /// A task that is being polled woke itself.
    #[cold]
    #[inline(never)]
    fn yields(&mut self, id: TaskId) {
        let index = id.slot() as u32;
        match self.slots.get_mut(self.yielded.tail as usize) {
            Some(last) => last.next = index,
            None => self.yielded.head = index,
        }
        self.yielded.tail = index;
    }

    /// The next task of the run queue, out of its slot, to be polled.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<(TaskId, T)> {
        loop {
            let index = self.ready.head;
            let slot = self.slots.get_mut(index as usize)?;
            self.ready.head = slot.next;
            slot.queued = false;
            if slot.next == END {
                self.ready.tail = END;
            }
            if let Some(task) = slot.task.take() {
                return Some((slot.id, task));
            }
            // It ended while it was queued.
            self.free.push(index);
        }
    }

    /// Puts a pending task back into the slot that was kept for it.
    #[inline]
    pub(crate) fn put_back(&mut self, id: TaskId, task: T) {
        if let Some(slot) = self.slots.get_mut(id.slot()) {
            slot.task = Some(task);
        }
    }

    /// The end of a pass: those that yielded come behind what is left.
    #[inline]
    pub(crate) fn end_pass(&mut self) {
        if self.yielded.head != END {
            self.queue_yielded();
        }
    }

    #[cold]
    fn queue_yielded(&mut self) {
        let yielded = std::mem::replace(&mut self.yielded, Queue::EMPTY);
        match self.slots.get_mut(self.ready.tail as usize) {
            Some(last) => last.next = yielded.head,
            None => self.ready.head = yielded.head,
        }
        self.ready.tail = yielded.tail;
    }

    /// A task that was taken out has ended: its slot is for another.
    pub(crate) fn remove(&mut self, id: TaskId) {
        let Some(slot) = self.slots.get_mut(id.slot()).filter(|slot| slot.id == id) else { return };
        slot.id = TaskId::new(id.slot() as u32, id.next_generation());
        self.live -= 1;
        if !slot.queued {
            self.free.push(id.slot() as u32);
        }
    }

    /// Takes any task, for the end of the reactor; the search begins at a slot, so that a walk is linear.
    pub(crate) fn take_any(&mut self, from: usize) -> Option<(TaskId, T)> {
        let from = from.min(self.slots.len());
        let (before, behind) = self.slots.split_at_mut(from);
        let slot = behind.iter_mut().chain(before).find(|slot| slot.task.is_some())?;
        Some((slot.id, slot.task.take()?))
    }

    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        self.ready.head != END
    }

    pub(crate) fn live(&self) -> usize {
        self.live
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// What may be done; numbers choose among the tasks there are.
    #[derive(Clone, Debug)]
    enum Step {
        Insert,
        Wake(usize),
        WakeStale(usize),
        /// Polls one; it wakes itself, wakes others, and ends or not.
        Poll {
            itself: bool,
            others: Vec<usize>,
            ends: bool,
        },
        EndPass,
        TakeAny(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            2 => Just(Step::Insert),
            4 => any::<usize>().prop_map(Step::Wake),
            1 => any::<usize>().prop_map(Step::WakeStale),
            6 => (any::<bool>(), prop::collection::vec(any::<usize>(), 0..4), prop::bool::weighted(0.3))
                .prop_map(|(itself, others, ends)| Step::Poll { itself, others, ends }),
            2 => Just(Step::EndPass),
            1 => any::<usize>().prop_map(Step::TakeAny),
        ]
    }

    /// The same in the plainest form.
    #[derive(Default)]
    struct Model {
        living: Vec<(TaskId, u32)>,
        dead: Vec<TaskId>,
        ready: VecDeque<TaskId>,
        yielded: VecDeque<TaskId>,
    }

    impl Model {
        fn queued(&self, id: TaskId) -> bool {
            self.ready.contains(&id) || self.yielded.contains(&id)
        }

        fn wake(&mut self, id: TaskId) {
            if !self.queued(id) {
                self.ready.push_back(id);
            }
        }

        fn pick(&self, n: usize) -> Option<TaskId> {
            (!self.living.is_empty()).then(|| self.living[n % self.living.len()].0)
        }

        fn end(&mut self, id: TaskId) {
            self.living.retain(|(living, _)| *living != id);
            self.ready.retain(|queued| *queued != id);
            self.yielded.retain(|queued| *queued != id);
            self.dead.push(id);
        }
    }

    proptest! {
        #[test]
        fn it_runs_what_a_plain_queue_runs(steps in prop::collection::vec(step(), 1..200)) {
            let (mut tasks, mut model, mut count) = (Tasks::new(), Model::default(), 0);
            for step in steps {
                match step {
                    Step::Insert => {
                        count += 1;
                        let mut id = TaskId::NONE;
                        tasks.insert(|given| { id = given; count });
                        prop_assert!(!model.dead.contains(&id), "a living id is new");
                        model.living.push((id, count));
                        model.wake(id);
                    }
                    Step::Wake(n) => if let Some(id) = model.pick(n) {
                        tasks.wake(id);
                        model.wake(id);
                    },
                    Step::WakeStale(n) => {
                        tasks.wake(TaskId::NONE);
                        if !model.dead.is_empty() {
                            tasks.wake(model.dead[n % model.dead.len()]);
                        }
                    }
                    Step::Poll { itself, others, ends } => {
                        let next = tasks.next();
                        prop_assert_eq!(next.map(|(id, _)| id), model.ready.pop_front());
                        let Some((id, task)) = next else { continue };
                        prop_assert!(model.living.contains(&(id, task)));
                        tasks.wake_told(TaskId::NONE, |_| unreachable!("no task has it"));
                        if itself {
                            tasks.wake(id);
                            tasks.wake(id);
                            model.yielded.push_back(id);
                        }
                        for n in others {
                            let other = model.pick(n).filter(|other| *other != id);
                            if let Some(other) = other {
                                tasks.wake(other);
                                model.wake(other);
                            }
                        }
                        if ends {
                            tasks.remove(id);
                            model.end(id);
                        } else {
                            tasks.put_back(id, task);
                        }
                    }
                    Step::EndPass => {
                        tasks.end_pass();
                        let yielded = std::mem::take(&mut model.yielded);
                        model.ready.extend(yielded);
                    }
                    Step::TakeAny(from) => {
                        let taken = tasks.take_any(from % 300);
                        prop_assert_eq!(taken.is_some(), !model.living.is_empty());
                        if let Some((id, task)) = taken {
                            prop_assert!(model.living.contains(&(id, task)));
                            tasks.remove(id);
                            model.end(id);
                        }
                    }
                }
                prop_assert_eq!(tasks.live(), model.living.len());
                // A dead one may still hold its place; a living one is never missed.
                prop_assert!(tasks.has_ready() || model.ready.is_empty());
                prop_assert!(tasks.slots.len() <= 200);
            }
            // Every slot is in use, free, or in a queue to be freed: none is lost.
            tasks.end_pass();
            while let Some((id, _)) = tasks.next() {
                tasks.remove(id);
            }
            while let Some((id, _)) = tasks.take_any(0) {
                tasks.remove(id);
            }
            prop_assert_eq!((tasks.live(), tasks.free.len()), (0, tasks.slots.len()));
        }
    }
}
