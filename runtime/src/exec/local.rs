//! The reactor thread's own state: task table, run queue, messages to itself, counters.
//!
//! State: one thread-local a thread, empty unless a reactor runs there. It is `const` and wrapped in `ManuallyDrop`:
//! it has no destructor, so it is reachable during thread teardown (law 9) and its access is one offset from the
//! thread pointer; what it owns is emptied by [`Entered`]'s drop. Who touches it: this thread only. No user code runs
//! under a borrow (law 10): tasks are moved out, polled, moved back. Thread class: reactor only; on other threads
//! every function here says so and does nothing. Laws: 1 (who am I), 9, 10.

use crate::exec::header::Header;
use crate::exec::home::{Home, Msg};
use crate::exec::late;
use crate::exec::marks::Marks;
use crate::exec::run;
use crate::exec::spare::Spares;
use crate::exec::task::Task;
use crate::exec::tasks::Tasks;
use crate::exec::watched;
use crate::id::TaskId;
use crate::stats::Count;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::ptr;
use std::sync::Arc;
use std::task::{RawWakerVTable, Waker};

/// Why a future is being dropped by the executor before it was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Discard {
    No,
    Panicked,
    Aborted,
    Stopped,
}

/// See the module's text.
pub(crate) struct Local {
    /// Identity of the reactor that runs here, for comparison only; null on other threads.
    home_ptr: Cell<*const Home>,
    home: RefCell<Option<Arc<Home>>>,
    tasks: RefCell<Tasks<Task>>,
    spares: RefCell<Spares>,
    messages: RefCell<VecDeque<Msg>>,
    /// Who is being polled right now: its id and what its waker looks like (law 1). `data` is null between polls.
    id: Cell<TaskId>,
    data: Cell<*const ()>,
    vtable: Cell<*const RawWakerVTable>,
    discard: Cell<Discard>,
    /// What a panicking task threw, for its join handle.
    thrown: RefCell<Option<Box<dyn Any + Send>>>,
    /// Milliseconds of the coarse monotonic clock, refreshed once a pass.
    now_ms: Cell<u32>,
    /// Expensive steps made in this pass.
    steps: Cell<u32>,
}

thread_local! {
    static LOCAL: ManuallyDrop<Local> = const {
        ManuallyDrop::new(Local {
            home_ptr: Cell::new(ptr::null()),
            home: RefCell::new(None),
            tasks: RefCell::new(Tasks::new()),
            spares: RefCell::new(Spares::new()),
            messages: RefCell::new(VecDeque::new()),
            id: Cell::new(TaskId::NONE),
            data: Cell::new(ptr::null()),
            vtable: Cell::new(ptr::null()),
            discard: Cell::new(Discard::No),
            thrown: RefCell::new(None),
            now_ms: Cell::new(0),
            steps: Cell::new(0),
        })
    };
}

/// This thread is a reactor's until this guard is dropped.
#[derive(Debug)]
pub(crate) struct Entered(());

/// Makes this thread the reactor's. `None`: another reactor runs here already.
pub(crate) fn enter(home: &Arc<Home>) -> Option<Entered> {
    LOCAL.with(|local| {
        if !local.home_ptr.get().is_null() {
            return None;
        }
        local.home_ptr.set(Arc::as_ptr(home));
        // What is polled before the first pass stamps with it.
        local.now_ms.set(coarse_ms());
        *local.home.borrow_mut() = Some(home.clone());
        Some(Entered(()))
    })
}

impl Drop for Entered {
    fn drop(&mut self) {
        // What an on_stop hook spawned: foreign code, under no borrow.
        run::discard_all();
        watched::refuse_spawns(false);
        late::end();
        let home = LOCAL.with(|local| {
            local.home_ptr.set(ptr::null());
            // The reactor has settled everything; what is left is plain memory.
            *local.tasks.borrow_mut() = Tasks::new();
            *local.spares.borrow_mut() = Spares::new();
            let left = std::mem::take(&mut *local.messages.borrow_mut());
            (local.home.borrow_mut().take(), left)
        });
        drop(home);
    }
}

/// The reactor of this thread.
pub(crate) fn home() -> Option<Arc<Home>> {
    LOCAL.with(|local| local.home.borrow().clone())
}

/// Does any reactor run on this thread?
#[inline]
pub(crate) fn is_reactor_thread() -> bool {
    LOCAL.with(|local| !local.home_ptr.get().is_null())
}

/// Does `home`'s reactor run on this thread?
#[inline]
pub(crate) fn is_here(home: &Home) -> bool {
    LOCAL.with(|local| ptr::eq(local.home_ptr.get(), home))
}

/// Puts a task of `home` into this thread's run queue. False: this is not `home`'s thread.
#[inline(always)]
pub(crate) fn wake_here(home: &Home, id: TaskId) -> bool {
    LOCAL.with(|local| {
        let here = ptr::eq(local.home_ptr.get(), home);
        if here {
            home.counts.add_own(Count::WakesLocal, 1);
            local.tasks.borrow_mut().wake(id);
        }
        here
    })
}

/// Reactor: serves a wake that came from another thread.
#[inline]
pub(crate) fn wake_from_elsewhere(id: TaskId) {
    // Cleared before it is served (law 16). No task is being polled now: each is in its slot.
    with_tasks(|tasks| tasks.wake_told(id, |task| task.header().marks.clear_notified()));
}

/// A message to this thread's own reactor. Given back on every other thread.
#[inline]
pub(crate) fn push_message(home: &Home, msg: Msg) -> Result<(), Msg> {
    LOCAL.with(|local| {
        if !ptr::eq(local.home_ptr.get(), home) {
            return Err(msg);
        }
        local.messages.borrow_mut().push_back(msg);
        Ok(())
    })
}

