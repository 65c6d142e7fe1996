//! The pools of receive buffers: one process-wide pool per size.
//!
//! Job: lend blocks and take them back. The common way is the thread's magazine (`magazine.rs`); behind it
//! stands the pool's depot, a bounded lock-free queue; behind that the allocator. It grows instead of running
//! dry, and frees what a burst left behind.
//! State owned: the registry of pools, each pool's depot and counters.
//! Thread class: any thread.
//! Laws kept: 16 (bounded, counted; a declined fill leaves the buffer untouched).
//!
//! | field | written by | read by | guarded by |
//! |---|---|---|---|
//! | `depot` | any thread | any thread | itself (lock-free) |
//! | `low` | whoever pops, and the shrinker | the shrinker | atomic; a lost update costs one late or early free |
//! | `allocated` | whoever allocates or frees | stats | atomic |
//! | `POOLS` | `of_size` | everyone, seldom | its Mutex; pools are never removed |

use std::fmt;
// std atomic: they live in statics and leaked blocks, and only count; no wake or hand-over hangs on them.
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_queue::ArrayQueue;

use super::block::Block;
use super::magazine;
use super::recv_buf::RecvBuf;
use crate::sys;

/// Blocks are `1..=MAX_SIZE` bytes; another size is clamped.
pub(crate) const MAX_SIZE: usize = 1 << 30;
/// A depot holds about this much, but 16 blocks at least and 4096 at most.
const DEPOT_BYTES: usize = 64 << 20;
/// The window of the low-water mark.
const SHRINK_EVERY_MS: u64 = 2_000;

static POOLS: Mutex<Vec<&'static BufPool>> = Mutex::new(Vec::new());
static LAST_SHRINK_MS: AtomicU64 = AtomicU64::new(0);

fn pools() -> MutexGuard<'static, Vec<&'static BufPool>> {
    // The only write is a push: a poisoned list is a whole list.
    POOLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All blocks of one size.
pub(crate) struct BufPool {
    size: usize,
    depot: ArrayQueue<Box<Block>>,
    /// The fewest blocks the depot has held since the last shrink: those were not needed.
    low: AtomicUsize,
    /// Blocks that exist, wherever they are.
    allocated: AtomicUsize,
}

/// Where the blocks of all pools are. Read one after the other while threads go on, so they agree exactly
/// only when nothing moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolStats {
    /// Blocks that exist.
    pub(crate) allocated: usize,
    /// Free, in the depots.
    pub(crate) in_depot: usize,
    /// Free, kept by threads for themselves.
    pub(crate) in_magazines: usize,
    /// The rest: lent to fills and to `RecvBuf`s.
    pub(crate) outstanding: usize,
}

