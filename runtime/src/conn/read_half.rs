//! The reading half: when to recv, when to park.
//!
//! State: the reader's own flags (`more`, `streak`, `over`, `waits`), never shared. Thread class: any thread, one at a time
//! (`&mut self`). Laws: 1 (Ready is consumed before the recv; every Pending has written its own waiter), 2 (drained
//! rule), 6, 8 (reads in a row on a reactor thread), 11 (FIN against reset), 16 (a declined fill touches nothing).

use crate::buf::{BufPool, RecvBuf};
use crate::conn::body::{Body, ends};
use crate::conn::deadline;
use crate::conn::ending::Held;
use crate::conn::input_end::is_untold_reset;
use crate::conn::layer;
use crate::conn::probe::Probe;
use crate::conn::read_word::{Look, Waiter};
use crate::error::{Clock, CloseReason};
use crate::exec::local::{self, Here};
use crate::stats::Count;
use crate::sync::plain::{Ordering, fence};
use crate::sys;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// The reading half of a connection: `Send`, used by one task at a time, on any thread.
///
/// Dropping it discards further input once the write half is gone too; until then the write half works on.
///
/// ```
/// # epoxide::block_on(async {
/// let (ours, _theirs) = std::os::unix::net::UnixStream::pair().unwrap();
/// let (read, write) = epoxide::Connection::from_unix(ours).unwrap().into_split();
/// # });
/// ```
#[derive(Debug)]
pub struct ReadHalf {
    pub(crate) body: Held,
    pub(crate) pool: &'static BufPool,
    /// The last recv does not prove that the socket is drained: it filled its space, was a peek, or the connection
    /// is sticky; or somebody asks for a look. Recv before parking.
    pub(crate) more: bool,
    /// Reads in a row that a reactor thread may still complete before others get their turn.
    streak: u32,
    budget: u32,
    /// The end was told: the peer's FIN, or the reason. Every later read says the same.
    over: bool,
    /// Bytes received since the connection had a reason to end.
    late: usize,
    /// The read that is under way has parked: it has waited since then.
    waits: bool,
    /// Nothing was received yet: a drain lets the first request in, if it has arrived.
    pub(crate) fresh: bool,
    /// Recvs before a park that nobody has asked for.
    probe: Probe,
}

/// What a reader may still receive of a connection that has a reason to end: more than the kernel's default limit of a
/// receive buffer, 6 MiB (`tcp_rmem`, tcp(7)).
const LATE_BYTES: usize = 8 << 20;

/// What one recv brought.
pub(crate) struct Got<T> {
    pub(crate) n: usize,
    /// The space was filled (or nothing was taken out of the socket): there may be more.
    pub(crate) more: bool,
    /// The bytes left the socket: not a peek's.
    pub(crate) taken: bool,
    pub(crate) value: T,
}

/// How an attempt to read is meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// A request is in progress.
    Busy,
    /// No request is in progress: a drain ends it.
    Idle,
}

impl ReadHalf {
    pub(crate) fn new(body: Arc<Body>) -> Self {
        let pool = BufPool::of_size(body.home.config.recv_buffer_size);
        let budget = body.home.config.read_budget;
        let body = Held::new(body, ends::READER_GONE);
        Self {
            body,
            pool,
            more: false,
            streak: budget,
            budget,
            over: false,
            late: 0,
            waits: false,
            fresh: true,
            probe: Probe::default(),
        }
    }

    /// Of another reactor's configuration, for a connection that moves there.
    pub(crate) fn set_budget(&mut self, budget: u32) {
        (self.streak, self.budget) = (budget, budget);
    }

    /// Reads into a pooled buffer: [`poll_recv`](Self::poll_recv) with the one path told apart that nearly every request
    /// takes (40 instructions less).
    #[inline]
    pub(crate) fn poll_buffer(&mut self, cx: &Context<'_>, intent: Intent) -> Poll<io::Result<Option<RecvBuf>>> {
        let body = &*self.body;
        let mut look = body.read.look();
        if look.is_plainly_ready() && self.streak > 0 && !self.over {
            body.read.consume();
            let mut fill = self.pool.fill();
            let space = fill.space();
            let size = space.len();
            match sys::io::recv(body.as_fd(), space) {
                Ok(n) if n > 0 => {
                    body.home.count(Count::Reads, 1);
                    self.more = n == size || body.read.is_sticky();
                    if self.more && self.is_late(n) {
                        return Poll::Ready(Err(self.stored_reason()));
                    }
                    self.streak -= 1;
                    self.fresh = false;
                    self.waits = false;
                    return Poll::Ready(Ok(Some(fill.commit(n))));
                }
                result => {
                    drop(fill);
                    if let Some(result) = self.not_received(result) {
                        return Poll::Ready(result);
                    }
                    look = self.body.read.look();
                }
            }
        }
        if look.is_quiet() & !self.more & !self.over && self.park(cx.waker()) {
            return Poll::Pending;
        }
        let pool = self.pool;
        self.poll_recv_cold(cx, intent, |fd| recv_buffer(pool, fd))
    }

