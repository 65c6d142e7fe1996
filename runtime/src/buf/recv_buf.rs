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
use std::mem::ManuallyDrop;
use std::ops::Deref;

use bytes::{Buf, Bytes};

use super::block::Block;
use super::magazine;
use super::pool::BufPool;

/// Received bytes: an owned slice of a pooled buffer.
///
/// It dereferences to `[u8]` and is a [`bytes::Buf`], which consumes from the front. Dropping it, on any thread,
/// returns the buffer to its pool; it may outlive the connection and every reactor.
///
/// Nothing here waits, and all of it may be called from any thread.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// peer.write_all(b"head\nbody")?;
/// let mut data = conn.read().await?.unwrap();
/// let head = data.split_to(5); // no copy: both are parts of one buffer
/// assert_eq!((&head[..], &data[..]), (&b"head\n"[..], &b"body"[..]));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct RecvBuf {
    /// `None` is empty and holds no block. Taken by `Drop`: the compiler's own drop of a box would keep the common drop
    /// from being inlined (10 instructions a request).
    block: ManuallyDrop<Option<Box<Block>>>,
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
    pub(super) fn new(mut block: Option<Box<Block>>, n: usize) -> Self {
        if let Some(block) = &mut block {
            block.start = 0;
            // Fresh from a pool: no view of a shared one.
            block.end = n.min(block.own_size());
        }
        Self::of(block)
    }

    fn of(block: Option<Box<Block>>) -> Self {
        Self { block: ManuallyDrop::new(block) }
    }

    /// Cuts off the first `at` bytes and returns them; `self` keeps the rest. No byte is copied: both parts
    /// share the buffer, which returns to its pool with the last of them.
    ///
    /// An `at` beyond the length takes everything.
    #[must_use = "the bytes cut off are lost with it"]
    pub fn split_to(&mut self, at: usize) -> Self {
        if at == 0 {
            return Self::of(None);
        }
        if at >= self.len() {
            // Nothing is left to share with.
            return Self::of(self.block.take());
        }
        let Some(block) = self.block.take() else { return Self::of(None) };
        let (front, back) = block.split(at);
        *self.block = Some(back);
        Self::of(Some(front))
    }

    /// Turns it into [`Bytes`], without a copy: the buffer returns to its pool with the last clone.
    ///
    /// Less than an eighth of the buffer is copied instead, so that a few bytes kept for long do not hold
    /// a whole buffer.
    #[must_use]
    pub fn freeze(self) -> Bytes {
        match &*self.block {
            None => Bytes::new(),
            Some(block) if block.data().len() < block.size() / 8 => Bytes::copy_from_slice(block.data()),
            Some(_) => Bytes::from_owner(self),
        }
    }

    /// Keeps the first `len` bytes and forgets the rest; a `len` beyond the length changes nothing.
    pub fn truncate(&mut self, len: usize) {
        if len < self.len()
            && let Some(block) = &mut *self.block
        {
            block.end = block.start + len;
        }
    }

    /// Bytes of memory that the buffer occupies, read or not: what a pool lent. Parts that share it all say the same.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.size())
    }

    /// Free bytes behind the data, which `read_more` receives into: 0 when the buffer is shared.
    #[inline]
    pub fn spare_capacity(&self) -> usize {
        match &*self.block {
            // All consumed: the whole block is free.
            Some(block) if !block.is_shared() && block.start == block.end => block.size(),
            _ => self.capacity_left(),
        }
    }

    /// The free space behind the data; `None` if there is none, or if the block is shared.
    #[inline]
    pub(crate) fn tail(&mut self) -> Option<&mut [u8]> {
        let block = self.block.as_mut()?;
        if block.start == block.end {
            // All consumed: the whole block is free.
            (block.start, block.end) = (0, 0);
        }
        let end = block.end;
        block.whole().get_mut(end..).filter(|tail| !tail.is_empty())
    }

    /// The first `n` bytes of the tail (at most all of it) are received data now.
    #[inline]
    pub(crate) fn committed(&mut self, n: usize) {
        let n = n.min(self.capacity_left());
        if let Some(block) = &mut *self.block {
            block.end += n;
        }
    }

    /// How long the free space behind the data is: 0 for a shared block.
    #[inline]
    pub(crate) fn capacity_left(&self) -> usize {
        match &*self.block {
            Some(block) if !block.is_shared() => block.size() - block.end,
            _ => 0,
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
        if let Some(block) = &mut *self.block
            && !block.is_shared()
            && block.size() == size
        {
            let range = block.start..block.end;
            block.whole().copy_within(range, 0);
            (block.start, block.end) = (0, len);
            return Ok(());
        }
        let pool = if size == home.size() { home } else { BufPool::of_size(size) };
        if pool.size() <= len {
            return Err(GrowError { len, max });
        }
        let mut block = magazine::take(pool);
        block.whole()[..len].copy_from_slice(self);
        // The assignment drops the old part, which returns the old block.
        *self = Self::new(Some(block), len);
        Ok(())
    }
}

impl Drop for RecvBuf {
    #[inline]
    fn drop(&mut self) {
        match self.block.take() {
            Some(block) if !block.is_shared() => magazine::put(block),
            Some(view) => drop_view(view),
            None => {}
        }
    }
}

/// Apart, so that the common drop is small.
#[cold]
fn drop_view(view: Box<Block>) {
    drop(view);
}

impl Deref for RecvBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.block.as_ref().map_or(&[], |block| block.data())
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
        self.len()
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
        if let Some(block) = &mut *self.block {
            block.start += n;
        }
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
