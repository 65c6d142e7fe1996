//! A task's waker: an id and a home, never the task.
//!
//! State: the task's [`Marks`], which say who does what in which order. Thread class: any thread, also after the reactor is
//! gone and during thread teardown. Laws: 7, 9, 16.

use crate::exec::home::{Home, Stage};
use crate::exec::local;
use crate::exec::marks::Marks;
use crate::id::TaskId;
use crate::stats::Count;
use std::panic::Location;
use std::sync::Arc;
use std::task::Wake;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) home: Arc<Home>,
    /// Where it was spawned, or where its listener was named: what a report calls it.
    pub(crate) spawned_at: &'static Location<'static>,
    pub(crate) marks: Marks,
}

impl Header {
    pub(crate) fn new(home: Arc<Home>, spawned_at: &'static Location<'static>) -> Arc<Self> {
        Arc::new(Self { home, spawned_at, marks: Marks::new() })
    }

    /// As new, for another task of the same reactor: nobody else holds it.
    pub(crate) fn renew(&mut self, spawned_at: &'static Location<'static>) {
        self.spawned_at = spawned_at;
        self.marks = Marks::new();
    }

    /// Marks the task and wakes it: its own reactor drops the future. Any thread.
    pub(crate) fn abort(&self) {
        if self.marks.abort() {
            self.notify();
        }
    }

    fn notify(&self) {
        let id = self.marks.id();
        if local::wake_here(&self.home, id) {
            return;
        }
        self.notify_from_elsewhere(id);
    }

    /// Kept apart, so that a wake on the own reactor saves no registers for it: 9 instructions of 33.
    #[inline(never)]
    fn notify_from_elsewhere(&self, id: TaskId) {
        if self.marks.notify() && self.home.stage() < Stage::Stopped {
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
