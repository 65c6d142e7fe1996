//! What a pipe reader holds: received bytes in pooled buffers, oldest first.
//!
//! Job: keep, cut off the front, and hold little memory for it. State owned: the buffers. Thread class: any thread, one
//! at a time. Laws kept: 16 (memory held is at most twice the bytes held, and one buffer).
//!
//! How the bound holds: bytes go behind those of the last buffer as long as that is worth it ([`Held::takes_more`]), so
//! a buffer that another follows is more than half full of unread bytes. Consuming from the front undoes that for the
//! first one only, and [`Held::settle`] moves the little that is left there into memory of its own size.

use crate::sequence::Sequence;
use bytes::{Buf, Bytes};
use epoxide::RecvBuf;
use std::collections::VecDeque;

/// One buffer of what is held.
pub(crate) enum Segment {
    /// As it was received.
    Received(RecvBuf),
    /// Brought along when the reader was made, or a remainder that was moved; the number is how much memory it holds.
    Moved(Bytes, usize),
}

impl Segment {
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Received(buf) => buf,
            Self::Moved(bytes, _) => bytes,
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Received(buf) => buf.capacity(),
            Self::Moved(_, memory) => *memory,
        }
    }

    #[inline]
    fn advance(&mut self, n: usize) {
        match self {
            Self::Received(buf) => buf.advance(n),
            Self::Moved(bytes, _) => bytes.advance(n),
        }
    }
}

/// See the module's text. No segment is empty.
#[derive(Default)]
pub(crate) struct Held {
    first: Option<Segment>,
    /// Boxed: most readers hold one buffer at a time.
    #[expect(clippy::box_collection, reason = "keeps the reader small")]
    rest: Option<Box<VecDeque<Segment>>>,
    len: usize,
}

impl Held {
    pub(crate) fn with(bytes: Bytes) -> Self {
        let len = bytes.len();
        Self { first: (len > 0).then(|| Segment::Moved(bytes, len)), rest: None, len }
    }

    /// Bytes held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn view(&self) -> Sequence<'_> {
        let first = self.first.as_ref().map_or(&[][..], Segment::bytes);
        Sequence::new(first, self.rest.as_deref(), 0, self.len)
    }

    /// Bytes of memory that hold them.
    pub(crate) fn memory(&self) -> usize {
        self.first.iter().chain(self.rest.iter().flat_map(|rest| rest.iter())).map(Segment::memory).sum()
    }

    #[inline]
    pub(crate) fn push(&mut self, buf: RecvBuf) {
        self.len += buf.len();
        if self.first.is_none() {
            self.first = Some(Segment::Received(buf));
        } else {
            self.push_behind(buf);
        }
    }

    #[cold]
    fn push_behind(&mut self, buf: RecvBuf) {
        self.rest.get_or_insert_default().push_back(Segment::Received(buf));
    }

    /// Drops the first `n` bytes; buffers that are done with go back at once.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        self.len -= n;
        if self.len == 0 {
            self.first = None;
            self.rest = None;
        } else {
            self.advance_slow(n);
        }
    }

    fn advance_slow(&mut self, mut n: usize) {
        while let Some(first) = &mut self.first {
            let len = first.bytes().len();
            if n < len {
                first.advance(n);
                return;
            }
            n -= len;
            self.first = self.rest.as_mut().and_then(|rest| rest.pop_front());
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The last buffer, if what comes next is to be received behind its bytes. It is worth it with a quarter of the
    /// buffer free; and it must be when less than half of the buffer is unread, for the sake of the bound (the
    /// transport then moves the unread bytes to the front of the buffer).
    pub(crate) fn takes_more(&mut self) -> Option<&mut RecvBuf> {
        let last = match self.rest.as_mut().and_then(|rest| rest.back_mut()) {
            Some(last) => Some(last),
            None => self.first.as_mut(),
        };
        match last {
            Some(Segment::Received(buf)) => {
                let size = buf.capacity();
                (buf.spare_capacity() >= size.div_ceil(4) || buf.len() * 2 <= size).then_some(buf)
            }
            _ => None,
        }
    }

    /// `n` bytes were received behind the last ones.
    pub(crate) fn grown(&mut self, n: usize) {
        self.len += n;
    }

    /// Before a wait for more: a first buffer with little left in it gives its memory back.
    pub(crate) fn settle(&mut self) {
        let followed = self.rest.as_ref().is_some_and(|rest| !rest.is_empty());
        if let Some(first) = &mut self.first
            && (followed || matches!(first, Segment::Moved(..)))
            && first.bytes().len() * 2 < first.memory()
        {
            let (bytes, len) = (Bytes::copy_from_slice(first.bytes()), first.bytes().len());
            *first = Segment::Moved(bytes, len);
        }
    }

    /// Everything in one piece.
    pub(crate) fn into_bytes(mut self) -> Bytes {
        let single = self.rest.as_ref().is_none_or(|rest| rest.is_empty());
        match self.first.take() {
            None => Bytes::new(),
            Some(Segment::Received(buf)) if single => buf.freeze(),
            Some(Segment::Moved(bytes, _)) if single => bytes,
            first => {
                self.first = first;
                Bytes::from(self.view().to_vec())
            }
        }
    }

    /// Takes the first `n` bytes out, without a copy when they lie in one buffer.
    pub(crate) fn take(&mut self, n: usize) -> Bytes {
        if n == self.len {
            return std::mem::take(self).into_bytes();
        }
        let bytes = match &mut self.first {
            Some(Segment::Received(buf)) if n < buf.len() => buf.split_to(n).freeze(),
            Some(Segment::Moved(bytes, _)) if n < bytes.len() => bytes.split_to(n),
            _ => {
                let bytes = Bytes::from(self.view().up_to(n).to_vec());
                self.advance(n);
                return bytes;
            }
        };
        self.len -= n;
        bytes
    }
}