/// Reactor: the next message of this thread to itself.
pub(crate) fn pop_message() -> Option<Msg> {
    LOCAL.with(|local| local.messages.borrow_mut().pop_front())
}

/// Reactor: messages of this thread to itself that wait.
pub(crate) fn messages_len() -> usize {
    LOCAL.with(|local| local.messages.borrow().len())
}

/// What the calling thread is to a reactor.
#[derive(Clone, Copy)]
pub(crate) struct Here {
    /// The reactor runs on this thread.
    pub(crate) is_home: bool,
    /// The time that activity on a connection is stamped with: the pass's own on its reactor's thread, else the clock
    /// (a sleeping reactor's cached time would be old). Milliseconds of the coarse monotonic clock.
    pub(crate) now_ms: u32,
}

/// One look at the thread-local for the uses of one operation.
#[inline(always)]
pub(crate) fn here(home: &Home) -> Here {
    let (is_home, now_ms) = LOCAL.with(|local| (ptr::eq(local.home_ptr.get(), home), local.now_ms.get()));
    Here { is_home, now_ms: if is_home { now_ms } else { coarse_ms() } }
}

/// The clock itself: on a reactor's thread the pass may have begun long ago.
#[cold]
pub(crate) fn coarse_ms() -> u32 {
    crate::sys::clock::monotonic_coarse_ms() as u32
}

/// The id of the task that is being polled, and the time of the pass, if `waker` is that task's own and `home`'s reactor
/// runs here.
#[inline(always)]
pub(crate) fn current_task(home: &Home, waker: &Waker) -> Option<(TaskId, u32)> {
    LOCAL.with(|local| {
        let mine = ptr::eq(local.home_ptr.get(), home)
            && ptr::eq(local.data.get(), waker.data())
            && ptr::eq(local.vtable.get(), waker.vtable());
        mine.then(|| (local.id.get(), local.now_ms.get()))
    })
}

/// Executor: `task` is about to be polled.
#[inline]
pub(crate) fn set_current(id: TaskId, waker: &Waker) {
    LOCAL.with(|local| {
        local.id.set(id);
        local.data.set(waker.data());
        local.vtable.set(waker.vtable());
    });
}

/// Executor: the poll is over. Cleared, because a freed waker's address may come again.
#[inline]
pub(crate) fn clear_current() {
    LOCAL.with(|local| local.data.set(ptr::null()));
}

/// Runs `f` on the task table. `f` must not run user code (law 10).
#[inline]
pub(crate) fn with_tasks<T>(f: impl FnOnce(&mut Tasks<Task>) -> T) -> T {
    LOCAL.with(|local| f(&mut local.tasks.borrow_mut()))
}

/// The header of a task of the reactor that runs on this thread, if one does.
#[inline]
pub(crate) fn header(spawned_at: &'static Location<'static>) -> Option<Arc<Header>> {
    LOCAL.with(|local| {
        if local.home_ptr.get().is_null() {
            return None;
        }
        let spare = local.spares.borrow_mut().take(spawned_at);
        spare.or_else(|| Some(Header::new(local.home.borrow().clone()?, spawned_at)))
    })
}

/// Gives a task a slot on its home reactor. Dropped when this is not its home's thread.
#[inline]
pub(crate) fn insert_task(task: Task) {
    LOCAL.with(|local| {
        if ptr::eq(local.home_ptr.get(), Arc::as_ptr(&task.header().home)) {
            task.header().home.counts.add_own(Count::TasksSpawned, 1);
            local.tasks.borrow_mut().insert(|id| {
                task.header().marks.set_id(id);
                task
            });
        }
    });
}

/// The same for a task that was spawned elsewhere, where an abort may come at the same time.
pub(crate) fn insert_posted(task: Task) {
    insert_task(task);
    Marks::fence_id();
}

/// Executor: a task has ended and its future is gone.
#[inline]
pub(crate) fn retire(id: TaskId, header: Arc<Header>) {
    LOCAL.with(|local| {
        local.tasks.borrow_mut().remove(id);
        local.spares.borrow_mut().keep(header);
    });
}

/// Counts on this thread's reactor, if there is one.
pub(crate) fn count_here(count: Count, n: u64) {
    LOCAL.with(|local| {
        if let Some(home) = &*local.home.borrow() {
            home.counts.add_own(count, n);
        }
    });
}

/// Executor: why futures are being dropped from here on, until `Discard::No`. Gives back a payload that no join
/// handle took.
pub(crate) fn set_discard(why: Discard, thrown: Option<Box<dyn Any + Send>>) -> Option<Box<dyn Any + Send>> {
    LOCAL.with(|local| {
        local.discard.set(why);
        local.thrown.replace(thrown)
    })
}

/// Join: what the task that is being discarded threw.
pub(crate) fn take_thrown() -> Option<Box<dyn Any + Send>> {
    LOCAL.with(|local| local.thrown.take())
}

/// Is the executor dropping a future before it was done?
pub(crate) fn discard() -> Discard {
    LOCAL.with(|local| local.discard.get())
}

/// Reactor: a pass begins, at this time.
pub(crate) fn set_now_ms(now: u32) {
    LOCAL.with(|local| {
        local.now_ms.set(now);
        local.steps.set(0);
    });
}

/// Takes one of the `limit` expensive steps of this pass; always true on a thread without a reactor.
pub(crate) fn take_step(limit: u32) -> bool {
    LOCAL.with(|local| {
        let taken = local.steps.get();
        local.steps.set(taken.saturating_add(1).min(limit));
        taken < limit || local.home_ptr.get().is_null()
    })
}
