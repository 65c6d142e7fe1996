//! A thread's own few blocks: most takes and puts end here, without an atomic read-modify-write.
//!
//! Job: one slot in front, a short shelf per size behind it, the pool's depot behind those.
//! State owned: the thread's magazine; the list of the threads' counters.
//! Thread class: any thread, each its own magazine; [`count_all`] from anywhere.
//! Laws kept: 9 (nothing panics during thread teardown), 16 (bounded and counted).
//!
//! Two thread-locals: [`MAGAZINE`] has no destructor, so reaching it is a plain load at any time of a thread's life;
//! [`GUARD`] has one, and is touched only when the thread keeps its first block. Its destructor hands everything to
//! the depots and closes the magazine: blocks that come later (from destructors of other thread-locals) go to the
//! depot directly.
//!
//! | field | written by | read by | guarded by |
//! |---|---|---|---|
//! | `slot`, `shelves`, `closed` | the thread | the thread | thread-local |
//! | `count` target | the thread: load and store, no read-modify-write | anyone | atomic, single writer |
//! | `COUNTERS` | a thread's first and last act | `count_all` | its Mutex |

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
// std atomic: they live in statics and leaked blocks, and only count; no wake or hand-over hangs on them.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::block::Block;
use super::pool::BufPool;

/// Blocks per size behind the slot.
const SHELF_BLOCKS: usize = 8;
/// Bytes per size behind the slot: large blocks go to the depot sooner.
const SHELF_BYTES: usize = 512 << 10;

struct Magazine {
    /// The block that came last, of whatever size.
    slot: Cell<Option<Box<Block>>>,
    /// Where the thread publishes how many blocks it keeps; `None` = it keeps none (not yet, or not any more).
    count: Cell<Option<&'static AtomicUsize>>,
    closed: Cell<bool>,
    shelves: RefCell<Vec<Shelf>>,
}

struct Shelf {
    pool: &'static BufPool,
    #[expect(clippy::vec_box, reason = "the box is what moves; unboxing it would copy and allocate")]
    blocks: Vec<Box<Block>>,
}

thread_local! {
    static MAGAZINE: ManuallyDrop<Magazine> = const {
        ManuallyDrop::new(Magazine {
            slot: Cell::new(None),
            count: Cell::new(None),
            closed: Cell::new(false),
            shelves: RefCell::new(Vec::new()),
        })
    };
    static GUARD: Guard = const { Guard };
}

/// A block of the pool's size.
#[inline]
pub(super) fn take(pool: &'static BufPool) -> Box<Block> {
    MAGAZINE.with(|magazine| match magazine.slot.take() {
        // What is kept is never a view, so its size is its own.
        Some(block) if block.own_size() == pool.size() => {
            magazine.publish(-1);
            block
        }
        other => magazine.take_slow(pool, other),
    })
}

/// Gives a block back, whichever pool it is from.
#[inline]
pub(super) fn put(block: Box<Block>) {
    MAGAZINE.with(|magazine| {
        if magazine.count.get().is_none() {
            magazine.put_first(block);
            return;
        }
        // The newest is the warmest, so it takes the slot.
        match magazine.slot.replace(Some(block)) {
            None => magazine.publish(1),
            Some(older) => magazine.put_slow(older),
        }
    });
}

/// Hands every block that this thread keeps to the depots.
pub(crate) fn flush_thread_magazine() {
    MAGAZINE.with(|magazine| magazine.flush());
}

/// Blocks that all threads keep.
pub(super) fn count_all() -> usize {
    counters().all.iter().map(|count| count.load(Ordering::Relaxed)).sum()
}

