//! Moving a connection to another reactor, under traffic.
//!
//! State: the body that is on its way, in the future. Who touches it: the one user of both halves; the two reactors only
//! see a body come and a body let go. Thread class: any thread. Laws: 3, 4 (each body is added once, never modified), 5
//! (a descriptor of its own a body), 9, 11, 12.
//!
//! Nothing that is read on the hot path can change: a body has one home for ever. So a move makes a second body for a
//! duplicate of the descriptor, has the target adopt it, and only then, in one step of the user, changes bodies. Dropped or
//! refused before that step, the connection has not moved; it is never without a home.
//! ```text
//! mover (the user)                               who may come in between
//!   old flush word idle
//!   new body: Arriving, given to the target        target stops: cuts it, socket left alone -> Err(Stopped)
//!   adopted: slot, ADD (tells what is there)       an edge: marks both words, whichever is read later
//!   claim the old flush word, for good             a FIN asked for now only leaves its mark there
//!   new: Arriving -> Ours                          target stops: refused before, or cuts the moved connection after
//!   locator: new                                   close handle: acts on the old one, looks, acts on the new one
//!   old: Ours -> Gone                              old home stops, a deadline fires: cut before (it goes along) or
//!                                                  leaves the socket alone after
//!   reason, FIN, marks, counts, deadline, places
//!   the halves change bodies: LetGo to the old     old home: DEL, slot freed, its descriptor closed
//! ```

use crate::buf::BufPool;
use crate::conn::body::{Body, ends};
use crate::conn::connection::Connection;
use crate::conn::ending::{self, Held};
use crate::conn::read_half::ReadHalf;
use crate::conn::read_word::Mark;
use crate::conn::write_half::WriteHalf;
use crate::conn::{deadline, drive};
use crate::error::{CloseReason, PostError};
use crate::exec::handle::ReactorHandle;
use crate::exec::home::Home;
use crate::exec::local;
use crate::stats::Count;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::trace;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

impl Connection {
    /// Moves the connection to another reactor: its edges, clocks, deadline, counters and drain are that one's from then
    /// on. The calling task stays where it is; one of the target reads and writes as fast as if the connection had been
    /// accepted there.
    ///
    /// Waits until what was flushed is out; what is staged stays staged. Nothing that arrives meanwhile is lost. Close
    /// handles, the deadline and suspensions of the read clock follow; `listener` and the places within `max_connections`
    /// stay what they were. The connection has a new [`id`](Self::id), and a new descriptor number for the same socket.
    /// [`draining`](Self::draining) futures that were made before wait for the old reactor. Moving to where it is does
    /// nothing. Any thread.
    ///
    /// # Errors
    /// Each leaves the connection on its reactor: [`RehomeError::Stopped`] when the target drains or has stopped,
    /// [`RehomeError::Full`] when it has `max_posts` posts waiting, [`RehomeError::Io`] with `EMFILE` (for a moment there are two
    /// descriptors) or an errno of epoll. [`RehomeError::Ended`] when the connection has ended.
    /// One that is ended while it changes reactors has moved: that is no error, its next read says why it ended.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, the connection has not moved and is as usable as before.
    pub fn rehome(&mut self, target: &ReactorHandle) -> Rehome<'_> {
        Rehome { connection: self, target: target.home.clone(), next: None }
    }
}

/// Why a connection did not move. It is where it was.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let elsewhere = Runtime::builder().reactors(1).build()?;
/// let (target, here) = (elsewhere.handle(), conn.reactor());
/// drop(elsewhere);
/// assert!(matches!(conn.rehome(&target).await, Err(RehomeError::Stopped)));
/// assert!(conn.reactor() == here); // it has not moved
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum RehomeError {
    /// The target drains or has stopped.
    Stopped,
    /// The target has `ReactorConfig::max_posts` hand-overs waiting already.
    Full,
    /// The connection has ended.
    Ended(CloseReason),
    /// The kernel gave no descriptor, or the target's epoll refused it.
    Io(io::Error),
}

impl fmt::Display for RehomeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection was not moved: ")?;
        match self {
            Self::Stopped => f.write_str("the reactor has stopped or drains"),
            Self::Full => fmt::Display::fmt(&PostError::Full(()), f),
            Self::Ended(reason) => reason.fmt(f),
            Self::Io(error) => error.fmt(f),
        }
    }
}

impl Error for RehomeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Ended(reason) => Some(reason),
            Self::Io(error) => Some(error),
            Self::Stopped | Self::Full => None,
        }
    }
}

impl From<RehomeError> for io::Error {
    fn from(error: RehomeError) -> Self {
        match error {
            RehomeError::Stopped => PostError::Stopped(()).into(),
            RehomeError::Full => PostError::Full(()).into(),
            RehomeError::Ended(reason) => reason.into(),
            RehomeError::Io(error) => error,
        }
    }
}

/// The future of [`Connection::rehome`].
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let elsewhere = Runtime::builder().reactors(1).build()?;
/// conn.rehome(&elsewhere.handle()).await?;
/// assert!(conn.reactor() == elsewhere.handle());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Rehome<'a> {
    connection: &'a mut Connection,
    target: Arc<Home>,
    /// The body that the target adopts.
    next: Option<Arc<Body>>,
}

