//! [`Outgoing`]: bytes accepted and not sent yet, in order.
//!
//! Job: take bytes with or without a copy, move them between owners without one, send them. State owned: those bytes.
//! Thread class: any thread, one at a time (by `&mut`): the writer while it stages, the flush owner while it sends.
//! Laws kept: 3 (a hand-over copies nothing; a remainder goes back in FRONT), 8 (budget), 15 (all sends go out here).
//!
//! ```text
//! first out -> [ piece | piece | ... | tail ] <- staged here
//!                queue, normally empty   a Vec and how much of it has gone
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::BorrowedFd;

use bytes::Bytes;

use crate::sys;

/// A queue longer than this gives its room back when it has become empty.
const KEPT_PIECES: usize = 64;

/// Bytes on their way out.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// What goes before the tail. No piece is empty.
    queue: VecDeque<Piece>,
    /// The bytes in `queue`.
    queued: usize,
    /// What was staged last.
    tail: Vec<u8>,
    /// The first `start` bytes of the tail have gone.
    start: usize,
}

enum Piece {
    /// A tail of earlier: all but the first `start` bytes.
    Own {
        data: Vec<u8>,
        start: usize,
    },
    Bytes(Bytes),
}

/// How far a [`send`](Outgoing::send) came.
#[derive(Debug)]
#[must_use = "says whether something is left to send"]
pub(crate) struct Sent {
    /// Bytes that the kernel took.
    pub(crate) bytes: usize,
    /// System calls made.
    pub(crate) calls: u32,
    /// Why it stopped.
    pub(crate) end: SendEnd,
}

/// How a first send went.
#[must_use = "says whether something is left to send"]
pub(crate) enum First {
    /// Everything was in the tail, and the kernel took these bytes in one call.
    Whole(usize),
    /// Anything else.
    Other(Sent),
}

/// Why a send stopped.
#[derive(Debug)]
pub(crate) enum SendEnd {
    /// Everything has gone.
    Empty,
    /// The socket is full (EAGAIN): a writable edge will come.
    Blocked,
    /// The budget is used up and bytes are left.
    Budget,
    /// The socket has failed; what is left is still here.
    Error(io::Error),
}

impl Piece {
    fn as_slice(&self) -> &[u8] {
        match self {
            Self::Own { data, start } => &data[*start..],
            Self::Bytes(bytes) => bytes,
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Self::Own { start, .. } => *start += n,
            Self::Bytes(bytes) => drop(bytes.split_to(n)),
        }
    }
}

impl Outgoing {
    /// An empty one; nothing is allocated.
    pub(crate) const fn new() -> Self {
        Self { queue: VecDeque::new(), queued: 0, tail: Vec::new(), start: 0 }
    }

