//! What a protocol between a connection and its user stands on (TLS): a queue for its records, blocks for its plaintext.
//!
//! Job: the few doors that such a crate needs and a user of connections does not. State: none of its own. Thread class:
//! any thread. Laws: 3 (shared mode: append under the queue's mutex, unlock, kick), 6 (the layer's own end goes out before
//! the FIN), 8 (handshake steps), 14 (order: the layer's lock, then the queue's), 15, 16.
//!
//! Who encodes holds its own lock over encoding AND [`Queue::append`], and releases it before [`Queue::kick`]: then the
//! order of the queue is the order of the encoding, and nobody sends under the lock.

use crate::buf::{Outgoing, RecvBuf};
use crate::conn::body::{Body, ends};
use crate::conn::connection::Connection;
use crate::conn::deadline;
use crate::conn::drive;
use crate::conn::ending;
use crate::conn::flush_word::Kick;
use crate::conn::kernel_tx::{KernelTx, Last, Renew};
use crate::conn::read_half::ReadHalf;
use crate::conn::read_ops::tail_of;
use crate::conn::read_word::Mark;
use crate::conn::write_half::WriteHalf;
use crate::error::CloseReason;
use crate::exec::local;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::sys;
use crate::sys::errno;
use crate::sys::ktls::{ALERT, HANDSHAKE, KernelKeys, NewKeys};
use bytes::Bytes;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

/// What a connection asks of its layer.
pub trait Layer: Send + Sync + 'static {
    /// A frame of a shared writer. Under the layer's lock: asks `admit`; if that says yes, encodes the frame, appends it to
    /// the queue and calls `appended`. Does nothing when the layer has ended or failed. Any thread.
    fn send_frame(&self, frame: &[u8], admit: &mut dyn FnMut() -> bool, appended: &mut dyn FnMut());

    /// The FIN is about to be queued: the layer's own end goes before it. May be called more than once, on any thread.
    fn before_fin(&self);

    /// Has the layer ended or failed? Then nothing may follow what it sent last. Any thread.
    fn is_over(&self) -> bool;
}

/// The outgoing queue of a connection, for its layer. Cheap to clone.
#[derive(Clone)]
pub struct Queue {
    body: Arc<Body>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("body", &self.body).finish()
    }
}

impl Queue {
    /// The queue of `conn`. From its first [`append`](Self::append) on nothing may be flushed through `conn`'s own staging:
    /// its fast path passes the queue by.
    pub fn of(conn: &Connection) -> Self {
        Self { body: conn.body().clone() }
    }

    /// Puts the layer between `conn` and its user: shared writers send through it, and it comes before the FIN.
    pub fn install(&self, layer: Weak<dyn Layer>) {
        let old = lock(&self.body.slow).layer.replace(Box::new(layer));
        drop(old);
        self.body.ends.fetch_or(ends::LAYERED, Ordering::AcqRel);
    }

    /// The connection's deadline and what it is for, as its user set them.
    pub fn deadline(&self) -> Option<(Instant, &'static str)> {
        deadline::asked(&self.body)
    }

    /// Appends encoded bytes, under the layer's lock. False: nothing is sent any more, and they are not taken.
    pub fn append(&self, record: &[u8]) -> bool {
        self.append_with(record.len(), |out| out.stage(record))
    }

    /// The same for an alert (21), the last record, once the kernel makes the records: it is out, and the FIN may follow, when
    /// the kernel holds nothing back any more.
    pub fn append_alert(&self, tx: &Arc<KernelTx>, body: Bytes) -> bool {
        let behind = Arc::new(Last(tx.clone()));
        self.append_with(body.len(), |out| out.stage_record(ALERT, body, Some(behind)))
    }

    /// The same for a message of the handshake (22) behind which the kernel sends with new keys (see
    /// [`renew_tx`](Self::renew_tx)). Should the kernel refuse them the connection ends: the peer was told.
    pub fn append_new_keys(&self, tx: &Arc<KernelTx>, body: Bytes, keys: Arc<dyn NewKeys>) -> bool {
        let behind = Arc::new(Renew::new(tx.clone(), keys));
        self.append_with(body.len(), |out| out.stage_record(HANDSHAKE, body, Some(behind)))
    }

