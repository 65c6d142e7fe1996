//! A block: the memory of one receive buffer and which part of it is data, in one box.
//!
//! Job: what the pools lend. State owned: the bytes, zeroed once. Thread class: any thread, one at a time. Laws: 16.
//!
//! The box is what moves through the magazine, a fill, a `RecvBuf` and a user's await: one word, where a slice with
//! its range is three (70 instructions a request less, measured with callgrind on a keep-alive GET).

use std::sync::Arc;

use super::magazine;

/// See the module's text.
pub(super) struct Block {
    /// Empty in a view of a shared block.
    bytes: Box<[u8]>,
    /// Whose bytes these are, if they are not its own.
    shared: Option<Arc<Shared>>,
    /// The data is `start..end`.
    pub(super) start: usize,
    pub(super) end: usize,
}

/// A block that several views share: it returns to its pool with the last of them.
pub(super) struct Shared(Option<Box<Block>>);

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(block) = self.0.take() {
            magazine::put(block);
        }
    }
}

impl Block {
    /// A new one of `size` bytes, without data.
    pub(super) fn new(size: usize) -> Box<Self> {
        Box::new(Self { bytes: vec![0; size].into_boxed_slice(), shared: None, start: 0, end: 0 })
    }

    /// Bytes it has room for; of a view, those of the block it views.
    #[inline]
    pub(super) fn size(&self) -> usize {
        match &self.shared {
            None => self.bytes.len(),
            Some(shared) => shared.0.as_ref().map_or(0, |block| block.bytes.len()),
        }
    }

    /// The same of a block that is no view.
    #[inline]
    pub(super) fn own_size(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    pub(super) fn is_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// All of its memory; none of a view.
    #[inline]
    pub(super) fn whole(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    #[inline]
    pub(super) fn data(&self) -> &[u8] {
        match &self.shared {
            None => &self.bytes[self.start..self.end],
            Some(shared) => shared.0.as_ref().map_or(&[], |block| &block.bytes[self.start..self.end]),
        }
    }

    /// Splits the data at `at` (within it) into two views of the same memory.
    pub(super) fn split(mut self: Box<Self>, at: usize) -> (Box<Self>, Box<Self>) {
        let (start, cut, end) = (self.start, self.start + at, self.end);
        let shared = self.shared.take().unwrap_or_else(|| Arc::new(Shared(Some(self))));
        let view = |shared, start, end| Box::new(Self { bytes: Box::default(), shared: Some(shared), start, end });
        (view(shared.clone(), start, cut), view(shared, cut, end))
    }
}
