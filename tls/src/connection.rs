//! The whole session: a read half and a write half in one; and what pipes and streams stand on.
//!
//! State: the two halves. Thread class: any thread, one task at a time (`&mut self`). Laws: 6, 14.

use crate::common::tls_facts;
use crate::facts::TlsFacts;
use crate::read_half::TlsReadHalf;
use crate::read_ops::{TlsFlush, TlsRead, TlsReadMore, TlsReadSlice, TlsSendAll, TlsShutdown};
use crate::send_file::TlsSendFile;
use crate::session::Session;
use crate::write_half::TlsWriteHalf;
use bytes::Bytes;
use epoxide::{
    CloseHandle, CloseReason, Draining, ReactorHandle, ReadHalf, ReadTimeoutSuspended, RecvBuf, Reserved, SharedLimits,
    SharedWriter, StagedLimit, WriteHalf,
};
use epoxide_pipes::transport::{Receive, Transmit, Transport};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A TLS session over a connection. `Send`: read, write, flush and close it from any thread; the cryptography and the system
/// calls are the caller's.
///
/// Dropping it lets go: staged bytes are discarded, close_notify and FIN go out behind a flush in flight. Dropped by a
/// panic or an abort, it is reset: a cut answer must not look whole.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.stage(b"ping")?;
/// client.flush().await?;
/// assert_eq!(&server.read().await?.unwrap()[..], b"ping");
/// client.shutdown().await?;
/// assert!(server.read().await?.is_none()); // the close_notify
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct TlsConnection {
    read: TlsReadHalf,
    write: TlsWriteHalf,
}

impl fmt::Debug for TlsConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConnection").field("read", &self.read).finish_non_exhaustive()
    }
}

impl TlsConnection {
    /// A session whose handshake is done. `ready`: input came with the end of it.
    pub(crate) fn new(read: ReadHalf, write: WriteHalf, session: Arc<Session>, ready: bool) -> Self {
        Self { read: TlsReadHalf::new(read, session.clone(), ready), write: TlsWriteHalf::new(write, session) }
    }

    fn session(&self) -> &Arc<Session> {
        self.read.session()
    }

    fn half(&self) -> &ReadHalf {
        self.read.half()
    }

    fn half_mut(&mut self) -> &mut ReadHalf {
        self.read.half_mut()
    }

    /// See [`TlsReadHalf::read`].
    pub fn read(&mut self) -> TlsRead<'_> {
        self.read.read()
    }

    /// See [`TlsReadHalf::read_idle`]. With bytes staged a request is still in progress: then it is a plain `read`.
    pub fn read_idle(&mut self) -> TlsRead<'_> {
        if self.write.staged_len() == 0 { self.read.read_idle() } else { self.read.read() }
    }

    /// See [`TlsReadHalf::read_more`].
    pub fn read_more<'a>(&'a mut self, buf: &'a mut RecvBuf) -> TlsReadMore<'a> {
        self.read.read_more(buf)
    }

    /// See [`TlsReadHalf::read_slice`].
    pub fn read_slice<'a>(&'a mut self, space: &'a mut [u8]) -> TlsReadSlice<'a> {
        self.read.read_slice(space)
    }

    /// See [`TlsReadHalf::peek`].
    pub fn peek<'a>(&'a mut self, space: &'a mut [u8]) -> TlsReadSlice<'a> {
        self.read.peek(space)
    }

    /// See [`TlsReadHalf::poll_read`].
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.read.poll_read(cx)
    }

    /// See [`TlsReadHalf::try_read`].
    ///
    /// # Errors
    /// As there.
    pub fn try_read(&mut self) -> io::Result<Option<RecvBuf>> {
        self.read.try_read()
    }

    /// See [`TlsReadHalf::is_closed_by_peer`].
    pub fn is_closed_by_peer(&self) -> bool {
        self.read.is_closed_by_peer()
    }

    /// See [`TlsWriteHalf::staged_len`].
    pub fn staged_len(&self) -> usize {
        self.write.staged_len()
    }

    /// See [`TlsWriteHalf::unsent_len`].
    pub fn unsent_len(&self) -> usize {
        self.write.unsent_len()
    }

    /// See [`TlsWriteHalf::stage`].
    ///
    /// # Errors
    /// As there.
    pub fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        self.write.stage(bytes)
    }

    /// See [`TlsWriteHalf::stage_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        self.write.stage_bytes(bytes)
    }

    /// See [`TlsWriteHalf::try_reserve`].
    ///
    /// # Errors
    /// As there.
    pub fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        self.write.try_reserve(n)
    }

    /// See [`TlsWriteHalf::spare`].
    ///
    /// # Errors
    /// As there.
    pub fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        self.write.spare(n)
    }

    /// See [`TlsWriteHalf::advance`].
    ///
    /// # Panics
    /// As there.
    pub fn advance(&mut self, n: usize) {
        self.write.advance(n);
    }

    /// See [`TlsWriteHalf::flush`].
    pub fn flush(&mut self) -> TlsFlush<'_> {
        self.write.flush()
    }

    /// See [`TlsWriteHalf::poll_flush`].
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.poll_flush(cx)
    }

    /// See [`TlsWriteHalf::try_flush`].
    ///
    /// # Errors
    /// As there.
    pub fn try_flush(&mut self) -> io::Result<()> {
        self.write.try_flush()
    }

    /// See [`TlsWriteHalf::send_all`].
    pub fn send_all<'a>(&'a mut self, bytes: &'a [u8]) -> TlsSendAll<'a> {
        self.write.send_all(bytes)
    }

    /// See [`TlsWriteHalf::send_file`].
    pub fn send_file(&mut self, file: impl Into<Arc<OwnedFd>>, range: impl RangeBounds<u64>) -> TlsSendFile<'_> {
        self.write.send_file(file, range)
    }

    /// See [`TlsWriteHalf::shutdown`].
    pub fn shutdown(&mut self) -> TlsShutdown<'_> {
        self.write.shutdown()
    }

    /// See [`TlsWriteHalf::update_keys`].
    ///
    /// # Errors
    /// As there.
    pub fn update_keys(&mut self, ask_peer: bool) -> io::Result<()> {
        self.write.update_keys(ask_peer)
    }

    /// The two halves, to be used by two tasks, on two threads if need be.
    pub fn into_split(self) -> (TlsReadHalf, TlsWriteHalf) {
        (self.read, self.write)
    }

    /// Splits off a writer that any number of threads share. See [`TlsWriteHalf::into_shared`].
    ///
    /// # Errors
    /// As there.
    pub fn into_shared(self, limits: SharedLimits) -> io::Result<(TlsReadHalf, SharedWriter)> {
        let Self { read, write } = self;
        Ok((read, write.into_shared(limits)?))
    }

    /// Puts two halves of one session together again.
    ///
    /// # Errors
    /// The halves come back if they belong to different sessions.
    #[allow(clippy::result_large_err, reason = "the halves come back as they came, once a connection at most")]
    pub fn reunite(read: TlsReadHalf, write: TlsWriteHalf) -> Result<Self, (TlsReadHalf, TlsWriteHalf)> {
        if Arc::ptr_eq(read.session(), write.session()) { Ok(Self { read, write }) } else { Err((read, write)) }
    }
}