    /// Hands the keys to the kernel: from now on it makes records of what is sent. Everything appended before must be
    /// out ([`WriteHalf::poll_queue`]).
    ///
    /// # Errors
    /// Those of setsockopt(2): the socket stays as it was.
    pub fn install_tx(&self, keys: &KernelKeys<'_>) -> io::Result<Arc<KernelTx>> {
        KernelTx::install(&self.body, keys).map(Arc::new)
    }

    /// Gives the kernel newer keys to send with (TLS 1.3), with nothing queued.
    ///
    /// # Errors
    /// Those of setsockopt(2), and the keys are the old ones: EBUSY before Linux 6.14.
    pub fn renew_tx(&self, keys: &KernelKeys<'_>) -> io::Result<()> {
        sys::ktls::install_tx(self.body.as_fd(), keys)
    }

    /// The same for what is received: [`ReadHalf`] then gives plaintext, and [`is_record_ahead`] says that its
    /// [`take_record`](ReadHalf::take_record) is due. After a KeyUpdate, from Linux 6.14 on: newer keys. Nothing may have been received beyond the last record of the handshake.
    ///
    /// # Errors
    /// Those of setsockopt(2): the socket stays as it was.
    pub fn install_rx(&self, keys: &KernelKeys<'_>) -> io::Result<()> {
        sys::ktls::install_rx(self.body.as_fd(), keys)?;
        self.body.ends.fetch_or(ends::RECORDS, Ordering::AcqRel);
        // Law 2: a short recv proves nothing any more.
        self.body.signal_reader(Mark::Sticky);
        Ok(())
    }

    /// So many bytes are about to be appended: the queue grows for them once.
    pub fn reserve(&self, bytes: usize) {
        let mut slow = lock(&self.body.slow);
        // As in an append: nothing is left with a connection that has ended.
        if !self.body.flush.is_closed() && !self.body.flush.has_fin() {
            slow.out.tail_mut().reserve(bytes);
        }
    }

    fn append_with(&self, len: usize, stage: impl FnOnce(&mut Outgoing)) -> bool {
        let body = &*self.body;
        let mut slow = lock(&body.slow);
        // Looked at under the mutex: a closer frees the queue after it has said so, and the kick looks again.
        if body.flush.is_closed() || body.flush.has_fin() {
            return false;
        }
        body.queued.fetch_add(len, Ordering::Relaxed);
        slow.end = slow.end.max(body.accepted.load(Ordering::Relaxed)) + len as u64;
        stage(&mut slow.out);
        true
    }

    /// After an append, with the layer's lock released: sends, or makes sure that somebody does. Does not wait.
    pub fn kick(&self) {
        let body = &*self.body;
        match body.flush.kick() {
            Kick::Own => drive::drive_queue(body, lock(&body.slow)),
            Kick::Wait => {}
            Kick::Closed => {
                body.discard_queue();
                body.wake_ready();
            }
        }
    }
}

impl WriteHalf {
    /// For the layer: everything staged goes through `encode`, piece by piece, and is forgotten; then `last`, from where it
    /// is.
    ///
    /// # Errors
    /// That of `encode`: the rest is forgotten too.
    #[doc(hidden)]
    pub fn drain_staged(&mut self, last: &[u8], encode: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        self.trim();
        let last = std::iter::once(last).filter(|last| !last.is_empty());
        let result = self.staged.pieces().chain(last).try_for_each(encode);
        self.staged.clear();
        // What is queued has grown by more than what was staged: the next staging looks at it.
        self.room = 0;
        result
    }

    /// For the layer, under its lock: everything staged moves into the queue as it is, without a copy, for the kernel to
    /// make records of. False: nothing is sent any more, and it is forgotten.
    #[doc(hidden)]
    pub fn queue_staged(&mut self) -> bool {
        self.trim();
        self.room = 0;
        if self.body.flush.is_closed() || self.body.flush.has_fin() {
            self.staged.clear();
            return false;
        }
        self.body.append(&mut self.staged);
        true
    }

