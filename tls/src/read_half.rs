//! The reading half of a session: when to decrypt, when to receive.
//!
//! State: the reader's own flags and ciphertext, never shared. Thread class: any thread, one at a time (`&mut self`).
//! Laws: 8 (the connection's own read budget holds: every look after the first of a block takes a recv), 11 (an end is told
//! once and for all), 14 (the lock is taken after the recv, never across a park), 16.

use crate::common::tls_facts;
use crate::error::TlsError;
use crate::facts::TlsFacts;
use crate::ktls::records::{Fragment, kernel_error};
use crate::read_ops::{TlsRead, TlsReadMore, TlsReadSlice};
use crate::session::{Next, Session};
use epoxide::layer::is_record_ahead;
use epoxide::{CloseHandle, CloseReason, Draining, ReactorHandle, ReadHalf, ReadTimeoutSuspended, RecvBuf};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

/// The reading half of a TLS session: `Send`, used by one task at a time, on any thread, while the other half is used
/// elsewhere.
///
/// Dropping it discards further input once the write half is gone too; until then the write half works on. Nobody then
/// reads the peer's records, so its requests for new keys stay unanswered.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, server) = sessions().await?;
/// let (mut read, _write) = server.into_split();
/// client.send_all(b"hello").await?;
/// assert_eq!(&read.read().await?.unwrap()[..], b"hello");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct TlsReadHalf {
    half: ReadHalf,
    session: Arc<Session>,
    /// Ciphertext that the session has not seen.
    input: Option<RecvBuf>,
    /// There may be plaintext without another recv.
    ready: bool,
    /// A part of a record has come: a request is in progress, and a FIN now would cut it.
    begun: bool,
    /// Records in a row that were no data, from a kernel that decrypts.
    idle_records: u32,
    /// The beginning of a message of the handshake, from such a kernel.
    fragment: Option<Fragment>,
    over: Option<End>,
    /// Plaintext that a peek has shown and no read has taken; never empty.
    pub(crate) seen: Option<RecvBuf>,
}

/// How the input ended. Every later read says the same.
#[derive(Clone, Debug)]
enum End {
    /// The peer's close_notify.
    Clean,
    Failed(TlsError),
}

/// Records in a row that are no data, at most: as BoringSSL has it. One read could be kept busy with them for ever.
const MAX_IDLE_RECORDS: u32 = 32;

/// Fills space with plaintext.
pub(crate) type Fill<'a> = dyn FnMut(&mut [u8]) -> io::Result<usize> + 'a;

impl TlsReadHalf {
    pub(crate) fn new(half: ReadHalf, session: Arc<Session>, ready: bool) -> Self {
        Self {
            half,
            session,
            input: None,
            ready,
            begun: false,
            idle_records: 0,
            fragment: None,
            over: None,
            seen: None,
        }
    }

    pub(crate) fn session(&self) -> &Arc<Session> {
        &self.session
    }

    pub(crate) fn half(&self) -> &ReadHalf {
        &self.half
    }

    pub(crate) fn half_mut(&mut self) -> &mut ReadHalf {
        &mut self.half
    }

