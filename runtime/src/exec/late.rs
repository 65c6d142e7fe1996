//! Wakes of sleeping workers that a reactor puts off to the end of its events.
//!
//! The events of one wait often wake tasks of one pool. Woken at the first of them a worker takes this reactor's CPU in
//! the middle of its work, finds one task, and sleeps again before the next: with 64 connections on one CPU 0.35
//! preemptions of the reactor and 0.42 sleeps of workers a request, with one wake for all events 0.09 and 0.25.
//!
//! State: one thread-local a thread, in use only while a reactor reads its events. It has no destructor, so that it is
//! reachable during thread teardown (law 9). Who touches it: this thread only. Thread class: any; only a reactor puts
//! anything off. Laws: 7 (the pushes come before the wake, and the reactor does not sleep in between), 8 (never more
//! than [`MOST`] tasks, and never past a send).

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::ptr;
use std::sync::Arc;

/// Tasks that wait for the end of the events at most.
const MOST: u32 = 32;

/// Threads that share a run queue.
pub(crate) trait Sleepers {
    /// After a push, or several: sees to it that one that sleeps, if any does, looks at the queue.
    fn wake_one(&self);
}

struct Late {
    is_on: Cell<bool>,
    tasks: Cell<u32>,
    pool: RefCell<Option<Arc<dyn Sleepers>>>,
}

thread_local! {
    static LATE: ManuallyDrop<Late> = const {
        ManuallyDrop::new(Late { is_on: Cell::new(false), tasks: Cell::new(0), pool: RefCell::new(None) })
    };
}

/// Reactor: it is about to read its events. From here on this thread's wakes of workers are put off.
#[inline]
pub(crate) fn begin() {
    LATE.with(|late| late.is_on.set(true));
}

/// Reactor: it has read its events; also when it ends in whatever way. (No guard: it would cost a pass 25 instructions.)
#[inline]
pub(crate) fn end() {
    LATE.with(|late| late.is_on.set(false));
    flush();
}

/// Wakes now whoever was to be woken later: what follows may take long.
#[inline]
pub(crate) fn flush() {
    if LATE.with(|late| late.tasks.get()) > 0 {
        wake();
    }
}

#[inline(never)]
fn wake() {
    let pool = LATE.with(|late| {
        late.tasks.set(0);
        late.pool.borrow_mut().take()
    });
    if let Some(pool) = pool {
        pool.wake_one();
    }
}

/// Puts off the wake for a task that is in `pool`'s queue. False: it is to be done at once.
pub(crate) fn put_off<P: Sleepers + 'static>(pool: &Arc<P>) -> bool {
    LATE.with(|late| {
        if !late.is_on.get() || late.tasks.get() == MOST {
            return false;
        }
        let mut kept = late.pool.borrow_mut();
        let kept = kept.get_or_insert_with(|| pool.clone());
        // Of another pool than the first one: seldom, and at once.
        let same = ptr::addr_eq(Arc::as_ptr(kept), Arc::as_ptr(pool));
        late.tasks.set(late.tasks.get() + u32::from(same));
        same
    })
}
