//! Two spare staging buffers per thread, so that an idle connection holds none.
//!
//! Job: keep the capacity of the Vec that was sent last for whoever stages next on this thread. Two, because an encrypted
//! flush fills a second one from what was staged in the first.
//! State owned: the thread's spares. Thread class: any thread, each its own.
//! Laws kept: 9 (nothing panics during thread teardown), 16 (two per thread, 64 KiB each at most).
//!
//! Built like the magazine: the slot has no destructor, the guard has one and is touched once.

use std::cell::Cell;
use std::mem::ManuallyDrop;

use super::outgoing::Tail;

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
    slot: Cell<Option<Box<Tail>>>,
    /// The one before.
    second: Cell<Option<Box<Tail>>>,
    keeps: Cell<Keeps>,
}

thread_local! {
    static SPARE: ManuallyDrop<Spare> = const {
        ManuallyDrop::new(Spare { slot: Cell::new(None), second: Cell::new(None), keeps: Cell::new(Keeps::NotYet) })
    };
    static GUARD: Guard = const { Guard };
}

/// A staging buffer: the thread's spare, or a new one without capacity.
#[inline]
pub(super) fn take() -> Box<Tail> {
    SPARE.with(|spare| spare.slot.take().or_else(|| spare.second.take())).unwrap_or_default()
}

/// Keeps a buffer for the next [`take`] on this thread; its bytes are forgotten.
#[inline]
pub(super) fn put(mut tail: Box<Tail>) {
    if tail.data.capacity() > MAX_KEPT {
        return;
    }
    tail.data.clear();
    tail.start = 0;
    SPARE.with(|spare| {
        if spare.keeps.get() == Keeps::Yes || spare.open() {
            // The newest one is warm and goes first; of three the oldest is freed.
            if let Some(older) = spare.slot.replace(Some(tail)) {
                spare.second.set(Some(older));
            }
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
            drop((spare.slot.take(), spare.second.take()));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_capacity(n: usize) -> Box<Tail> {
        Box::new(Tail { data: Vec::with_capacity(n), start: 0 })
    }

    #[test]
    fn a_buffer_comes_back_empty() {
        let mut tail = with_capacity(1000);
        tail.data.extend_from_slice(b"old");
        tail.start = 2;
        let place = tail.data.as_ptr();
        put(tail);
        let tail = take();
        assert_eq!((tail.data.as_ptr(), tail.data.len(), tail.start), (place, 0, 0));
        assert_eq!(take().data.capacity(), 0);
    }

    #[test]
    fn two_are_kept_and_the_newest_goes_first() {
        [100, 200, 300].into_iter().for_each(|size| put(with_capacity(size)));
        let kept = [(); 3].map(|()| take().data.capacity());
        assert_eq!(kept, [300, 200, 0]);
    }

    #[test]
    fn a_large_one_is_freed() {
        put(with_capacity(100));
        put(with_capacity(MAX_KEPT + 1));
        assert!((100..=MAX_KEPT).contains(&take().data.capacity()));
        put(with_capacity(MAX_KEPT));
        assert_eq!(take().data.capacity(), MAX_KEPT);
    }

    #[test]
    fn a_dying_thread_keeps_nothing() {
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                put(with_capacity(100));
            }
        }
        thread_local! { static LAST: Last = const { Last } }
        std::thread::spawn(|| {
            LAST.with(|_| ());
            put(with_capacity(100));
            LAST.with(|_| ());
            // What the guard does at the end, done by hand to be looked at.
            drop(Guard);
            put(with_capacity(100));
            assert_eq!(take().data.capacity(), 0);
        })
        .join()
        .unwrap();
    }
}