    /// Reads what is there, or waits for it. `None` is the peer's close_notify: nothing was cut. This side may go on
    /// writing.
    ///
    /// Any thread. The caller receives and decrypts; only a read that finds nothing waits on the reactor.
    ///
    /// # Errors
    /// [`TlsError::Truncated`] at a FIN without a close_notify; [`TlsError::Decrypt`]; else why the connection ended.
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read(&mut self) -> TlsRead<'_> {
        TlsRead::new(self, false)
    }

    /// The same as [`read`](Self::read), and says that no request is in progress. When the reactor drains it returns
    /// `None`; and so does a FIN without a close_notify, which then cuts nothing. Once a part of a record has come it is a
    /// plain `read`, unless the kernel decrypts.
    pub fn read_idle(&mut self) -> TlsRead<'_> {
        TlsRead::new(self, true)
    }

    /// Reads behind the bytes of `buf`, and returns how many came (0 = the peer's close_notify). It grows as in
    /// [`ReadHalf::read_more`].
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] when `buf` is full and may not grow; else as [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read_more<'a>(&'a mut self, buf: &'a mut RecvBuf) -> TlsReadMore<'a> {
        TlsReadMore::new(self, buf)
    }

    /// Reads into a slice, and returns how many bytes came: 0 is the peer's close_notify (or an empty slice).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read_slice<'a>(&'a mut self, space: &'a mut [u8]) -> TlsReadSlice<'a> {
        TlsReadSlice::new(self, space)
    }

    /// The poll form of [`read`](Self::read). A `Pending` has registered `cx`'s waker in place of any earlier one.
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.poll_block(cx, false)
    }

    /// For code that reads by the poll forms: a new wait begins here; see [`ReadHalf::begin_wait`]. The futures call it
    /// themselves.
    pub fn begin_wait(&mut self) {
        self.half.begin_wait();
    }

    /// Reads what is known to be there, without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when nothing is known to be there; else as [`read`](Self::read).
    pub fn try_read(&mut self) -> io::Result<Option<RecvBuf>> {
        if self.session.facts.kernel_rx() {
            return self.try_kernel(ReadHalf::try_read);
        }
        self.try_plain(|half, fill| half.fill_block(fill))
    }

    /// The same behind the bytes of `buf`; 0 is the peer's end.
    ///
    /// # Errors
    /// As [`try_read`](Self::try_read), and as [`read_more`](Self::read_more).
    pub fn try_read_more(&mut self, buf: &mut RecvBuf) -> io::Result<usize> {
        let came = if self.session.facts.kernel_rx() {
            self.try_kernel(|half| half.try_read_more(buf).map(some))
        } else {
            self.try_plain(|half, fill| half.fill_more(buf, fill))
        };
        came.map(Option::unwrap_or_default)
    }

    fn try_kernel<T>(
        &mut self,
        mut receive: impl FnMut(&mut ReadHalf) -> io::Result<Option<T>>,
    ) -> io::Result<Option<T>> {
        match self.poll_kernel(false, |half| Poll::Ready(receive(half))) {
            Poll::Ready(result) => result,
            // It never is: the recv is no future.
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    pub(crate) fn try_plain<T>(
        &mut self,
        mut into: impl FnMut(&ReadHalf, &mut Fill<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        loop {
            if let Some(result) = self.look(&mut into) {
                return result;
            }
            match self.half.try_read()? {
                Some(input) => self.received(input),
                None => self.over = Some(End::Failed(TlsError::Truncated)),
            }
        }
    }

    pub(crate) fn poll_block(&mut self, cx: &mut Context<'_>, idle: bool) -> Poll<io::Result<Option<RecvBuf>>> {
        if self.session.facts.kernel_rx() {
            return self.poll_kernel(idle, |half| match idle {
                true => half.poll_read_idle(cx),
                false => half.poll_read(cx),
            });
        }
        self.poll_plain(cx, idle, |half, fill| half.fill_block(fill))
    }

    pub(crate) fn poll_more(&mut self, cx: &mut Context<'_>, buf: &mut RecvBuf) -> Poll<io::Result<usize>> {
        let came = if self.session.facts.kernel_rx() {
            self.poll_kernel(false, |half| half.poll_read_more(cx, buf).map_ok(some))
        } else {
            self.poll_plain(cx, false, |half, fill| half.fill_more(buf, fill))
        };
        came.map_ok(Option::unwrap_or_default)
    }

    pub(crate) fn poll_slice(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        if space.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let came = if self.session.facts.kernel_rx() {
            self.poll_kernel(false, |half| half.poll_read_slice(cx, space).map_ok(some))
        } else {
            self.poll_plain(cx, false, |_, fill| fill(space))
        };
        came.map_ok(Option::unwrap_or_default)
    }

    /// The one way to read: `into` says where plaintext goes, and is called only when there may be some.
    pub(crate) fn poll_plain<T>(
        &mut self,
        cx: &mut Context<'_>,
        idle: bool,
        mut into: impl FnMut(&ReadHalf, &mut Fill<'_>) -> io::Result<T>,
    ) -> Poll<io::Result<Option<T>>> {
        loop {
            if let Some(result) = self.look(&mut into) {
                return Poll::Ready(result);
            }
            let idle = idle && !self.begun;
            let received = if idle { self.half.poll_read_idle(cx) } else { self.half.poll_read(cx) };
            match ready!(received)? {
                Some(input) => self.received(input),
                // A drain, or a FIN where nothing was under way.
                None if idle => return Poll::Ready(Ok(None)),
                None => self.over = Some(End::Failed(TlsError::Truncated)),
            }
        }
    }

    /// The same where the kernel decrypts: what is received is data.
    pub(crate) fn poll_kernel<T>(
        &mut self,
        idle: bool,
        mut receive: impl FnMut(&mut ReadHalf) -> Poll<io::Result<Option<T>>>,
    ) -> Poll<io::Result<Option<T>>> {
        loop {
            if let Some(result) = self.told_end() {
                return Poll::Ready(result);
            }
            match ready!(receive(&mut self.half)) {
                Ok(Some(_)) if self.fragment.is_some() => {
                    let next = self.session.refuse_data();
                    self.take_end(next);
                }
                Ok(Some(data)) => {
                    self.idle_records = 0;
                    return Poll::Ready(Ok(Some(data)));
                }
                // A drain, or a FIN where nothing was under way.
                Ok(None) if idle => return Poll::Ready(Ok(None)),
                Ok(None) => self.over = Some(End::Failed(TlsError::Truncated)),
                Err(error) => self.met(error)?,
            }
        }
    }

    /// A recv of a kernel that decrypts has failed: at a record that is no data, or because there is none to be had. `Err`:
    /// that is no affair of TLS.
    #[cold]
    fn met(&mut self, error: io::Error) -> io::Result<()> {
        if !is_record_ahead(&error) {
            let failed = kernel_error(&error).ok_or(error)?;
            self.over = Some(End::Failed(self.session.fail(failed)));
            return Ok(());
        }
        // A record is no longer than that.
        let mut record = vec![0; 16 * 1024];
        let (kind, n) = match self.half.take_record(&mut record) {
            Ok(taken) => taken,
            // The edge was for less than a record.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        self.idle_records += 1;
        let next = match self.idle_records {
            ..=MAX_IDLE_RECORDS => self.session.record(&mut self.fragment, kind, &record[..n]),
            _ => self.session.refuse_record(),
        };
        self.take_end(next);
        Ok(())
    }

    /// Keeps the end, if it is one.
    fn take_end(&mut self, next: Next) {
        match next {
            Next::More | Next::Receive | Next::Rest => {}
            Next::Closed => self.over = Some(End::Clean),
            Next::Failed(error) => self.over = Some(End::Failed(error)),
        }
    }

    /// How the input ended, once it has.
    fn told_end<T>(&self) -> Option<io::Result<Option<T>>> {
        match &self.over {
            None => None,
            Some(End::Clean) => Some(Ok(None)),
            Some(End::Failed(error)) => Some(Err(error.clone().into())),
        }
    }

    fn received(&mut self, input: RecvBuf) {
        self.input = Some(input);
        self.ready = true;
    }

    /// Decrypts what was received. `None`: it takes another recv.
    fn look<T>(
        &mut self,
        into: &mut impl FnMut(&ReadHalf, &mut Fill<'_>) -> io::Result<T>,
    ) -> Option<io::Result<Option<T>>> {
        if let Some(seen) = self.seen.take() {
            return Some(self.take_seen(seen, into));
        }
        if self.over.is_none() && self.ready {
            let Self { half, session, input, .. } = self;
            let mut end = (0, Next::More);
            let filled = into(half, &mut |space| {
                end = session.decrypt(input.take(), space);
                Ok(end.0)
            });
            let value = match filled {
                Ok(value) => value,
                // Declined by the caller's space: what is there is still there.
                Err(error) => return Some(Err(error)),
            };
            let (n, next) = end;
            match next {
                Next::More => {}
                Next::Receive => (self.ready, self.begun) = (false, false),
                Next::Rest => (self.ready, self.begun) = (false, true),
                Next::Closed => self.over = Some(End::Clean),
                Next::Failed(error) => self.over = Some(End::Failed(error)),
            }
            if n > 0 {
                return Some(Ok(Some(value)));
            }
        }
        self.told_end()
    }

    /// Has the peer said that nothing more comes (close_notify)? False also after a cut: see [`TlsError::Truncated`].
    pub fn is_closed_by_peer(&self) -> bool {
        matches!(self.over, Some(End::Clean))
    }
}

/// Nothing is the peer's FIN.
fn some(n: usize) -> Option<usize> {
    (n > 0).then_some(n)
}

tls_facts!(TlsReadHalf, half, half_mut);
