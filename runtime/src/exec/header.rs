//! A task's waker: an id and a home, never the task.
//!
//! State: the task's id, one `notified` bit, one `aborted` bit. Who touches it: any thread notifies and aborts; the
//! reactor clears `notified` BEFORE it serves the wake, so a wake that comes during the poll queues the task again.
//! Thread class: any thread, also after the reactor is gone and during thread teardown. Laws: 7, 9, 16 (one bit
//! bounds the inbox entries of a task).

use crate::exec::home::{Home, Stage};
use crate::exec::local;
use crate::id::TaskId;
use crate::stats::Count;
use crate::sync::plain::{AtomicBool, AtomicU64, Ordering, fence};
use std::panic::Location;
use std::sync::Arc;
use std::task::Wake;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) home: Arc<Home>,
    /// Where it was spawned, or where its listener was named: what a report calls it.
    pub(crate) spawned_at: &'static Location<'static>,
    /// `TaskId::NONE` until the reactor has given the task a slot.
    id: AtomicU64,
    notified: AtomicBool,
    aborted: AtomicBool,
}

impl Header {
    pub(crate) fn new(home: Arc<Home>, spawned_at: &'static Location<'static>) -> Arc<Self> {
        Arc::new(Self {
            home,
            spawned_at,
            id: AtomicU64::new(TaskId::NONE.bits()),
            notified: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
        })
    }

    #[inline]
    pub(crate) fn id(&self) -> TaskId {
        TaskId::from_bits(self.id.load(Ordering::Acquire))
    }

    /// As new, for another task of the same reactor: nobody else holds it.
    pub(crate) fn renew(&mut self, spawned_at: &'static Location<'static>) {
        self.spawned_at = spawned_at;
        *self.id.get_mut() = TaskId::NONE.bits();
        *self.notified.get_mut() = false;
        *self.aborted.get_mut() = false;
    }

    /// Reactor: the task has a slot. Where somebody may hold an abort handle by now, `fence_id` follows.
    #[inline]
    pub(crate) fn set_id(&self, id: TaskId) {
        self.id.store(id.bits(), Ordering::Release);
    }

    /// Reactor, between `set_id` and the first poll of a task that came from elsewhere.
    pub(crate) fn fence_id() {
        // Against an abort from elsewhere, which marks, fences and looks at the id: of the two, one sees the other.
        fence(Ordering::SeqCst);
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn is_notified(&self) -> bool {
        self.notified.load(Ordering::Acquire)
    }

    /// Reactor, BEFORE the task is put into the run queue: later wakes must come again.
    pub(crate) fn clear_notified(&self) {
        // A swap, to see what every notifier did before its own swap, the refused ones too.
        self.notified.swap(false, Ordering::AcqRel);
    }

    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.aborted.load(Ordering::Acquire)
    }

    /// Marks the task and wakes it: its own reactor drops the future. Any thread.
    pub(crate) fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.id() != TaskId::NONE {
            self.notify();
        }
        // Without an id the task has not been polled: its first poll looks at the mark.
    }

    fn notify(&self) {
        let id = self.id();
        if local::wake_here(&self.home, id) {
            return;
        }
        self.notify_from_elsewhere(id);
    }

    /// Kept apart, so that a wake on the own reactor saves no registers for it: 9 instructions of 33.
    #[inline(never)]
    fn notify_from_elsewhere(&self, id: TaskId) {
        if !self.notified.swap(true, Ordering::AcqRel) && self.home.stage() < Stage::Stopped {
            self.home.counts.add_foreign(Count::WakesRemote, 1);
            self.home.inject_wake(id);
        }
    }
}

impl Wake for Header {
    fn wake(self: Arc<Self>) {
        self.notify();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notify();
    }
}