tls_facts!(TlsConnection, half, half_mut);

impl Receive for TlsReadHalf {
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_block(cx, false)
    }

    fn poll_receive_idle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_block(cx, true)
    }

    fn poll_receive_more(&mut self, cx: &mut Context<'_>, buf: &mut RecvBuf) -> Poll<io::Result<usize>> {
        self.poll_more(cx, buf)
    }

    fn poll_receive_slice(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_slice(cx, space)
    }

    fn try_receive(&mut self) -> io::Result<Option<RecvBuf>> {
        self.try_read()
    }

    fn try_receive_more(&mut self, buf: &mut RecvBuf) -> io::Result<usize> {
        self.try_read_more(buf)
    }

    fn begin_wait(&mut self) {
        Self::begin_wait(self);
    }

    fn suspend_read_timeout(&self) -> Option<ReadTimeoutSuspended> {
        Some(Self::suspend_read_timeout(self))
    }

    fn close_handle(&self) -> CloseHandle {
        Self::close_handle(self)
    }

    fn draining(&self) -> Draining {
        Self::draining(self)
    }
}

impl Transmit for TlsWriteHalf {
    fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        Self::stage(self, bytes)
    }

    fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        Self::stage_bytes(self, bytes)
    }

    fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        Self::spare(self, n)
    }

    fn advance(&mut self, n: usize) {
        Self::advance(self, n);
    }

    fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        Self::try_reserve(self, n)
    }

    fn poll_unsent(&mut self, cx: &mut Context<'_>, at_most: usize) -> Poll<io::Result<()>> {
        Self::poll_unsent(self, cx, at_most)
    }

    fn staged_len(&self) -> usize {
        Self::staged_len(self)
    }

    fn unsent_len(&self) -> usize {
        Self::unsent_len(self)
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_flush(self, cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_shutdown(self, cx)
    }

    fn set_min_send_rate(&self, bytes_per_second: u64) {
        Self::set_min_send_rate(self, bytes_per_second);
    }

    fn close_handle(&self) -> CloseHandle {
        Self::close_handle(self)
    }
}

impl Transport for TlsConnection {
    type Reader = TlsReadHalf;
    type Writer = TlsWriteHalf;

    fn into_halves(self) -> (TlsReadHalf, TlsWriteHalf) {
        self.into_split()
    }
}
