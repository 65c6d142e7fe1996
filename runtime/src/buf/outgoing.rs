//! [`Outgoing`]: bytes accepted and not sent yet, in order.
//!
//! Job: take bytes with or without a copy, move them between owners without one, send them. State owned: those bytes;
//! an empty one holds nothing. Thread class: any thread, one at a time (by `&mut`): the writer while it stages, the
//! flush owner while it sends.
//! Laws kept: 3 (a hand-over copies nothing; a remainder goes back in FRONT), 8 (budget), 15 (all sends go out here).
//!
//! ```text
//! first out -> [ piece | piece | ... ][ tail ] <- staged here
//!                front, mostly absent    a buffer and how much of it has gone
//! ```
//! Both parts are boxes: an idle connection holds two words, and the box of the tail, taken from the thread's spare and
//! given back when everything is out, moves as one word (20 instructions a request less than moving the Vec).

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSlice};
use std::mem;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;

use super::record::{Behind, Record};
use super::spare;
use crate::sync::quiet::quiet;
use crate::sys;

/// Bytes on their way out.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// What was staged last.
    tail: Option<Box<Tail>>,
    /// What goes before the tail; never empty.
    front: Option<Box<Front>>,
}

/// A staging buffer.
#[derive(Default)]
pub(super) struct Tail {
    pub(super) data: Vec<u8>,
    /// The first `start` bytes have gone.
    pub(super) start: usize,
}

impl Tail {
    #[inline]
    fn left(&self) -> &[u8] {
        &self.data[self.start..]
    }
}

#[derive(Default)]
struct Front {
    /// No piece is empty.
    queue: VecDeque<Piece>,
    /// The bytes in `queue`.
    bytes: usize,
}

enum Piece {
    /// A tail of earlier.
    Own(Box<Tail>),
    Bytes(Bytes),
    /// A record of kernel TLS that is no data.
    Record(Record),
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
            Self::Own(tail) => tail.left(),
            Self::Bytes(bytes) => bytes,
            Self::Record(record) => record.body(),
        }
    }

    fn advance(&mut self, n: usize) {
        match self {
            Self::Own(tail) => tail.start += n,
            Self::Bytes(bytes) => drop(bytes.split_to(n)),
            // It goes whole.
            Self::Record(_) => {}
        }
    }
}

impl Outgoing {
    /// An empty one; nothing is allocated.
    pub(crate) const fn new() -> Self {
        Self { tail: None, front: None }
    }

