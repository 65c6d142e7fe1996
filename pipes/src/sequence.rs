//! [`Sequence`]: one view over the bytes that a pipe reader holds, in however many buffers they are.
//!
//! Job: look, search, copy; nothing is taken out of the pipe by it. State owned: none (borrows the reader's buffers).
//! Thread class: any thread.

use crate::held::{Many, Segment};
use bytes::{Buf, Bytes};
use memchr::memmem;
use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;

/// A view over the bytes that a [`PipeReader`](crate::PipeReader) holds, one slice for each buffer.
///
/// It is `Copy`, and a [`bytes::Buf`]: consuming from it moves this view only. The bytes stay in the pipe until
/// [`PipeReader::advance`](crate::PipeReader::advance) says how many are done with; [`position`](Self::position) is
/// that number for a view that was consumed from.
///
/// ```
/// use bytes::Buf;
///
/// fn parse(mut view: epoxide_pipes::Sequence<'_>) -> Option<(u16, usize)> {
///     let number = (view.len() >= 2).then(|| view.get_u16())?;
///     Some((number, view.position()))
/// }
/// # let _ = parse;
/// ```
#[derive(Clone, Copy)]
pub struct Sequence<'a> {
    first: &'a [u8],
    len: usize,
    position: usize,
    /// `rest[skip..]` follows, up to `len` bytes in all.
    rest: Option<&'a Many>,
    skip: usize,
}

impl<'a> Sequence<'a> {
    /// One slice.
    #[inline]
    pub(crate) fn of(bytes: &'a [u8]) -> Self {
        Self { first: bytes, len: bytes.len(), position: 0, rest: None, skip: 0 }
    }

    /// Several segments, `len` bytes in all.
    pub(crate) fn over(segments: Option<&'a Many>, len: usize) -> Self {
        let first = segments.and_then(VecDeque::front).map_or(&[][..], Segment::bytes);
        Self { first, len, position: 0, rest: segments, skip: 1 }
    }

    /// Bytes in the view.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Is there no byte in the view?
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes between the beginning of what was read and the beginning of this view.
    #[inline]
    pub fn position(&self) -> usize {
        self.position
    }

    /// The bytes of the first slice; all of them when there is one only.
    #[inline]
    pub fn first(&self) -> &'a [u8] {
        self.first
    }

    /// All bytes as one slice, if they lie in one buffer.
    #[inline]
    pub fn as_slice(&self) -> Option<&'a [u8]> {
        (self.first.len() == self.len).then_some(self.first)
    }

    /// The slices, in order; none is empty.
    pub fn slices(&self) -> Slices<'a> {
        Slices { view: *self }
    }

    /// The byte at `at`.
    pub fn get(&self, at: usize) -> Option<u8> {
        let mut at = at;
        for slice in self.slices() {
            match slice.get(at) {
                Some(byte) => return Some(*byte),
                None => at -= slice.len(),
            }
        }
        None
    }

    /// Where `needle` is first found, in bytes from the beginning of the view, also across buffers. An empty needle is at 0.
    pub fn find(&self, needle: &[u8]) -> Option<usize> {
        self.find_from(0, needle)
    }

    /// The same, looking at nothing before `from`.
    #[inline]
    pub fn find_from(&self, from: usize, needle: &[u8]) -> Option<usize> {
        if self.len < needle.len() {
            return None;
        }
        match self.as_slice() {
            Some(bytes) => {
                let from = from.min(bytes.len());
                find_in_slice(&bytes[from..], needle).map(|at| from + at)
            }
            None => self.find_across(from, needle),
        }
    }

    #[cold]
    fn find_across(&self, from: usize, needle: &[u8]) -> Option<usize> {
        let mut view = self.from(from.min(self.len));
        let Some(overlap) = needle.len().checked_sub(1) else { return Some(from.min(self.len)) };
        let start = self.position;
        while view.len > overlap {
            if let Some(at) = find_in_slice(view.first, needle) {
                return Some(view.position - start + at);
            }
            // A match that begins in the last bytes of this slice and ends in a later one.
            view.advance(view.first.len().saturating_sub(overlap));
            while view.len > overlap && view.first.len() <= overlap {
                if view.starts_with(needle) {
                    return Some(view.position - start);
                }
                view.advance(1);
            }
        }
        None
    }

    /// Does the view begin with `bytes`?
    pub fn starts_with(&self, bytes: &[u8]) -> bool {
        if self.len < bytes.len() {
            return false;
        }
        let mut left = bytes;
        for slice in self.slices() {
            let n = slice.len().min(left.len());
            if slice[..n] != left[..n] {
                return false;
            }
            left = &left[n..];
        }
        true
    }

    /// The part from `at` on; `at` beyond the end is the end.
    #[must_use]
    pub fn from(&self, at: usize) -> Self {
        let mut view = *self;
        view.advance(at.min(self.len));
        view
    }

    /// The first `n` bytes; all of it when there are less.
    #[must_use]
    pub fn up_to(&self, n: usize) -> Self {
        let len = n.min(self.len);
        Self { first: &self.first[..len.min(self.first.len())], len, ..*self }
    }

    /// Copies the first bytes into `space`, and returns how many were copied: the smaller of the two lengths.
    pub fn copy_to(&self, space: &mut [u8]) -> usize {
        let mut done = 0;
        for slice in self.slices() {
            let n = slice.len().min(space.len() - done);
            space[done..done + n].copy_from_slice(&slice[..n]);
            done += n;
        }
        done
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut all = Vec::with_capacity(self.len);
        self.slices().for_each(|slice| all.extend_from_slice(slice));
        all
    }

    /// Drops `n` bytes, at least the first slice; `len` says already how many are left then.
    #[cold]
    fn go_on(&mut self, n: usize) {
        let mut left = n - self.first.len();
        loop {
            let next = self.rest.and_then(|rest| rest.get(self.skip)).map_or(&[][..], Segment::bytes);
            self.skip += 1;
            if left < next.len() || next.is_empty() {
                let next = &next[left.min(next.len())..];
                self.first = &next[..next.len().min(self.len)];
                return;
            }
            left -= next.len();
        }
    }
}

