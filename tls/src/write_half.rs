//! The writing half of a session: staging, and flushing through the session lock.
//!
//! State: staged plaintext, the writer's own (in the connection's own staging). Thread class: any thread, one at a time
//! (`&mut self`). Laws: 3 (shared mode), 6 (close_notify before the FIN, by `Layer`), 14 (encrypt and append under the
//! lock, kick after it), 16 (plaintext staged and ciphertext queued share one limit).

use crate::common::tls_facts;
use crate::facts::TlsFacts;
use crate::read_ops::{TlsFlush, TlsSendAll, TlsShutdown};
use crate::session::{Session, Unsent};
use bytes::Bytes;
use epoxide::{
    CloseHandle, CloseReason, Draining, ReactorHandle, ReadTimeoutSuspended, Reserved, SharedLimits, SharedWriter,
    StagedLimit, WriteHalf,
};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// Owned bytes below a record's size are copied behind each other, so that records come out full.
const RECORD: usize = 16 * 1024;

/// The writing half of a TLS session: `Send`, used by one task at a time, on any thread, while the other half is used
/// elsewhere.
///
/// Dropping it discards what is staged and not flushed, and sends close_notify and FIN behind a flush in flight.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// let (read, mut write) = client.into_split();
/// std::thread::spawn(move || epoxide::block_on(write.send_all(b"from another thread")).unwrap());
/// assert!(server.read().await?.unwrap().starts_with(b"from"));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct TlsWriteHalf {
    // Dropped before the session, which it asks for the close_notify.
    half: WriteHalf,
    session: Arc<Session>,
    /// A KeyUpdate goes out with the next flush, whether or not there are data.
    renewed: bool,
}

impl TlsWriteHalf {
    pub(crate) fn new(half: WriteHalf, session: Arc<Session>) -> Self {
        Self { half, session, renewed: false }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    fn half(&self) -> &WriteHalf {
        &self.half
    }

    pub(crate) fn half_mut(&mut self) -> &mut WriteHalf {
        &mut self.half
    }

    /// Bytes staged and not yet encrypted.
    pub fn staged_len(&self) -> usize {
        self.half.staged_len()
    }

    /// Bytes staged, or encrypted and not yet taken by the kernel.
    pub fn unsent_len(&self) -> usize {
        self.half.unsent_len()
    }

    /// Copies bytes behind what is staged. They are encrypted and go out at the next flush.
    ///
    /// # Errors
    /// [`StagedLimit`] when `max_staged` would be exceeded: nothing was taken, the connection stays usable.
    pub fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        self.half.stage(bytes)
    }

