//! The atomics of the wake flag under the fault seam: a thread's announcement stays in a buffer of its own as long as
//! memory models allow. Only with `--cfg epoxide_chaos`.
//!
//! Job: make a missing fence show. A processor keeps a store to itself for some nanoseconds while later loads overtake it;
//! that window is too short for a test that does anything else. Here it lasts until a fence, a read-modify-write or the wait:
//! whoever may not rely on the store being seen does not see it. State owned: each thread's buffer. Thread class: any thread.
//! Laws kept: none; it attacks 7.
//!
//! Only `true` is held back. `false` ("awake") is seen at once: late, it would make every producer write the eventfd, and
//! hide whoever relies on a write that nobody makes.

use std::cell::RefCell;
use std::sync::Arc;

use super::plain;
pub(crate) use super::plain::Ordering;

type Held = (Arc<plain::AtomicBool>, bool);

thread_local! {
    static BUFFER: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct AtomicBool(Arc<plain::AtomicBool>);

impl AtomicBool {
    pub(crate) fn new(value: bool) -> Self {
        Self(Arc::new(plain::AtomicBool::new(value)))
    }

    pub(crate) fn load(&self, order: Ordering) -> bool {
        self.own().unwrap_or_else(|| self.0.load(order))
    }

    pub(crate) fn store(&self, value: bool, order: Ordering) {
        let held = value && BUFFER.try_with(|buffer| buffer.borrow_mut().push((self.0.clone(), value))).is_ok();
        if !held {
            drain();
            self.0.store(value, order);
        }
    }

    pub(crate) fn swap(&self, value: bool, order: Ordering) -> bool {
        drain();
        self.0.swap(value, order)
    }

    /// What this thread has stored and nobody else sees yet.
    fn own(&self) -> Option<bool> {
        let find = |buffer: &RefCell<Vec<Held>>| {
            buffer.borrow().iter().rev().find(|(flag, _)| Arc::ptr_eq(flag, &self.0)).map(|(_, value)| *value)
        };
        BUFFER.try_with(find).ok().flatten()
    }
}

/// A fence: what was stored before it is seen by everybody.
pub(crate) fn fence(order: Ordering) {
    drain();
    plain::fence(order);
}

/// Lets everybody see what this thread has stored. The wait calls it: no store outlives that.
pub(crate) fn drain() {
    let empty = |buffer: &RefCell<Vec<Held>>| {
        buffer.borrow_mut().drain(..).for_each(|(flag, value)| flag.store(value, Ordering::Relaxed));
    };
    let _ = BUFFER.try_with(empty);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_see_a_store_behind_a_fence_and_not_before() {
        let flag = AtomicBool::new(false);
        let elsewhere = || std::thread::scope(|scope| scope.spawn(|| flag.load(Ordering::SeqCst)).join().unwrap());
        flag.store(true, Ordering::Relaxed);
        assert!(flag.load(Ordering::Relaxed) && !elsewhere());
        fence(Ordering::SeqCst);
        assert!(elsewhere());
        flag.store(false, Ordering::Relaxed);
        assert!(!elsewhere(), "an awakening is seen at once");
        flag.store(true, Ordering::Relaxed);
        assert!(!elsewhere());
        drain();
        assert!(elsewhere());
        flag.store(true, Ordering::Relaxed);
        assert!(flag.swap(false, Ordering::AcqRel) && !elsewhere());
    }
}