/// Below this many bytes a search by its first byte is quicker than to prepare a searcher: 200 instructions, measured
/// with callgrind on a request of 35 bytes.
const SHORT: usize = 512;

#[inline]
fn find_in_slice(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    if bytes.len() > SHORT {
        return memmem::find(bytes, needle);
    }
    let [first, rest @ ..] = needle else { return Some(0) };
    // Compared in line: a call of memcmp costs more than a short needle.
    let found =
        |at: &usize| bytes[at + 1..].len() >= rest.len() && bytes[at + 1..].iter().zip(rest).all(|(a, b)| a == b);
    memchr::memchr_iter(*first, bytes).find(found)
}

impl Buf for Sequence<'_> {
    #[inline]
    fn remaining(&self) -> usize {
        self.len
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self.first
    }

    /// Moves the beginning of the view; nothing is taken out of the pipe.
    ///
    /// # Panics
    /// When `n` is more than [`remaining`](Buf::remaining), as `Buf` asks.
    #[inline]
    fn advance(&mut self, n: usize) {
        assert!(n <= self.len, "cannot advance by {n}: only {} bytes remain", self.len);
        self.position += n;
        self.len -= n;
        match self.first.get(n..) {
            Some(left) if !left.is_empty() || self.len == 0 => self.first = left,
            _ => self.go_on(n),
        }
    }

    fn chunks_vectored<'b>(&'b self, slices: &mut [IoSlice<'b>]) -> usize {
        let mut n = 0;
        for (place, slice) in slices.iter_mut().zip(self.slices()) {
            *place = IoSlice::new(slice);
            n += 1;
        }
        n
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        assert!(len <= self.len, "cannot take {len} bytes: only {} remain", self.len);
        let bytes = Bytes::from(self.up_to(len).to_vec());
        self.advance(len);
        bytes
    }
}

impl fmt::Debug for Sequence<'_> {
    /// The length alone: what was received may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sequence").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<'a> IntoIterator for Sequence<'a> {
    type Item = &'a [u8];
    type IntoIter = Slices<'a>;

    fn into_iter(self) -> Slices<'a> {
        self.slices()
    }
}

/// The slices of a [`Sequence`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (mut input, _output) = Duplex::new(conn).into_parts();
/// peer.write_all(b"hello")?;
/// let pieces: usize = input.read().await?.buffer.slices().map(<[u8]>::len).sum();
/// assert_eq!(pieces, 5);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Slices<'a> {
    view: Sequence<'a>,
}

impl<'a> Iterator for Slices<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let slice = self.view.first;
        if slice.is_empty() {
            return None;
        }
        self.view.advance(slice.len());
        Some(slice)
    }
}