    /// Bytes not sent yet.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queued + self.tail_left()
    }

    /// Whether everything has been sent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub(crate) fn stage(&mut self, bytes: &[u8]) {
        self.tail_mut().extend_from_slice(bytes);
    }

    /// Appends `bytes` without a copy.
    pub(crate) fn stage_bytes(&mut self, bytes: Bytes) {
        if bytes.is_empty() {
            return;
        }
        self.close_tail();
        self.queued += bytes.len();
        self.queue.push_back(Piece::Bytes(bytes));
    }

    /// The tail, to append to. What it holds already must stay as it is; call [`commit_tail`](Self::commit_tail) after.
    #[inline]
    pub(crate) fn tail_mut(&mut self) -> &mut Vec<u8> {
        if self.start > 0 {
            self.drop_sent();
        }
        &mut self.tail
    }

    /// Counts the tail anew after somebody wrote to it.
    #[inline]
    pub(crate) fn commit_tail(&mut self) {
        // The length is computed from the Vec itself; a Vec that was cut is met here.
        self.start = self.start.min(self.tail.len());
    }

    /// Moves everything of `other` behind what is here.
    pub(crate) fn append(&mut self, other: &mut Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            mem::swap(self, other);
            return;
        }
        self.close_tail();
        self.queue.append(&mut other.queue);
        self.queued += mem::take(&mut other.queued);
        // Ours is empty now: `other` gets its Vec, if it still has one.
        mem::swap(&mut self.tail, &mut other.tail);
        mem::swap(&mut self.start, &mut other.start);
    }

    /// Moves everything of `other` in FRONT of what is here.
    pub(crate) fn prepend(&mut self, other: &mut Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            mem::swap(self, other);
            return;
        }
        other.close_tail();
        while let Some(piece) = other.queue.pop_back() {
            self.queue.push_front(piece);
        }
        self.queued += mem::take(&mut other.queued);
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self) -> Self {
        mem::take(self)
    }

    /// Forgets everything; the tail's capacity stays (see [`take_spare`](Self::take_spare)).
    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.queued = 0;
        self.emptied();
    }

    /// The tail's capacity, if nothing is in it: for an idle connection, which holds none.
    #[inline]
    pub(crate) fn take_spare(&mut self) -> Vec<u8> {
        if self.queue.is_empty() && self.queue.capacity() > 0 {
            self.queue = VecDeque::new();
        }
        if self.tail_left() > 0 {
            return Vec::new();
        }
        self.start = 0;
        let mut spare = mem::take(&mut self.tail);
        spare.clear();
        spare
    }

    /// Capacity to stage into; what `spare` holds is forgotten. Freed if there is some already.
    #[inline]
    pub(crate) fn give_spare(&mut self, mut spare: Vec<u8>) {
        if self.tail.capacity() == 0 {
            spare.clear();
            self.tail = spare;
        }
    }

    /// Sends until everything has gone, the socket is full, `budget` bytes have gone (`usize::MAX` = no budget) or
    /// the socket fails.
    ///
    /// A short send is followed by another try: only EAGAIN proves that an edge will come.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, budget: usize) -> Sent {
        match self.send_first(fd, budget) {
            First::Whole(bytes) => Sent { bytes, calls: 1, end: SendEnd::Empty },
            First::Other(sent) => sent,
        }
    }

    /// The same, with the one case told apart that nearly every answer is.
    #[inline]
    pub(crate) fn send_first(&mut self, fd: BorrowedFd<'_>, budget: usize) -> First {
        let left = self.tail_left();
        if self.queue.is_empty() && left <= budget && left > 0 {
            return match sys::io::send(fd, &self.tail[self.start..]) {
                Ok(n) if n == left => {
                    self.tail.clear();
                    self.start = 0;
                    First::Whole(n)
                }
                result => First::Other(self.go_on(fd, budget, result)),
            };
        }
        First::Other(self.send_slow(fd, budget, 0, 0))
    }

    /// After a first send that did not take everything.
    #[cold]
    #[inline(never)]
    fn go_on(&mut self, fd: BorrowedFd<'_>, budget: usize, first: io::Result<usize>) -> Sent {
        match self.took(first) {
            Ok(n) => self.send_slow(fd, budget, n, 1),
            Err(end) => Sent { bytes: 0, calls: 1, end },
        }
    }

    #[inline(never)]
    fn send_slow(&mut self, fd: BorrowedFd<'_>, budget: usize, mut bytes: usize, mut calls: u32) -> Sent {
        loop {
            if self.is_empty() {
                self.emptied();
                return Sent { bytes, calls, end: SendEnd::Empty };
            }
            if bytes >= budget {
                return Sent { bytes, calls, end: SendEnd::Budget };
            }
            let room = budget - bytes;
            let result = match self.queue.len() + 1 {
                1 => {
                    let end = self.tail.len().min(self.start.saturating_add(room));
                    sys::io::send(fd, &self.tail[self.start..end])
                }
                ..=16 => self.send_pieces::<16>(fd, room),
                _ => self.send_pieces::<{ sys::io::IOV_MAX }>(fd, room),
            };
            calls += 1;
            match self.took(result) {
                Ok(n) => bytes += n,
                Err(end) => return Sent { bytes, calls, end },
            }
        }
    }

    /// One sendmsg of the first `N` pieces, the tail among them, and of at most `room` bytes.
    fn send_pieces<const N: usize>(&self, fd: BorrowedFd<'_>, mut room: usize) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); N];
        let mut used = 0;
        let tail = &self.tail[self.start..];
        for piece in self.queue.iter().map(Piece::as_slice).chain([tail]).take(N) {
            let piece = &piece[..piece.len().min(room)];
            if piece.is_empty() {
                // The tail may be empty, or the room used up.
                break;
            }
            slices[used] = IoSlice::new(piece);
            used += 1;
            room -= piece.len();
        }
        sys::io::send_vectored(fd, &slices[..used])
    }

    /// Takes what the kernel took off the front, or says how the sending ends.
    fn took(&mut self, result: io::Result<usize>) -> Result<usize, SendEnd> {
        match result {
            // Something was offered, so this does not happen; it must not loop for ever if it did.
            Ok(0) => Err(SendEnd::Error(io::ErrorKind::WriteZero.into())),
            Ok(n) => {
                self.advance(n);
                Ok(n)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(SendEnd::Blocked),
            Err(error) => Err(SendEnd::Error(error)),
        }
    }

    fn advance(&mut self, mut n: usize) {
        while n > 0 {
            let Some(front) = self.queue.front_mut() else {
                break;
            };
            let len = front.as_slice().len();
            if n < len {
                front.advance(n);
                self.queued -= n;
                return;
            }
            self.queue.pop_front();
            self.queued -= len;
            n -= len;
        }
        self.start = self.tail.len().min(self.start.saturating_add(n));
    }

    #[inline]
    fn tail_left(&self) -> usize {
        self.tail.len() - self.start
    }

    /// Makes the tail a piece, so that something else can go behind it.
    fn close_tail(&mut self) {
        if self.tail_left() == 0 {
            return;
        }
        self.queued += self.tail_left();
        let data = mem::take(&mut self.tail);
        self.queue.push_back(Piece::Own { data, start: mem::take(&mut self.start) });
    }

    fn emptied(&mut self) {
        self.tail.clear();
        self.start = 0;
        if self.queue.capacity() > KEPT_PIECES {
            self.queue = VecDeque::new();
        }
    }

    /// A tail that is never quite empty must not grow for ever: once the sent part is as long as the rest, the rest
    /// moves over it (each byte moves about once).
    #[cold]
    fn drop_sent(&mut self) {
        if self.start >= self.tail_left() {
            self.tail.drain(..self.start);
            self.start = 0;
        }
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("len", &self.len()).field("pieces", &self.queue.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
