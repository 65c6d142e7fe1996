//! One spare staging buffer per thread, so that an idle connection holds none.
//!
//! Job: keep the capacity of the Vec that was sent last for whoever stages next on this thread.
//! State owned: the thread's spare. Thread class: any thread, each its own.
//! Laws kept: 9 (nothing panics during thread teardown), 16 (one per thread, 64 KiB at most).
//!
//! Built like the magazine: the slot has no destructor, the guard has one and is touched once.

use std::cell::Cell;
use std::mem::ManuallyDrop;

/// A larger capacity is freed instead of kept.
pub(crate) const MAX_KEPT: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    NotYet,
    Yes,
    /// The thread is ending.
    NoMore,
}

struct Spare {
    /// Without capacity when there is none.
    slot: Cell<Vec<u8>>,
    keeps: Cell<Keeps>,
}

thread_local! {
    static SPARE: ManuallyDrop<Spare> = const {
        ManuallyDrop::new(Spare { slot: Cell::new(Vec::new()), keeps: Cell::new(Keeps::NotYet) })
    };
    static GUARD: Guard = const { Guard };
}

/// The thread's spare, empty, with or without capacity.
#[inline]
pub(crate) fn take() -> Vec<u8> {
    SPARE.with(|spare| spare.slot.take())
}

/// Keeps the capacity of `vec` for the next [`take`] on this thread; its bytes are forgotten.
#[inline]
pub(crate) fn put(mut vec: Vec<u8>) {
    if vec.capacity() == 0 || vec.capacity() > MAX_KEPT {
        return;
    }
    vec.clear();
    SPARE.with(|spare| {
        if spare.keeps.get() == Keeps::Yes || spare.open() {
            // The older one is freed: the newer one is warm.
            spare.slot.set(vec);
        }
    });
}

impl Spare {
    #[cold]
    fn open(&self) -> bool {
        if self.keeps.get() == Keeps::NotYet && GUARD.try_with(|_| ()).is_ok() {
            self.keeps.set(Keeps::Yes);
            return true;
        }
        false
    }
}

struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        SPARE.with(|spare| {
            spare.keeps.set(Keeps::NoMore);
            drop(spare.slot.take());
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_comes_back_empty() {
        let mut vec = Vec::with_capacity(1000);
        vec.extend_from_slice(b"old");
        let place = vec.as_ptr();
        put(vec);
        let vec = take();
        assert_eq!((vec.as_ptr(), vec.len()), (place, 0));
        assert_eq!(take().capacity(), 0);
    }

    #[test]
    fn a_large_one_is_freed_and_an_empty_one_replaces_nothing() {
        put(Vec::with_capacity(100));
        put(Vec::with_capacity(MAX_KEPT + 1));
        put(Vec::new());
        assert!((100..=MAX_KEPT).contains(&take().capacity()));
        put(Vec::with_capacity(MAX_KEPT));
        assert_eq!(take().capacity(), MAX_KEPT);
    }

    #[test]
    fn a_dying_thread_keeps_nothing() {
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                put(Vec::with_capacity(100));
            }
        }
        thread_local! { static LAST: Last = const { Last } }
        std::thread::spawn(|| {
            LAST.with(|_| ());
            put(Vec::with_capacity(100));
            LAST.with(|_| ());
            // What the guard does at the end, done by hand to be looked at.
            drop(Guard);
            put(Vec::with_capacity(100));
            assert_eq!(take().capacity(), 0);
        })
        .join()
        .unwrap();
    }
}
