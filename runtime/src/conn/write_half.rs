//! The writing half: staging.
//!
//! State: the staged bytes, owned by the writer alone until a flush hands them over. Thread class: any thread, one
//! at a time (`&mut self`). Laws: 3 (staged bytes belong to the writer; a hand-over copies nothing), 6, 16 (staging
//! is bounded and refused whole).

use crate::buf::Outgoing;
use crate::conn::body::{Body, ends};
use crate::conn::ending::Held;
use crate::error::StagedLimit;
use crate::stats::Count;
use crate::sync::plain::Ordering;
use crate::trace;
use bytes::buf::Limit;
use bytes::{BufMut, Bytes};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// The writing half of a connection: `Send`, used by one task at a time, on any thread.
///
/// Dropping it discards what is staged and not flushed, and sends FIN behind a flush in flight.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let (read, mut write) = conn.into_split();
/// workers::spawn(async move {
///     write.stage(b"from ")?;
///     write.stage(b"another thread")?;
///     write.flush().await
/// }).await??;
/// # let mut got = [0; 19];
/// # peer.read_exact(&mut got)?;
/// # assert_eq!(&got, b"from another thread");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct WriteHalf {
    pub(crate) body: Held,
    pub(crate) staged: Outgoing,
    /// Zeroed bytes at the end of the staging buffer that [`WriteHalf::spare`] lent and nobody advanced over.
    lent: usize,
    /// Bytes that may be staged without a look at what is held: never more than there is room for, and 0 while space is
    /// lent. Saves 15 instructions a request.
    pub(crate) room: usize,
    /// The read half may be used by another task meanwhile.
    pub(crate) split: bool,
    /// Bytes that flushes on a reactor thread may still send in a row before others get their turn.
    pub(crate) streak: usize,
}

impl WriteHalf {
    pub(crate) fn new(body: Arc<Body>) -> Self {
        let streak = body.home.config.flush_budget;
        Self {
            body: Held::new(body, ends::WRITER_GONE),
            staged: Outgoing::new(),
            lent: 0,
            room: 0,
            split: false,
            streak,
        }
    }

    /// Bytes staged and not yet handed to a flush.
    pub fn staged_len(&self) -> usize {
        self.staged.len() - self.lent
    }

    /// Bytes staged, or handed to a flush and not yet taken by the kernel.
    pub fn unsent_len(&self) -> usize {
        self.staged_len() + self.body.queued.load(Ordering::Relaxed)
    }

    /// Copies bytes behind what is staged. They go out at the next flush.
    ///
    /// # Errors
    /// [`StagedLimit`] when `max_staged` would be exceeded: nothing was taken, the connection stays usable.
    #[inline]
    pub fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        self.prepare(bytes.len())?;
        self.staged.stage(bytes);
        Ok(())
    }

    /// Queues owned bytes behind what is staged, without copying them.
    ///
    /// # Errors
    /// [`StagedLimit`] when `max_staged` would be exceeded: nothing was queued, the connection stays usable.
    pub fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        self.prepare(bytes.len())?;
        self.staged.stage_bytes(bytes);
        Ok(())
    }

    /// Reserves `n` bytes of staging space to be written through [`BufMut`]; what was written is staged.
    ///
    /// # Errors
    /// [`StagedLimit`] when `max_staged` would be exceeded or the memory is not to be had.
    pub fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        self.prepare(n)?;
        if self.staged.tail_mut().try_reserve(n).is_err() {
            return Err(self.limit(n));
        }
        Ok(Reserved::new(self.staged.tail_mut(), n))
    }

    /// Lends at least `n` zeroed bytes of staging space; [`advance`](Self::advance) says how many were filled. What is
    /// lent and not advanced over is taken back by the next call of any other method.
    ///
    /// # Errors
    /// [`StagedLimit`] when `max_staged` would be exceeded or the memory is not to be had.
    pub fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        self.prepare(n)?;
        let tail = self.staged.tail_mut();
        if tail.try_reserve(n).is_err() {
            return Err(self.limit(n));
        }
        let start = tail.len();
        tail.resize(start + n, 0);
        self.lent = n;
        self.room = 0;
        Ok(&mut self.staged.tail_mut()[start..])
    }

    /// Stages the first `n` bytes of what [`spare`](Self::spare) lent.
    ///
    /// # Panics
    /// When `n` is more than was lent.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.lent, "advance({n}) over {} lent bytes", self.lent);
        let tail = self.staged.tail_mut();
        tail.truncate(tail.len() - (self.lent - n));
        self.lent = 0;
    }

    /// Takes back what was lent.
    #[inline]
    pub(crate) fn trim(&mut self) {
        if self.lent > 0 {
            self.advance(0);
        }
    }

    /// Before anything is staged: the limit.
    #[inline]
    fn prepare(&mut self, n: usize) -> Result<(), StagedLimit> {
        // Less, not at most: with space lent even nothing is too much.
        if n < self.room {
            self.room -= n;
            return Ok(());
        }
        self.prepare_slow(n)
    }

    #[cold]
    fn prepare_slow(&mut self, n: usize) -> Result<(), StagedLimit> {
        self.trim();
        let room = self.room();
        if n <= room {
            // What is queued only shrinks until the next flush, which takes from what is staged as much as it adds.
            self.room = room - n;
            Ok(())
        } else {
            Err(self.limit(n))
        }
    }

    /// The connection is another reactor's: what may be staged, and be sent in a row, is up to its configuration.
    pub(crate) fn forget_shares(&mut self, flush_budget: usize) {
        self.trim();
        self.room = 0;
        self.streak = flush_budget;
    }

    /// Bytes that may be staged now.
    #[doc(hidden)]
    pub fn room(&self) -> usize {
        let held = self.staged.len() + self.body.queued.load(Ordering::Relaxed);
        self.body.home.config.max_staged.saturating_sub(held)
    }

    /// Is nothing staged? Cheaper than the length.
    #[inline]
    pub(crate) fn is_clear(&self) -> bool {
        self.staged.is_bare() || self.staged_len() == 0
    }

    #[cold]
    fn limit(&self, asked: usize) -> StagedLimit {
        self.body.home.count(Count::StagedRefused, 1);
        trace::refused(self.body.home.index, "max_staged", asked);
        StagedLimit {
            asked,
            staged: self.staged.len() + self.body.queued.load(Ordering::Relaxed),
            limit: self.body.home.config.max_staged,
        }
    }
}

/// Staging space, lent by `try_reserve`: written to through [`BufMut`].
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let mut space = conn.try_reserve(8)?;
/// bytes::BufMut::put_u64(&mut *space, 7);
/// drop(space);
/// conn.flush().await?;
/// # let mut got = [0; 8];
/// # peer.read_exact(&mut got)?;
/// # assert_eq!(u64::from_be_bytes(got), 7);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct Reserved<'a> {
    tail: Limit<&'a mut Vec<u8>>,
}

impl fmt::Debug for Reserved<'_> {
    /// Never the bytes: what is staged may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("left", &Limit::limit(&self.tail)).finish_non_exhaustive()
    }
}

impl<'a> Reserved<'a> {
    /// Up to `n` bytes more at the end of `staging`: for transports that stage in a buffer of their own.
    pub fn new(staging: &'a mut Vec<u8>, n: usize) -> Self {
        Self { tail: staging.limit(n) }
    }
}

impl<'a> Deref for Reserved<'a> {
    type Target = Limit<&'a mut Vec<u8>>;

    fn deref(&self) -> &Self::Target {
        &self.tail
    }
}

impl DerefMut for Reserved<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.tail
    }
}