impl BufPool {
    /// The pool of blocks of `size` bytes (clamped to `1..=MAX_SIZE`). Pools live for ever.
    pub(crate) fn of_size(size: usize) -> &'static Self {
        let size = size.clamp(1, MAX_SIZE);
        let mut pools = pools();
        if let Some(pool) = pools.iter().find(|pool| pool.size == size) {
            return pool;
        }
        let bound = (DEPOT_BYTES / size).clamp(16, 4096);
        let pool: &'static Self = Box::leak(Box::new(Self {
            size,
            depot: ArrayQueue::new(bound),
            low: AtomicUsize::new(0),
            allocated: AtomicUsize::new(0),
        }));
        pools.push(pool);
        pool
    }

    /// Bytes per block.
    #[inline]
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A block to receive into.
    #[inline]
    pub(crate) fn fill(&'static self) -> Fill {
        Fill { block: Some(magazine::take(self)) }
    }

    /// Frees the depots' blocks that nobody needed since the last time. Call it as often as you like, from any
    /// reactor: it acts once every two seconds.
    pub(crate) fn shrink_all() {
        let now = sys::clock::monotonic_coarse_ms();
        let last = LAST_SHRINK_MS.load(Ordering::Relaxed);
        if now.saturating_sub(last) < SHRINK_EVERY_MS {
            return;
        }
        // Of several reactors one does it: two in a row would make the window as short as the time between them.
        if LAST_SHRINK_MS.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            // Copied, so that freeing does not happen under the lock.
            let all = pools().clone();
            for pool in all {
                pool.shrink();
            }
        }
    }

    /// Counts the blocks of all pools.
    pub(crate) fn stats_all() -> PoolStats {
        let mut stats = PoolStats { in_magazines: magazine::count_all(), ..PoolStats::default() };
        for pool in pools().iter() {
            stats.allocated += pool.allocated.load(Ordering::Relaxed);
            stats.in_depot += pool.depot.len();
        }
        stats.outstanding = stats.allocated.saturating_sub(stats.in_depot + stats.in_magazines);
        stats
    }

    /// A block from the depot, or a new one.
    pub(super) fn withdraw(&self) -> Box<Block> {
        let Some(block) = self.depot.pop() else {
            self.low.store(0, Ordering::Relaxed);
            self.allocated.fetch_add(1, Ordering::Relaxed);
            return Block::new(self.size);
        };
        let left = self.depot.len();
        if left < self.low.load(Ordering::Relaxed) {
            self.low.store(left, Ordering::Relaxed);
        }
        block
    }

    /// Gives a block of this pool's size back; what does not fit is freed.
    pub(super) fn deposit(&self, block: Box<Block>) {
        debug_assert_eq!(block.size(), self.size);
        if let Err(block) = self.depot.push(block) {
            self.free(block);
        }
    }

    fn free(&self, block: Box<Block>) {
        drop(block);
        self.allocated.fetch_sub(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn depot_len(&self) -> usize {
        self.depot.len()
    }

    fn shrink(&self) {
        for _ in 0..self.low.load(Ordering::Relaxed) {
            let Some(block) = self.depot.pop() else { break };
            self.free(block);
        }
        self.low.store(self.depot.len(), Ordering::Relaxed);
    }
}

impl fmt::Debug for BufPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufPool").field("size", &self.size).finish_non_exhaustive()
    }
}

/// A block that is being received into. Dropped without [`commit`](Self::commit) it goes back untouched.
pub(crate) struct Fill {
    /// Absent once committed.
    block: Option<Box<Block>>,
}

impl Fill {
    /// The whole block. What an earlier user received may still be in it.
    #[inline]
    pub(crate) fn space(&mut self) -> &mut [u8] {
        self.block.as_mut().map_or(&mut [], |block| block.whole())
    }

    /// The first `n` bytes (at most the block) are received data.
    #[inline]
    pub(crate) fn commit(mut self, n: usize) -> RecvBuf {
        RecvBuf::new(self.block.take(), n)
    }
}

impl Drop for Fill {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            magazine::put(block);
        }
    }
}