    /// For the layer: cuts the connection, which must not look whole ([`CloseReason::Aborted`]).
    #[doc(hidden)]
    pub fn cut(&mut self) {
        ending::reset(&self.body, CloseReason::Aborted);
    }

    /// For the layer: waits until everything queued is in the kernel. After an append, of so many bytes, it first sends, or
    /// makes sure that somebody does.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    #[doc(hidden)]
    pub fn poll_queue(&mut self, cx: &mut Context<'_>, appended: Option<usize>) -> Poll<io::Result<()>> {
        self.poll_queued(cx, appended)
    }

    /// For the layer: the same without waiting, as [`try_flush`](Self::try_flush).
    ///
    /// # Errors
    /// As there.
    #[doc(hidden)]
    pub fn try_queue(&mut self, appended: Option<usize>) -> io::Result<()> {
        self.try_now(|half, cx| half.poll_queued(cx, appended))
    }
}

impl ReadHalf {
    /// For the layer: a pooled block, filled by `fill`, which says how many bytes are data.
    ///
    /// # Errors
    /// That of `fill`; the block goes back.
    #[doc(hidden)]
    pub fn fill_block(&self, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<RecvBuf> {
        let mut block = self.pool.fill();
        let n = fill(block.space())?;
        Ok(block.commit(n))
    }

    /// For the layer: bytes that such a block holds.
    #[doc(hidden)]
    pub fn block_len(&self) -> usize {
        self.pool.size()
    }

    /// For the layer: the same behind the bytes of `buf`, which grows as in [`read_more`](Self::read_more).
    ///
    /// # Errors
    /// That of `fill`; [`io::ErrorKind::QuotaExceeded`] when `buf` is full and may not grow.
    #[doc(hidden)]
    pub fn fill_more(&self, buf: &mut RecvBuf, fill: impl FnOnce(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
        let n = fill(tail_of(buf, self.pool, self.body.home.config.max_read_buffer)?)?;
        buf.committed(n);
        Ok(n)
    }

    /// For the layer: takes the record that a read has met ([`is_record_ahead`]). Its kind, and how many bytes of it `space`
    /// holds; 16 KiB hold any.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when none is there; else why the connection ended.
    #[doc(hidden)]
    pub fn take_record(&mut self, space: &mut [u8]) -> io::Result<(u8, usize)> {
        let result = sys::ktls::recv_record(self.body.as_fd(), space);
        if let Err(error) = &result
            && error.kind() != io::ErrorKind::WouldBlock
        {
            self.body.end(CloseReason::from_io("recvmsg", error));
            self.end_was_told();
        }
        result
    }

    /// For the layer: what was received so far (a handshake) was no request, so a drain still lets the first one in.
    #[doc(hidden)]
    pub fn begin_requests(&mut self) {
        self.fresh = true;
    }
}

/// Did a recv stop before a record that is no data?
pub(crate) fn is_before_record(body: &Body, error: &io::Error) -> bool {
    error.raw_os_error() == Some(errno::EIO) && body.has_ended(ends::RECORDS)
}

/// Nothing was received. A kernel that decrypts says so also where data of no bytes came before a record of another kind: at
/// the FIN it says so again, else the record is next.
#[cold]
pub(crate) fn nothing_received(body: &Body) -> io::Result<usize> {
    if body.has_ended(ends::RECORDS)
        && let Err(error) = sys::io::peek(body.as_fd(), &mut [0])
        && is_before_record(body, &error)
    {
        return Err(error);
    }
    Ok(0)
}

#[derive(Debug)]
struct RecordAhead;

impl fmt::Display for RecordAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a TLS record that is no data is to be taken first")
    }
}

impl std::error::Error for RecordAhead {}

#[cold]
pub(crate) fn record_ahead() -> io::Error {
    io::Error::other(RecordAhead)
}

/// Does this error of a read say that a record is to be taken first?
pub fn is_record_ahead(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|error| error.is::<RecordAhead>())
}

/// Takes one of the `limit` expensive steps that a reactor makes in one pass. False: the next pass has new ones; the
/// caller wakes itself and yields. Always true off the reactors.
pub fn take_step(limit: u32) -> bool {
    local::take_step(limit)
}