    #[cold]
    fn poll_recv_cold<T>(
        &mut self,
        cx: &Context<'_>,
        intent: Intent,
        recv: impl FnMut(BorrowedFd<'_>) -> io::Result<Got<T>>,
    ) -> Poll<io::Result<Option<T>>> {
        self.poll_recv(cx, intent, recv)
    }

    /// The one way to read: `recv` makes the system call and is called only when there may be something.
    /// `Ok(None)` is the peer's FIN, or a drain for an idle intent.
    #[inline]
    pub(crate) fn poll_recv<T>(
        &mut self,
        cx: &Context<'_>,
        intent: Intent,
        mut recv: impl FnMut(BorrowedFd<'_>) -> io::Result<Got<T>>,
    ) -> Poll<io::Result<Option<T>>> {
        loop {
            let look = self.body.read.look();
            if look.is_asked() {
                self.body.read.take_question();
            }
            if look.is_ready() | look.is_draining() | self.more | self.over {
                if self.streak == 0 && self.yields() {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                if let Some(result) = self.try_recv(look, intent, &mut recv) {
                    return Poll::Ready(result);
                }
                // Nothing was there: the Ready that was consumed may have been a drain's or a flush's end's, from after
                // the look. It ends: the next round consumes nothing unless a new Ready came.
                if look.is_ready() {
                    if look.is_asked() {
                        self.answer();
                    }
                    continue;
                }
            }
            if self.park(cx.waker()) {
                return Poll::Pending;
            }
        }
    }

    /// On a reactor thread a reader that had its share goes to the back of the run queue. Nothing was consumed, so
    /// nothing is lost.
    #[cold]
    fn yields(&mut self) -> bool {
        self.streak = self.budget;
        local::is_reactor_thread()
    }

    /// Waits for the next edge, unless one came. Every park writes its own waiter over an earlier one.
    #[inline]
    fn park(&mut self, waker: &Waker) -> bool {
        let body = &*self.body;
        let Some((id, now_ms)) = local::current_task(&body.home, waker) else { return self.park_foreign(waker) };
        if !self.waits {
            // The wait begins. Another poll of the same read does not begin it anew.
            body.touch(Here { is_home: true, now_ms });
        }
        if !body.read.park(Waiter::Task(id)) {
            return false;
        }
        self.streak = self.budget;
        self.waits = true;
        body.home.counts.add_own(Count::Parks, 1);
        true
    }

    #[cold]
    fn park_foreign(&mut self, waker: &Waker) -> bool {
        let body = &*self.body;
        let here = local::here(&body.home);
        if !self.waits {
            body.touch(here);
        }
        if !here.is_home && body.home.config.optimistic_reads && self.probe.tries() {
            body.home.count(Count::Probes, 1);
            self.more = true;
            return false;
        }
        body.set_foreign_reader(waker.clone());
        if !body.read.park(Waiter::Foreign) {
            return false;
        }
        self.streak = self.budget;
        self.waits = true;
        body.home.count_from(here.is_home, Count::Parks, 1);
        true
    }

    /// A read begins: it has not waited yet.
    #[inline]
    pub(crate) fn begin(&mut self) -> &mut Self {
        self.waits = false;
        self
    }

    /// The sweep asked and nothing is there. If this read has waited all the time, its clock ends the connection; what
    /// happened since the question (bytes, a send, a guard) is in the clock.
    #[cold]
    fn answer(&self) {
        let body = &*self.body;
        if self.waits && deadline::read_clock_ran_out(body, local::here(&body.home).now_ms) {
            deadline::ran_out(body, CloseReason::Timeout(Clock::Read));
        }
    }

    /// One look: `None` means that nothing is there and the reader may park (or give up).
    #[inline]
    pub(crate) fn try_recv<T>(
        &mut self,
        look: Look,
        intent: Intent,
        recv: &mut impl FnMut(BorrowedFd<'_>) -> io::Result<Got<T>>,
    ) -> Option<io::Result<Option<T>>> {
        let body = &*self.body;
        if self.over {
            return Some(self.end_again());
        }
        // A flush in flight is a request in progress.
        let drained = look.is_draining() && intent == Intent::Idle && self.is_flushed();
        if drained && !self.fresh {
            return Some(self.drained());
        }
        if look.is_ready() {
            body.read.consume();
        } else if !self.more && !drained {
            return None;
        }
        match recv(body.as_fd()) {
            Ok(got) if got.n > 0 => {
                body.home.count(Count::Reads, 1);
                // Asked after the recv: an edge that sets the bit later also makes the word Ready.
                self.more = got.more || body.read.is_sticky();
                if self.more && self.is_late(got.n) {
                    return Some(Err(self.stored_reason()));
                }
                self.streak = self.streak.saturating_sub(1);
                self.fresh &= !got.taken;
                self.waits &= !got.taken;
                Some(Ok(Some(got.value)))
            }
            // A client that was waiting in the accept queue and has sent nothing yet.
            Err(error) if drained && error.kind() == io::ErrorKind::WouldBlock => {
                body.home.count(Count::Reads, 1);
                body.home.count(Count::Eagain, 1);
                Some(self.drained())
            }
            result => self.not_received(result.map(|got| got.n)),
        }
    }

    /// Is no flush in flight? Whoever ends one looks for a draining reader after a fence of its own.
    #[cold]
    fn is_flushed(&self) -> bool {
        fence(Ordering::SeqCst);
        self.body.flush.is_idle()
    }

    /// An idle reader ends because its reactor drains.
    #[cold]
    fn drained<T>(&self) -> io::Result<Option<T>> {
        self.body.ends.fetch_or(ends::DRAINED, Ordering::AcqRel);
        Ok(None)
    }

    /// The recv brought nothing: the end, or an error. `None`: nothing was there.
    #[cold]
    fn not_received<T>(&mut self, result: io::Result<usize>) -> Option<io::Result<Option<T>>> {
        match result.and_then(|_| layer::nothing_received(&self.body)) {
            Ok(_) => {
                self.body.home.count(Count::Reads, 1);
                Some(self.end_of_input())
            }
            Err(error) => self.failed(error),
        }
    }

    /// Every later read says the same, though some errnos (ENOMEM) leave a socket with bytes that a recv would bring.
    pub(crate) fn end_was_told(&mut self) {
        (self.over, self.more) = (true, true);
    }

    fn failed<T>(&mut self, error: io::Error) -> Option<io::Result<Option<T>>> {
        let body = &*self.body;
        if error.raw_os_error().is_none() {
            // Declined by the caller's space, not by the socket: what is there is still there.
            self.more = true;
            return Some(Err(error));
        }
        body.home.count(Count::Reads, 1);
        if layer::is_before_record(body, &error) {
            self.more = true;
            return Some(Err(layer::record_ahead()));
        }
        if error.kind() == io::ErrorKind::WouldBlock {
            body.home.count(Count::Eagain, 1);
            if self.probe.missed() {
                body.home.count(Count::ProbesMissed, 1);
            }
            // What was received comes before the reason (law 11), and now nothing is left. Every later read says the same.
            let reason = body.reason();
            self.over = reason.is_some();
            self.more = self.over;
            return reason.map(|reason| Err(reason.into()));
        }
        body.end(CloseReason::from_io("recv", &error));
        self.end_was_told();
        Some(Err(self.stored_reason()))
    }

    /// recv returned 0: the peer's FIN, or a reset whose error a failed send has consumed (law 11).
    fn end_of_input<T>(&mut self) -> io::Result<Option<T>> {
        let body = &*self.body;
        // Once ended, looking again finds the same: the socket stays at its end.
        self.more = true;
        // Before the reason is read: a sender stores it before it leaves Flushing.
        let is_closed = || matches!(sys::socket::tcp_state(body.as_fd()), Ok(sys::socket::CLOSE));
        if body.tcp && is_untold_reset(&body.flush, is_closed) {
            body.store_reason(CloseReason::PeerReset { errno: sys::errno::ECONNRESET });
        }
        match body.reason() {
            Some(reason) => Err(reason.into()),
            None => {
                self.over = true;
                body.ends.fetch_or(ends::PEER_FIN, Ordering::AcqRel);
                Ok(None)
            }
        }
    }

    /// A peer that sends without end does not keep the reads of a closed connection alive.
    fn is_late(&mut self, n: usize) -> bool {
        if self.body.reason().is_some() {
            self.late = self.late.saturating_add(n);
            self.over = self.late > LATE_BYTES;
        }
        self.over
    }

    /// A read after the end.
    #[cold]
    fn end_again<T>(&self) -> io::Result<Option<T>> {
        if self.body.has_ended(ends::PEER_FIN) { Ok(None) } else { Err(self.stored_reason()) }
    }

    fn stored_reason(&self) -> io::Error {
        self.body.reason().unwrap_or(CloseReason::Aborted).into()
    }
}

/// One recv into a pooled buffer. Failing or finding nothing, the buffer goes back untouched.
pub(crate) fn recv_buffer(pool: &'static BufPool, fd: BorrowedFd<'_>) -> io::Result<Got<RecvBuf>> {
    let mut fill = pool.fill();
    let n = sys::io::recv(fd, fill.space())?;
    Ok(Got { n, more: n == pool.size(), taken: true, value: fill.commit(n) })
}