impl fmt::Debug for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fill").field("size", &self.block.as_ref().map(|block| block.size())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::flush_thread_magazine;

    // Every test has a size of its own: the pools are the process's.

    fn allocated(pool: &BufPool) -> usize {
        pool.allocated.load(Ordering::Relaxed)
    }

    #[test]
    fn one_pool_per_size_and_odd_sizes_are_clamped() {
        assert!(std::ptr::eq(BufPool::of_size(1001), BufPool::of_size(1001)));
        assert!(!std::ptr::eq(BufPool::of_size(1001), BufPool::of_size(1002)));
        assert_eq!(BufPool::of_size(0).size(), 1);
        assert_eq!(BufPool::of_size(usize::MAX).size(), MAX_SIZE);
        assert_eq!(BufPool::of_size(1001).fill().space().len(), 1001);
    }

    #[test]
    fn the_same_block_comes_back_and_a_declined_fill_leaves_it_untouched() {
        let pool = BufPool::of_size(1003);
        let mut fill = pool.fill();
        fill.space()[..3].copy_from_slice(b"abc");
        let place = fill.space().as_ptr();
        drop(fill);
        for _ in 0..10 {
            let mut fill = pool.fill();
            assert_eq!(fill.space().as_ptr(), place);
            assert_eq!(&fill.space()[..3], b"abc");
            let buf = fill.commit(3);
            assert_eq!(&buf[..], b"abc");
        }
        assert_eq!(allocated(pool), 1);
        // Control: while the block is lent, the next one is another.
        let mut first = pool.fill();
        let mut second = pool.fill();
        assert_ne!(first.space().as_ptr(), second.space().as_ptr());
        assert_eq!(allocated(pool), 2);
    }

    #[test]
    fn a_commit_beyond_the_block_is_cut() {
        assert_eq!(BufPool::of_size(1004).fill().commit(usize::MAX).len(), 1004);
    }

    #[test]
    fn it_grows_instead_of_running_dry_and_shrinks_after_the_burst() {
        // A large size, so that the depot's bound is low.
        let pool = BufPool::of_size((8 << 20) + 1);
        let bound = pool.depot.capacity();
        assert_eq!(bound, 16);
        let burst: Vec<_> = (0..bound + 20).map(|_| pool.fill()).collect();
        assert_eq!(allocated(pool), bound + 20);
        drop(burst);
        flush_thread_magazine();
        // What did not fit is freed at once...
        assert_eq!((allocated(pool), pool.depot.len()), (bound, bound));
        // ...the rest once a whole window has passed without need of it.
        pool.shrink();
        assert_eq!(pool.depot.len(), bound, "the depot was empty within the first window");
        let used: Vec<_> = (0..5).map(|_| pool.withdraw()).collect();
        used.into_iter().for_each(|block| pool.deposit(block));
        pool.shrink();
        assert_eq!((allocated(pool), pool.depot.len()), (5, 5));
        pool.shrink();
        assert_eq!((allocated(pool), pool.depot.len()), (0, 0));
        // And it grows again.
        assert_eq!(pool.fill().space().len(), pool.size());
    }

    #[test]
    fn shrinking_acts_once_per_window() {
        BufPool::shrink_all();
        let last = LAST_SHRINK_MS.load(Ordering::Relaxed);
        assert!(last > 0);
        BufPool::shrink_all();
        let again = LAST_SHRINK_MS.load(Ordering::Relaxed);
        assert!(again == last || again - last >= SHRINK_EVERY_MS);
    }

    #[test]
    fn threads_that_pass_buffers_on_lose_none() {
        let pool = BufPool::of_size(1005);
        let (give, taken) = std::sync::mpsc::sync_channel::<RecvBuf>(64);
        let consumer = std::thread::spawn(move || taken.iter().map(|buf| u64::from(buf[0])).sum::<u64>());
        let producer = std::thread::spawn(move || {
            for i in 0..20_000u64 {
                let mut fill = pool.fill();
                fill.space()[0] = i as u8;
                give.send(fill.commit(1)).unwrap();
            }
        });
        producer.join().unwrap();
        let expected = (0..20_000u64).map(|i| u64::from(i as u8)).sum::<u64>();
        assert_eq!(consumer.join().unwrap(), expected);
        // Both threads have ended: everything they kept is in the depot.
        assert_eq!(pool.depot.len(), allocated(pool));
        // At most what was under way, and what two threads may keep.
        assert!((1..=64 + 2 + 2 * 9).contains(&allocated(pool)), "{}", allocated(pool));
    }

    #[test]
    fn the_counts_add_up() {
        let pool = BufPool::of_size(1006);
        let lent: Vec<_> = (0..3).map(|_| pool.fill()).collect();
        let stats = BufPool::stats_all();
        assert!(stats.allocated >= 3);
        // Other tests move blocks meanwhile, so only what is ours can be judged exactly.
        assert_eq!(allocated(pool) - pool.depot.len() - magazine::count_here(), 3);
        drop(lent);
        assert_eq!(allocated(pool) - pool.depot.len() - magazine::count_here(), 0);
        assert_eq!(magazine::count_here(), 3);
        assert!(BufPool::stats_all().in_magazines >= 3);
    }
}
