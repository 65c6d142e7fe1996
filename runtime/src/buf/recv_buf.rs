//! [`RecvBuf`]: received bytes, an owned slice of a pooled block.
//!
//! Job: own, cut, share and return the block. State owned: the block, until it is dropped.
//! Thread class: any thread. Laws kept: 16 (a block always goes back to its pool).
//!
//! By default the block has one owner and no reference count. `split_to` makes it shared; its last part
//! returns it.

use std::error::Error;
use std::fmt;
use std::io;
use std::mem;
use std::num::NonZeroU32;
use std::ops::Deref;
use std::sync::Arc;

use bytes::{Buf, Bytes};

use super::magazine;
use super::pool::BufPool;

/// Received bytes: an owned slice of a pooled buffer.
///
/// It dereferences to `[u8]` and is a [`bytes::Buf`], which consumes from the front. Dropping it, on any thread,
/// returns the buffer to its pool; it may outlive the connection and every reactor.
///
/// Nothing here waits, and all of it may be called from any thread.
pub struct RecvBuf {
    repr: Repr,
    /// The data is `start..end` of the block. 24 bytes in all, which the hot path moves several times; sizes are at
    /// most 1 GiB, so 32 bits hold them.
    start: u32,
    /// One more than `end`: never 0, which makes an `Option` of it no larger.
    end_plus_one: NonZeroU32,
}

enum Repr {
    Unique(Box<[u8]>),
    Shared(Arc<SharedBlock>),
}

struct SharedBlock {
    block: Box<[u8]>,
}

impl Drop for SharedBlock {
    fn drop(&mut self) {
        magazine::put(mem::take(&mut self.block));
    }
}

/// The unread bytes have reached the limit: there is no larger block to move them to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GrowError {
    /// Unread bytes.
    pub(crate) len: usize,
    /// The limit they have reached.
    pub(crate) max: usize,
}

impl fmt::Display for GrowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { len, max } = self;
        write!(f, "{len} bytes are unread and the limit is {max}: consume some first or raise max_read_buffer")
    }
}

impl Error for GrowError {}

impl From<GrowError> for io::Error {
    fn from(error: GrowError) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, error)
    }
}

impl RecvBuf {
    /// The first `n` bytes of the block (at most all of it).
    #[inline]
    pub(super) fn new(block: Box<[u8]>, n: usize) -> Self {
        let end = n.min(block.len());
        Self { repr: Repr::Unique(block), start: 0, end_plus_one: plus_one(end) }
    }

    #[inline]
    fn start(&self) -> usize {
        self.start as usize
    }

    #[inline]
    fn end(&self) -> usize {
        (self.end_plus_one.get() - 1) as usize
    }

    #[inline]
    fn set_range(&mut self, start: usize, end: usize) {
        self.start = start as u32;
        self.end_plus_one = plus_one(end);
    }

    /// Cuts off the first `at` bytes and returns them; `self` keeps the rest. No byte is copied: both parts
    /// share the buffer, which returns to its pool with the last of them.
    ///
    /// An `at` beyond the length takes everything.
    #[must_use = "the bytes cut off are lost with it"]
    pub fn split_to(&mut self, at: usize) -> Self {
        let at = at.min(self.len());
        if at == 0 {
            return Self::without_block();
        }
        if at == self.len() {
            // Nothing is left to share with.
            return mem::replace(self, Self::without_block());
        }
        let block = self.share();
        let cut = self.start() + at;
        let front = Self { repr: Repr::Shared(block), start: self.start, end_plus_one: plus_one(cut) };
        self.set_range(cut, self.end());
        front
    }