impl Magazine {
    #[inline]
    fn publish(&self, change: isize) {
        if let Some(count) = self.count.get() {
            let now = count.load(Ordering::Relaxed);
            count.store(now.wrapping_add_signed(change), Ordering::Relaxed);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_slow(&self, pool: &'static BufPool, other: Option<Box<Block>>) -> Box<Block> {
        if other.is_some() {
            // A block of another size: it keeps the slot until a put pushes it back.
            self.slot.set(other);
        }
        let kept = self.with_shelf(pool.size(), |shelf| shelf.blocks.pop()).flatten();
        if let Some(block) = kept {
            self.publish(-1);
            return block;
        }
        pool.withdraw()
    }

    #[cold]
    #[inline(never)]
    fn put_slow(&self, block: Box<Block>) {
        let size = block.size();
        let mut block = Some(block);
        if (SHELF_BYTES / size).min(SHELF_BLOCKS) > 0 {
            self.keep(&mut block);
            if block.is_some() && !self.has_shelf(size) {
                let pool = BufPool::of_size(size);
                if let Ok(mut shelves) = self.shelves.try_borrow_mut() {
                    shelves.push(Shelf { pool, blocks: Vec::with_capacity(SHELF_BLOCKS) });
                }
                self.keep(&mut block);
            }
        }
        if let Some(block) = block {
            let pool = self.with_shelf(size, |shelf| shelf.pool).unwrap_or_else(|| BufPool::of_size(size));
            pool.deposit(block);
        }
    }

    /// Puts the block on its shelf, if there is one with room.
    fn keep(&self, block: &mut Option<Box<Block>>) {
        let Some(size) = block.as_ref().map(|block| block.size()) else {
            return;
        };
        let kept = self.with_shelf(size, |shelf| {
            let room = shelf.blocks.len() < (SHELF_BYTES / size).min(SHELF_BLOCKS);
            if room {
                shelf.blocks.extend(block.take());
            }
            room
        });
        if kept == Some(true) {
            self.publish(1);
        }
    }

    fn has_shelf(&self, size: usize) -> bool {
        self.with_shelf(size, |_| ()).is_some()
    }

    /// Nothing inside calls user code, so the borrow cannot be met; if it were, there is just no shelf.
    fn with_shelf<T>(&self, size: usize, f: impl FnOnce(&mut Shelf) -> T) -> Option<T> {
        let mut shelves = self.shelves.try_borrow_mut().ok()?;
        shelves.iter_mut().find(|shelf| shelf.pool.size() == size).map(f)
    }

    /// The first block that the thread keeps, or one that comes after its end.
    #[cold]
    #[inline(never)]
    fn put_first(&self, block: Box<Block>) {
        if !self.closed.get() {
            // Registers the destructor; refused when the thread's destructors have run already.
            if GUARD.try_with(|_| ()).is_ok() {
                self.count.set(Some(counters().acquire()));
                put(block);
                return;
            }
            self.closed.set(true);
        }
        BufPool::of_size(block.size()).deposit(block);
    }

    fn flush(&self) {
        if let Some(block) = self.slot.take() {
            BufPool::of_size(block.size()).deposit(block);
        }
        let shelves = self.shelves.try_borrow_mut().map(|mut shelves| std::mem::take(&mut *shelves));
        for shelf in shelves.into_iter().flatten() {
            for block in shelf.blocks {
                shelf.pool.deposit(block);
            }
        }
        if let Some(count) = self.count.get() {
            count.store(0, Ordering::Relaxed);
        }
    }
}

/// Runs at the end of a thread that has kept blocks.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        MAGAZINE.with(|magazine| {
            magazine.closed.set(true);
            magazine.flush();
            if let Some(count) = magazine.count.take() {
                counters().free.push(count);
            }
        });
    }
}

/// The threads' counters. They are never freed but used again, so there are as many as ever were threads at a time.
struct Counters {
    all: Vec<&'static AtomicUsize>,
    free: Vec<&'static AtomicUsize>,
}

static COUNTERS: Mutex<Counters> = Mutex::new(Counters { all: Vec::new(), free: Vec::new() });