    /// Stages owned bytes, without a copy from 16 KiB on.
    ///
    /// # Errors
    /// As [`stage`](Self::stage).
    pub fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        if bytes.len() < RECORD { self.half.stage(&bytes) } else { self.half.stage_bytes(bytes) }
    }

    /// Reserves `n` bytes of staging space; see [`WriteHalf::try_reserve`].
    ///
    /// # Errors
    /// As there.
    pub fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        self.half.try_reserve(n)
    }

    /// Lends at least `n` zeroed bytes of staging space; see [`WriteHalf::spare`].
    ///
    /// # Errors
    /// As there.
    pub fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        self.half.spare(n)
    }

    /// Stages the first `n` bytes of what [`spare`](Self::spare) lent.
    ///
    /// # Panics
    /// When `n` is more than was lent.
    pub fn advance(&mut self, n: usize) {
        self.half.advance(n);
    }

    /// Encrypts everything staged, in records as full as can be, and hands them to the kernel, or as many as it takes now
    /// and the rest as it takes it. The caller encrypts and sends, on its own thread.
    ///
    /// # Errors
    /// Why the connection ended; [`TlsError`](crate::TlsError) when the session failed; [`io::ErrorKind::BrokenPipe`] after
    /// this side's end.
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated: the first poll encrypts everything, and it goes out, in order, before anything staged
    /// later.
    pub fn flush(&mut self) -> TlsFlush<'_> {
        TlsFlush::new(self)
    }

    /// The poll form of [`flush`](Self::flush). A `Pending` has registered `cx`'s waker in place of any earlier one.
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.encrypt_for_flush() {
            Ok(appended) => self.half.poll_queue(cx, appended),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// What a flush has to append: how many bytes were staged, if anything was appended.
    fn encrypt_for_flush(&mut self) -> io::Result<Option<usize>> {
        let (staged, renewed) = (self.half.staged_len(), std::mem::take(&mut self.renewed));
        if staged > 0 {
            self.encrypt(&[])?;
        } else if renewed {
            self.session.encrypt_kept_back();
        }
        Ok((staged > 0 || renewed).then_some(staged))
    }

    /// Ready once at most `at_most` bytes are unsent ([`unsent_len`](Self::unsent_len)); what is staged is flushed for it.
    /// A `Pending` has registered `cx`'s waker in place of any earlier one of this half.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn poll_unsent(&mut self, cx: &mut Context<'_>, at_most: usize) -> Poll<io::Result<()>> {
        match self.poll_flush(cx) {
            Poll::Pending => self.half.poll_part_way(at_most),
            ready => ready,
        }
    }

    /// Sends what it can without waiting; the reactor goes on with the rest.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when a rest is left (it still goes out); else as [`flush`](Self::flush).
    pub fn try_flush(&mut self) -> io::Result<()> {
        let appended = self.encrypt_for_flush()?;
        self.half.try_queue(appended)
    }

    /// Encrypts `bytes` behind what is staged, and sends both, in portions of 256 KiB. With nothing staged, and from 16 KiB
    /// on, they are encrypted from where they are.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    ///
    /// # Cancel safety
    /// When dropped, some prefix of `bytes` was sent or is queued; never a byte twice.
    pub fn send_all<'a>(&'a mut self, bytes: &'a [u8]) -> TlsSendAll<'a> {
        TlsSendAll::new(self, bytes)
    }

    /// Flushes, then sends close_notify and FIN: the peer reads everything and then a clean end. Reading goes on.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    ///
    /// # Cancel safety
    /// Dropped before it was ready, the flush goes on but no end follows; calling it again is right.
    pub fn shutdown(&mut self) -> TlsShutdown<'_> {
        TlsShutdown::new(self)
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_flush(cx) {
            // Nothing is staged any more: this queues close_notify and FIN.
            Poll::Ready(Ok(())) => Pin::new(&mut self.half.shutdown()).poll(cx),
            other => other,
        }
    }

    /// Turns the half into a writer that any number of threads share: every frame becomes records of its own. What is
    /// staged goes out first. The limits count encrypted bytes.
    ///
    /// # Errors
    /// What is staged cannot be encrypted any more: as [`flush`](Self::flush).
    pub fn into_shared(mut self, limits: SharedLimits) -> io::Result<SharedWriter> {
        let staged = self.half.staged_len() > 0;
        if staged {
            self.encrypt(&[])?;
        }
        let Self { half, session, .. } = self;
        let writer = half.into_shared(limits);
        drop(session);
        Ok(writer)
    }

    /// Renews this side's keys, behind what is encrypted; the message goes out with the next flush, also one of nothing.
    /// `ask_peer`: the peer is to renew its own too. TLS 1.3 only. (Without it, keys last as long as the session; the peer's requests for new
    /// ones are answered by themselves.)
    ///
    /// # Errors
    /// [`TlsError::Encrypt`](crate::TlsError::Encrypt) in TLS 1.2, and with a kernel that cannot do it
    /// ([`Ktls`](crate::Ktls)); else as [`flush`](Self::flush).
    pub fn update_keys(&mut self, ask_peer: bool) -> io::Result<()> {
        self.session.update_keys(ask_peer).map_err(|unsent| self.why_unsent(unsent))?;
        self.renewed = true;
        Ok(())
    }

    /// Bytes that may be staged now.
    pub(crate) fn room(&self) -> usize {
        self.half.room()
    }

    /// Cuts the connection: it must not look whole.
    pub(crate) fn cut(&mut self) {
        self.half.cut();
    }

    /// What is staged is the kernel's to make records of, and goes out.
    pub(crate) fn queue_for_kernel(&mut self) -> io::Result<()> {
        self.encrypt(&[])?;
        self.session.kick();
        Ok(())
    }

    /// Flushes what is staged and then `bytes`, of which there are no more than there is room for. Called once for them: what
    /// follows a `Pending` is [`poll_flush`](Self::poll_flush).
    pub(crate) fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<()>> {
        let staged = self.half.staged_len();
        if bytes.is_empty() || self.session.facts.kernel_tx() || staged > 0 && bytes.len() < RECORD {
            self.half.stage(bytes)?;
            return self.poll_flush(cx);
        }
        match self.encrypt(bytes) {
            Ok(()) => self.half.poll_queue(cx, Some(staged + bytes.len())),
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    /// Everything staged, then `last`.
    fn encrypt(&mut self, last: &[u8]) -> io::Result<()> {
        if self.session.facts.kernel_tx() {
            let half = &mut self.half;
            return self.session.leave_to_kernel(|| half.queue_staged()).map_err(|unsent| self.why_unsent(unsent));
        }
        let session = &self.session;
        let mut unsent = None;
        let drained = self.half.drain_staged(last, |piece| {
            session.encrypt(piece).map_err(|why| {
                unsent = Some(why);
                io::ErrorKind::BrokenPipe.into()
            })
        });
        match unsent {
            Some(why) => Err(self.why_unsent(why)),
            None => drained,
        }
    }

    /// A stored reason is more telling than that nothing is sent.
    fn why_unsent(&self, unsent: Unsent) -> io::Error {
        match (self.half.close_reason(), unsent) {
            (Some(reason), Unsent::Closed) => reason.into(),
            (_, unsent) => unsent.into(),
        }
    }
}

tls_facts!(TlsWriteHalf, half, half_mut);
