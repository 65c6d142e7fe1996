//! Running user code (a waker, a callback) where its panic must go no further.
//!
//! State: none. Thread class: any thread. Laws: 10.

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Runs `f`; `None`: it panicked. What it threw is dropped here, and should that panic as well, leaked.
pub(crate) fn quiet<T>(f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => Some(result),
        Err(thrown) => {
            if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
                // Its drop is user code too.
                let _ = ManuallyDrop::new(worse);
            }
            None
        }
    }
}

/// Wakes each, whatever the others do.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    for waker in wakers {
        let _ = quiet(|| waker.wake());
    }
}