fn counters() -> MutexGuard<'static, Counters> {
    // Only pushes and pops happen inside: a poisoned list is a whole list.
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Counters {
    fn acquire(&mut self) -> &'static AtomicUsize {
        self.free.pop().unwrap_or_else(|| {
            let count: &'static AtomicUsize = Box::leak(Box::new(AtomicUsize::new(0)));
            self.all.push(count);
            count
        })
    }
}

#[cfg(test)]
pub(super) fn count_here() -> usize {
    MAGAZINE.with(|magazine| magazine.count.get().map_or(0, |count| count.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_nine_of_a_size_and_the_rest_goes_to_the_depot() {
        std::thread::spawn(|| {
            let pool = BufPool::of_size(2001);
            let lent: Vec<_> = (0..20).map(|_| pool.fill()).collect();
            assert_eq!(count_here(), 0);
            drop(lent);
            assert_eq!(count_here(), 1 + SHELF_BLOCKS);
            // Another size has a shelf of its own; the slot holds one block, of the size that came last.
            let other = BufPool::of_size(2002);
            let lent: Vec<_> = (0..20).map(|_| other.fill()).collect();
            drop(lent);
            assert_eq!(count_here(), 1 + 2 * SHELF_BLOCKS);
            // The slot's block is of the other size and does not get in the way.
            let lent: Vec<_> = (0..SHELF_BLOCKS).map(|_| pool.fill()).collect();
            assert_eq!(count_here(), 1 + SHELF_BLOCKS);
            assert!(lent.into_iter().all(|mut fill| fill.space().len() == 2001));
            flush_thread_magazine();
            assert_eq!(count_here(), 0);
            // It goes on after a flush.
            drop(pool.fill());
            assert_eq!(count_here(), 1);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn large_blocks_are_kept_in_smaller_numbers() {
        std::thread::spawn(|| {
            let pool = BufPool::of_size(1 << 20);
            let lent: Vec<_> = (0..4).map(|_| pool.fill()).collect();
            drop(lent);
            assert_eq!(count_here(), 1);
            flush_thread_magazine();
            let pool = BufPool::of_size(128 << 10);
            let lent: Vec<_> = (0..9).map(|_| pool.fill()).collect();
            drop(lent);
            assert_eq!(count_here(), 1 + 4);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn blocks_dropped_by_a_dying_thread_reach_the_depot() {
        use crate::buf::RecvBuf;
        use crate::buf::pool::Fill;
        thread_local! {
            static EARLY: RefCell<Vec<RecvBuf>> = const { RefCell::new(Vec::new()) };
            static LATE: RefCell<Vec<Fill>> = const { RefCell::new(Vec::new()) };
        }
        for keep_before in [false, true] {
            let pool = BufPool::of_size(2003);
            std::thread::spawn(move || {
                // Destructors run in some order: one of these comes before the magazine's, one after it.
                EARLY.with(|early| early.borrow_mut().push(pool.fill().commit(5)));
                if keep_before {
                    let (a, b) = (pool.fill(), pool.fill());
                    drop((a, b));
                }
                LATE.with(|late| late.borrow_mut().push(pool.fill()));
            })
            .join()
            .unwrap();
            // A sum over the pool alone: each block that exists lies in the depot.
            let lent: Vec<_> = std::iter::from_fn(|| (pool.depot_len() > 0).then(|| pool.withdraw())).collect();
            assert_eq!(lent.len(), if keep_before { 3 } else { 2 });
            lent.into_iter().for_each(|block| pool.deposit(block));
        }
    }

    #[test]
    fn counters_are_used_again() {
        let round = || {
            std::thread::spawn(|| {
                drop(BufPool::of_size(2004).fill());
                MAGAZINE.with(|magazine| std::ptr::from_ref(magazine.count.get().unwrap()).addr())
            })
            .join()
            .unwrap()
        };
        let seen: std::collections::HashSet<_> = (0..200).map(|_| round()).collect();
        // Other tests' threads take some in between, but a thread after a thread does not need a new one.
        assert!(seen.len() < 100, "{}", seen.len());
    }
}