    /// Bytes not sent yet.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.front.as_ref().map_or(0, |front| front.bytes) + self.tail_left().len()
    }

    /// Whether everything has been sent.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.front.is_none() && self.tail_left().is_empty()
    }

    /// Holds it no memory? Then nothing is to be sent either; the reverse need not hold.
    #[inline]
    pub(crate) fn is_bare(&self) -> bool {
        self.front.is_none() && self.tail.is_none()
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub(crate) fn stage(&mut self, bytes: &[u8]) {
        self.tail_mut().extend_from_slice(bytes);
    }

    /// Appends `bytes` without a copy.
    pub(crate) fn stage_bytes(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.push(bytes.len(), Piece::Bytes(bytes));
        }
    }

    /// Appends a record of the given kind, which has a body, for a socket whose TLS the kernel does. What comes after it
    /// goes out once `behind` is settled.
    pub(crate) fn stage_record(&mut self, kind: u8, body: Bytes, behind: Option<Arc<dyn Behind>>) {
        debug_assert!(!body.is_empty(), "no piece is empty");
        self.push(body.len(), Piece::Record(Record::new(kind, body, behind)));
    }

    fn push(&mut self, len: usize, piece: Piece) {
        self.close_tail();
        let front = self.front.get_or_insert_default();
        front.bytes += len;
        front.queue.push_back(piece);
    }

    /// The tail, to append to. What it holds already, partly sent bytes perhaps, must stay as it is.
    #[inline]
    pub(crate) fn tail_mut(&mut self) -> &mut Vec<u8> {
        let tail = self.tail.get_or_insert_with(spare::take);
        if tail.start > 0 {
            drop_sent(tail);
        }
        &mut tail.data
    }

    /// Moves everything of `other` behind what is here.
    pub(crate) fn append(&mut self, other: &mut Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            self.clear();
            *self = mem::take(other);
            return;
        }
        self.close_tail();
        if let Some(mut theirs) = other.front.take() {
            let front = self.front.get_or_insert_default();
            front.queue.append(&mut theirs.queue);
            front.bytes += theirs.bytes;
        }
        self.tail = other.tail.take();
    }

    /// Moves everything of `other` in FRONT of what is here.
    pub(crate) fn prepend(&mut self, other: &mut Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            self.clear();
            *self = mem::take(other);
            return;
        }
        other.close_tail();
        let Some(mut theirs) = other.front.take() else { return };
        match &mut self.front {
            None => self.front = Some(theirs),
            Some(front) => {
                theirs.queue.append(&mut front.queue);
                theirs.bytes += front.bytes;
                **front = *theirs;
            }
        }
    }

    /// Takes everything out.
    pub(crate) fn take(&mut self) -> Self {
        mem::take(self)
    }

    /// Forgets everything, and holds nothing any more.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.front.is_some() {
            // Mostly absent: its drop, user code perhaps, is kept out of the common path.
            let front = self.front.take();
            quiet(|| drop(front));
        }
        if let Some(tail) = self.tail.take() {
            spare::put(tail);
        }
    }

    /// What is here, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let front = self.front.iter().flat_map(|front| front.queue.iter().map(Piece::as_slice));
        front.chain([self.tail_left()]).filter(|piece| !piece.is_empty())
    }

    /// Sends until everything has gone, the socket is full, `budget` bytes have gone (`usize::MAX` = no budget) or
    /// the socket fails.
    ///
    /// A short send is followed by another try: only EAGAIN proves that an edge will come.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, budget: usize) -> Sent {
        self.send_rest(fd, budget, 0, 0)
    }

    /// What is to be sent, where one send(2) can take all of it. `None`: nothing is, or it takes [`send`](Self::send).
    #[inline]
    pub(crate) fn plain(&self) -> Option<&[u8]> {
        if self.front.is_some() {
            return None;
        }
        Some(self.tail.as_ref()?.left()).filter(|left| !left.is_empty())
    }

    /// Goes on after the caller's own send of [`plain`](Self::plain), which did not take everything.
    #[cold]
    #[inline(never)]
    pub(crate) fn send_after(&mut self, fd: BorrowedFd<'_>, budget: usize, first: io::Result<usize>) -> Sent {
        match self.took(first) {
            Ok(n) => self.send_rest(fd, budget, n, 1),
            Err(end) => Sent { bytes: 0, calls: 1, end },
        }
    }

    #[inline(never)]
    fn send_rest(&mut self, fd: BorrowedFd<'_>, budget: usize, mut bytes: usize, mut calls: u32) -> Sent {
        loop {
            if self.is_empty() {
                self.clear();
                return Sent { bytes, calls, end: SendEnd::Empty };
            }
            if bytes >= budget {
                return Sent { bytes, calls, end: SendEnd::Budget };
            }
            let room = budget - bytes;
            if let Some(record) = self.record_in_front() {
                calls += u32::from(!record.is_sent());
                match record.send(fd, bytes).and_then(|n| self.took(Ok(n))) {
                    Ok(n) => bytes += n,
                    Err(end) => return Sent { bytes, calls, end },
                }
                continue;
            }
            let result = match self.front.as_ref().map_or(0, |front| front.queue.len()) {
                0 => {
                    let left = self.tail_left();
                    sys::io::send(fd, &left[..left.len().min(room)])
                }
                1..16 => self.send_pieces::<16>(fd, room),
                _ => self.send_pieces::<{ sys::io::IOV_MAX }>(fd, room),
            };
            calls += 1;
            match self.took(result) {
                Ok(n) => bytes += n,
                Err(end) => return Sent { bytes, calls, end },
            }
        }
    }

    /// One sendmsg of the first `N` pieces, the tail among them, and of at most `room` bytes. A record goes alone.
    fn send_pieces<const N: usize>(&self, fd: BorrowedFd<'_>, mut room: usize) -> io::Result<usize> {
        let mut slices = [IoSlice::new(&[]); N];
        let mut used = 0;
        for piece in self.pieces().take(self.first_record(N).unwrap_or(N)) {
            let piece = &piece[..piece.len().min(room)];
            if piece.is_empty() {
                // The room is used up.
                break;
            }
            slices[used] = IoSlice::new(piece);
            used += 1;
            room -= piece.len();
        }
        sys::io::send_vectored(fd, &slices[..used])
    }

    /// Which of the first `n` pieces is a record.
    fn first_record(&self, n: usize) -> Option<usize> {
        let mut pieces = self.front.iter().flat_map(|front| front.queue.iter()).take(n);
        pieces.position(|piece| matches!(piece, Piece::Record(_)))
    }

    fn record_in_front(&mut self) -> Option<&mut Record> {
        let first = self.front.as_mut()?.queue.front_mut()?;
        if let Piece::Record(record) = first { Some(record) } else { None }
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
        if let Some(front) = &mut self.front {
            while let Some(piece) = front.queue.front_mut() {
                let len = piece.as_slice().len();
                if n < len {
                    piece.advance(n);
                    front.bytes -= n;
                    return;
                }
                let sent = front.queue.pop_front();
                // The owner of the bytes may do anything when it is dropped (law 10).
                quiet(|| drop(sent));
                front.bytes -= len;
                n -= len;
            }
            self.front = None;
        }
        if let Some(tail) = &mut self.tail {
            tail.start = tail.data.len().min(tail.start.saturating_add(n));
        }
    }

    #[inline]
    fn tail_left(&self) -> &[u8] {
        self.tail.as_ref().map_or(&[], |tail| tail.left())
    }

    /// Makes the tail a piece, so that something else can go behind it.
    fn close_tail(&mut self) {
        if let Some(tail) = self.tail.take_if(|tail| !tail.left().is_empty()) {
            let front = self.front.get_or_insert_default();
            front.bytes += tail.left().len();
            front.queue.push_back(Piece::Own(tail));
        }
    }
}

/// A tail that is never quite empty must not grow for ever: once the sent part is as long as the rest, the rest
/// moves over it (each byte moves about once).
#[cold]
fn drop_sent(tail: &mut Tail) {
    if tail.start >= tail.left().len() {
        tail.data.drain(..tail.start);
        tail.start = 0;
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("len", &self.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "outgoing_tests.rs"]
mod tests;