impl Future for Rehome<'_> {
    type Output = Result<(), RehomeError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let old = this.connection.body();
        if Arc::ptr_eq(&old.home, &this.target) {
            return Poll::Ready(Ok(()));
        }
        // Register, then look. The old one's too: its end is not to wait for the target.
        old.set_writer(cx);
        if old.flush.is_closed() {
            return Poll::Ready(Err(ended(old)));
        }
        if !old.flush.is_idle() {
            return Poll::Pending;
        }
        let next = match &this.next {
            Some(next) => next,
            None => this.next.insert(depart(old, &this.target)?),
        };
        next.set_writer(cx);
        if next.flush.is_closed() {
            return Poll::Ready(Err(refused(next)));
        }
        if !next.flush.is_idle() {
            return Poll::Pending;
        }
        let next = next.clone();
        // No longer the future's to give up, unless it is told that nothing has changed.
        this.next = None;
        Poll::Ready(change(this.connection, &next).inspect_err(|_| ending::abandon(&next)))
    }
}

impl Drop for Rehome<'_> {
    fn drop(&mut self) {
        if let Some(next) = self.next.take() {
            // Still Arriving: the target forgets it, and the socket is none of its business.
            ending::abandon(&next);
        }
        // User code last: the drop of a waker (law 10).
        self.connection.body().forget_writer();
    }
}

fn ended(body: &Body) -> RehomeError {
    RehomeError::Ended(body.reason().unwrap_or(CloseReason::Aborted))
}

/// The target did not keep the new body.
fn refused(next: &Body) -> RehomeError {
    match next.reason() {
        Some(reason @ CloseReason::Io { .. }) => RehomeError::Io(reason.into()),
        _ => RehomeError::Stopped,
    }
}

/// Gives the target a body for the same socket.
fn depart(old: &Body, target: &Arc<Home>) -> Result<Arc<Body>, RehomeError> {
    let admission = target.admit().map_err(|why| match PostError::refused(why, ()) {
        PostError::Stopped(()) => RehomeError::Stopped,
        PostError::Full(()) => RehomeError::Full,
    })?;
    // Others may be inside a call on ours, and a duplicate is the same socket; std makes it CLOEXEC.
    let fd = old.as_fd().try_clone_to_owned().map_err(RehomeError::Io)?;
    let next = Arc::new(Body::arriving(fd, target.clone(), old));
    admission.adopt(next.clone());
    Ok(next)
}

/// The step from one body to the other. The target knows the new one, nothing is being sent. An error: nothing has changed.
fn change(connection: &mut Connection, next: &Arc<Body>) -> Result<(), RehomeError> {
    let old = connection.body().clone();
    // For good: who asks for a FIN from here on finds an owner and only leaves a mark, so none can overtake what the new
    // body sends. With a FIN gone already there is nothing to be claimed.
    let claimed = old.flush.claim();
    if !claimed && old.flush.is_closed() {
        return Err(ended(&old));
    }
    if !next.socket.arrive() {
        if claimed {
            // The claim is given back.
            drive::leave_empty(&old);
        }
        return Err(refused(next));
    }
    if let Some(locator) = old.locator.get() {
        // A new body's is empty: nobody else had it.
        let _ = next.locator.set(locator.clone());
        locator.moved_to(next);
    }
    let goes_on = old.socket.leave();
    take_along(&old, next, goes_on);
    connection.set_body(next);
    next.home.count(Count::Rehomed, 1);
    trace::moved(old.home.index, old.key(), next.home.index, next.key());
    // Last: what drops is user code.
    old.forget_writer();
    Ok(())
}

/// What the connection was, the new body is; ended too, if it was and does not go on.
fn take_along(old: &Body, next: &Arc<Body>, goes_on: bool) {
    let accepted = old.accepted.load(Ordering::Relaxed);
    next.accepted.store(accepted, Ordering::Relaxed);
    next.min_send_rate.store(old.min_send_rate.load(Ordering::Relaxed), Ordering::Relaxed);
    lock(&next.slow).end = accepted;
    let kept = old.ends.load(Ordering::Acquire) & (ends::PEER_FIN | ends::PEER_HALF | ends::HUNG_UP);
    next.ends.fetch_or(kept, Ordering::AcqRel);
    let places = std::mem::take(&mut *lock(&old.places));
    *lock(&next.places) = places;
    if let Some(reason) = old.reason() {
        next.store_reason(reason);
    }
    if old.flush.has_fin() {
        ending::fin_behind_queue(next);
    }
    match old.reason() {
        // Whoever cut the old one had the socket, and resets it.
        Some(reason) if !goes_on => next.end(reason),
        // Whoever ends the old one has stored the reason and finds the socket gone: the peer is told here.
        Some(reason) if old.flush.is_closed() || reason == CloseReason::Aborted => ending::reset(next, reason),
        _ => {}
    }
    next.touch(local::here(&next.home));
    // Ready: what the old word knew is worth one look. An edge from before the ADD was told by the ADD.
    next.signal_reader(if old.read.is_sticky() { Mark::Sticky } else { Mark::Nothing });
    if let Some((at, what)) = deadline::take(old) {
        deadline::set(next, Some(at), what);
    }
}

impl ReadHalf {
    /// The old body is told that this half is gone.
    fn set_body(&mut self, body: Arc<Body>) {
        self.pool = BufPool::of_size(body.home.config.recv_buffer_size);
        self.set_budget(body.home.config.read_budget);
        self.body = Held::new(body, ends::READER_GONE);
    }
}

impl WriteHalf {
    /// The old body is told that this half is gone.
    fn set_body(&mut self, body: Arc<Body>) {
        self.forget_shares(body.home.config.flush_budget);
        self.body = Held::new(body, ends::WRITER_GONE);
    }
}

impl Connection {
    fn set_body(&mut self, body: &Arc<Body>) {
        let (read, write) = self.halves();
        read.set_body(body.clone());
        write.set_body(body.clone());
    }
}
