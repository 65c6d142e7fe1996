//! Running user code (a Drop, a waker, a hook) where its panic must go no further.
//!
//! State: none. Thread class: any thread. Laws: 10.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

/// Runs `f`; false: it panicked. What it threw is dropped here, and should that panic as well, leaked.
pub(crate) fn quiet(f: impl FnOnce()) -> bool {
    let Err(thrown) = catch_unwind(AssertUnwindSafe(f)) else { return true };
    if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        Box::leak(worse);
    }
    false
}

/// Wakes every one of them: the panic of one is not the others'.
pub(crate) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        quiet(|| waker.wake());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{quiet, wake_all};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Wake, Waker};

    struct Counts(AtomicUsize, bool);

    impl Wake for Counts {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(!self.1, "a waker that panics");
        }
    }

    #[test]
    fn all_are_woken_though_one_panics() {
        let wakers: Vec<_> = [false, true, false].map(|bad| Arc::new(Counts(AtomicUsize::new(0), bad))).into();
        wake_all(wakers.iter().cloned().map(Waker::from).collect());
        assert!(wakers.iter().all(|waker| waker.0.load(Ordering::Relaxed) == 1));
    }

    #[test]
    fn neither_a_panic_nor_its_payload_gets_out() {
        struct Rude;
        impl Drop for Rude {
            fn drop(&mut self) {
                std::panic::panic_any(Rude2);
            }
        }
        struct Rude2;
        impl Drop for Rude2 {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        assert!(quiet(|| ()));
        assert!(!quiet(|| panic!("once")));
        assert!(!quiet(|| std::panic::panic_any(Rude)));
    }
}
