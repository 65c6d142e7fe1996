//! Running user code (a Drop, a waker, a hook) where its panic must go no further.
//!
//! State: none. Thread class: any thread. Laws: 10.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `f`; false: it panicked. What it threw is dropped here, and should that panic as well, leaked.
pub(crate) fn quiet(f: impl FnOnce()) -> bool {
    let Err(thrown) = catch_unwind(AssertUnwindSafe(f)) else { return true };
    if let Err(worse) = catch_unwind(AssertUnwindSafe(|| drop(thrown))) {
        Box::leak(worse);
    }
    false
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::quiet;

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
