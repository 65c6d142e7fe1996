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
///
/// One buffer is the common case, and has a place of its own that costs nothing to look at.
#[derive(Default)]
pub(crate) struct Held {
    one: Option<RecvBuf>,
    /// Two or more, or one that was moved: then `one` is `None`.
    many: Option<Box<Many>>,
    len: usize,
}

pub(crate) type Many = VecDeque<Segment>;

impl Held {
    pub(crate) fn with(bytes: Bytes) -> Self {
        let len = bytes.len();
        let many = (len > 0).then(|| Box::new(VecDeque::from([Segment::Moved(bytes, len)])));
        Self { one: None, many, len }
    }

    /// Bytes held.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn view(&self) -> Sequence<'_> {
        match &self.one {
            Some(buf) => Sequence::of(buf),
            None => Sequence::over(self.many.as_deref(), self.len),
        }
    }

    /// Bytes of memory that hold them.
    pub(crate) fn memory(&self) -> usize {
        let many = self.many.iter().flat_map(|many| many.iter()).map(Segment::memory);
        self.one.as_ref().map_or(0, RecvBuf::capacity) + many.sum::<usize>()
    }

    /// The first buffer, when nothing is held.
    #[inline(always)]
    pub(crate) fn push_first(&mut self, buf: RecvBuf) {
        self.len = buf.len();
        self.one = Some(buf);
    }

    #[inline]
    pub(crate) fn push(&mut self, buf: RecvBuf) {
        let was = self.len;
        self.len += buf.len();
        if was == 0 {
            self.one = Some(buf);
        } else {
            self.push_behind(buf);
        }
    }

    #[cold]
    fn push_behind(&mut self, buf: RecvBuf) {
        let many = self.many.get_or_insert_default();
        many.extend(self.one.take().map(Segment::Received));
        many.push_back(Segment::Received(buf));
    }

    /// Drops the first `n` bytes; buffers that are done with go back at once.
    #[inline]
    pub(crate) fn advance(&mut self, n: usize) {
        self.len -= n;
        match &mut self.one {
            Some(_) if self.len == 0 => self.one = None,
            Some(buf) => buf.advance(n),
            None => self.advance_many(n),
        }
    }

    #[cold]
    fn advance_many(&mut self, mut n: usize) {
        let Some(many) = &mut self.many else { return };
        while let Some(first) = many.front_mut() {
            let len = first.bytes().len();
            if n < len {
                first.advance(n);
                break;
            }
            n -= len;
            many.pop_front();
        }
        if many.len() <= 1 {
            match many.pop_front() {
                Some(Segment::Received(buf)) => self.one = Some(buf),
                Some(moved) => return many.push_front(moved),
                None => {}
            }
            self.many = None;
        }
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The last buffer, if what comes next is to be received behind its bytes. It is worth it with a quarter of the
    /// buffer free; and it must be when no more than half of the buffer is unread, for the sake of the bound (the
    /// transport then moves the unread bytes to the front of the buffer).
    pub(crate) fn takes_more(&mut self) -> Option<&mut RecvBuf> {
        let last = match self.many.as_mut().and_then(|many| many.back_mut()) {
            Some(Segment::Received(buf)) => Some(buf),
            Some(Segment::Moved(..)) => None,
            None => self.one.as_mut(),
        };
        last.filter(|buf| buf.spare_capacity() >= buf.capacity().div_ceil(4) || buf.len() * 2 <= buf.capacity())
    }

    /// `n` bytes were received behind the last ones.
    pub(crate) fn grown(&mut self, n: usize) {
        self.len += n;
    }

    /// Before a wait for more: a first buffer with little left in it gives its memory back.
    pub(crate) fn settle(&mut self) {
        if let Some(first) = self.many.as_mut().and_then(|many| many.front_mut())
            && first.bytes().len() * 2 < first.memory()
        {
            let (bytes, len) = (Bytes::copy_from_slice(first.bytes()), first.bytes().len());
            *first = Segment::Moved(bytes, len);
        }
    }

    /// Everything in one piece.
    fn into_single(mut self) -> Result<Bytes, Self> {
        if let Some(buf) = self.one.take() {
            return Ok(buf.freeze());
        }
        match self.many.as_deref_mut() {
            None => Ok(Bytes::new()),
            Some(many) if many.len() == 1 => match many.pop_front() {
                Some(Segment::Moved(bytes, _)) => Ok(bytes),
                Some(Segment::Received(buf)) => Ok(buf.freeze()),
                None => Ok(Bytes::new()),
            },
            Some(_) => Err(self),
        }
    }

    /// Everything in one piece: copied when it is in several.
    pub(crate) fn into_bytes(self) -> Bytes {
        self.into_single().unwrap_or_else(|several| Bytes::from(several.view().to_vec()))
    }

    /// Takes the first `n` bytes out, without a copy when they lie in one buffer.
    pub(crate) fn take(&mut self, n: usize) -> Bytes {
        if n == self.len {
            return std::mem::take(self).into_bytes();
        }
        let first = match self.many.as_mut().and_then(|many| many.front_mut()) {
            Some(Segment::Moved(bytes, _)) if n <= bytes.len() => {
                self.len -= n;
                let taken = bytes.split_to(n);
                self.advance_many(0);
                return taken;
            }
            Some(Segment::Received(buf)) => Some(buf),
            Some(Segment::Moved(..)) => None,
            None => self.one.as_mut(),
        };
        match first {
            Some(buf) if n <= buf.len() => {
                self.len -= n;
                let taken = buf.split_to(n).freeze();
                // Of several the first may be done with.
                self.advance_many(0);
                taken
            }
            _ => {
                let bytes = Bytes::from(self.view().up_to(n).to_vec());
                self.advance(n);
                bytes
            }
        }
    }
}