    /// Turns it into [`Bytes`], without a copy: the buffer returns to its pool with the last clone.
    ///
    /// Less than an eighth of the buffer is copied instead, so that a few bytes kept for long do not hold
    /// a whole buffer.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        if self.is_empty() {
            Bytes::new()
        } else if self.len() < self.block().len() / 8 {
            Bytes::copy_from_slice(&self)
        } else {
            Bytes::from_owner(self)
        }
    }

    /// Keeps the first `len` bytes and forgets the rest; a `len` beyond the length changes nothing.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.set_range(self.start(), self.start() + len);
        }
    }

    /// The free space behind the data; `None` if there is none, or if the block is shared.
    #[inline]
    pub(crate) fn tail(&mut self) -> Option<&mut [u8]> {
        if self.is_empty() {
            // All consumed: the whole block is free.
            self.set_range(0, 0);
        }
        let end = self.end();
        let Repr::Unique(block) = &mut self.repr else {
            return None;
        };
        let tail = &mut block[end..];
        if tail.is_empty() { None } else { Some(tail) }
    }

    /// The first `n` bytes of the tail (at most all of it) are received data now.
    #[inline]
    pub(crate) fn committed(&mut self, n: usize) {
        self.set_range(self.start(), self.end() + n.min(self.capacity_left()));
    }

    /// How long the free space behind the data is: 0 for a shared block.
    #[inline]
    pub(crate) fn capacity_left(&self) -> usize {
        match &self.repr {
            Repr::Unique(block) => block.len() - self.end(),
            Repr::Shared(_) => 0,
        }
    }

    /// Makes a tail: moves the unread bytes to a block of twice their size, of at least the buffer size of `home` (the
    /// connection's pool) and of at most `max`. When they fit twice into the block they are in, they move to its front.
    /// On an error nothing has changed.
    pub(crate) fn grow(&mut self, home: &'static BufPool, max: usize) -> Result<(), GrowError> {
        let len = self.len();
        let twice = len.saturating_mul(2);
        let size = if twice <= home.size() { home.size() } else { twice.checked_next_power_of_two().unwrap_or(max) };
        let size = size.min(max);
        if size <= len {
            return Err(GrowError { len, max });
        }
        let range = self.start()..self.end();
        if let Repr::Unique(block) = &mut self.repr
            && block.len() == size
        {
            block.copy_within(range, 0);
            self.set_range(0, len);
            return Ok(());
        }
        let pool = if size == home.size() { home } else { BufPool::of_size(size) };
        if pool.size() <= len {
            return Err(GrowError { len, max });
        }
        let mut block = magazine::take(pool);
        block[..len].copy_from_slice(self);
        // The assignment drops the old part, which returns the old block.
        *self = Self::new(block, len);
        Ok(())
    }

    #[inline]
    fn block(&self) -> &[u8] {
        match &self.repr {
            Repr::Unique(block) => block,
            Repr::Shared(shared) => &shared.block,
        }
    }

    /// An empty one, which holds no block.
    fn without_block() -> Self {
        Self::new(Box::default(), 0)
    }

    /// Makes the block shared if it is not yet.
    fn share(&mut self) -> Arc<SharedBlock> {
        match &mut self.repr {
            Repr::Shared(shared) => Arc::clone(shared),
            Repr::Unique(block) => {
                let shared = Arc::new(SharedBlock { block: mem::take(block) });
                self.repr = Repr::Shared(Arc::clone(&shared));
                shared
            }
        }
    }
}

#[inline]
fn plus_one(end: usize) -> NonZeroU32 {
    // A block is at most 1 GiB, so neither the cast nor the addition can lose anything.
    NonZeroU32::MIN.saturating_add(end as u32)
}

impl Drop for RecvBuf {
    #[inline]
    fn drop(&mut self) {
        if let Repr::Unique(block) = &mut self.repr {
            magazine::put(mem::take(block));
        }
    }
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.block()[self.start()..self.end()]
    }
}

impl AsRef<[u8]> for RecvBuf {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Buf for RecvBuf {
    #[inline]
    fn remaining(&self) -> usize {
        self.end() - self.start()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self
    }

    /// Consumes `n` bytes.
    ///
    /// # Panics
    /// When `n` is more than [`remaining`](Buf::remaining), as `Buf` asks.
    #[inline]
    fn advance(&mut self, n: usize) {
        let left = self.remaining();
        assert!(n <= left, "cannot advance by {n}: only {left} bytes remain");
        self.set_range(self.start() + n, self.end());
    }

    /// No copy, except as [`freeze`](RecvBuf::freeze) says.
    ///
    /// # Panics
    /// When `len` is more than [`remaining`](Buf::remaining), as `Buf` asks.
    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let left = self.remaining();
        assert!(len <= left, "cannot take {len} bytes: only {left} remain");
        self.split_to(len).freeze()
    }
}

impl fmt::Debug for RecvBuf {
    /// The length alone: what was received may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecvBuf").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
#[path = "recv_buf_tests.rs"]
mod tests;
