//! How a connection ends: FIN, reset, the close handle, and letting go.
//!
//! State: none of its own. Thread class: any thread. Laws: 5 (reset reaches the peer whoever else holds the socket),
//! 6 (letting go), 11 (reasons), 9 (a close handle holds the body weakly, and follows it when it moves).

use crate::conn::body::{Body, ends};
use crate::conn::drive::send_fin;
use crate::conn::locator::Locator;
use crate::conn::shared;
use crate::error::CloseReason;
use crate::exec::home::{Msg, Stage};
use crate::exec::local::{self, Discard};
use crate::sync::atomic::fence;
use crate::sync::plain::Ordering;
use crate::sys;
use std::fmt;
use std::ops::Deref;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Closes or resets a connection from any thread, while others read and write it. Cheap to clone; it does not keep
/// the connection open.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let handle = conn.close_handle();
/// std::thread::spawn(move || handle.close());
/// let ended = conn.read().await.unwrap_err(); // parked or not
/// assert_eq!(CloseReason::of(&ended), Some(CloseReason::Local));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct CloseHandle {
    at: Arc<Locator>,
}

impl fmt::Debug for CloseHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloseHandle").field("open", &self.at.current().is_some()).finish()
    }
}

impl CloseHandle {
    pub(crate) fn new(body: &Arc<Body>) -> Self {
        Self { at: Locator::of(body) }
    }

    /// Ends the connection in good order: what is queued goes out, the FIN follows it, reads end. A parked read
    /// resumes, first with what was received, then with [`CloseReason::Local`]; what is staged but was not flushed is
    /// refused. Does nothing on a connection that is over.
    pub fn close(&self) {
        self.at.apply(|body| {
            if !body.socket.is_ours() {
                return;
            }
            body.store_reason(CloseReason::Local);
            fin_behind_queue(body);
            // Not shutdown(SHUT_RD): the kernel would answer what the peer still sends with a reset, which cuts what is
            // queued.
            body.signal_reader(crate::conn::read_word::Mark::Sticky);
            body.wake_ready();
        });
    }

    /// Ends the connection at once: the peer sees a reset, whoever else holds the socket; parked reads and flushes
    /// resume with [`CloseReason::Local`]. Does nothing on a connection that is over.
    pub fn reset(&self) {
        self.at.apply(|body| reset(body, CloseReason::Local));
    }
}

/// FIN at once, or right behind the flush in flight.
pub(crate) fn fin_behind_queue(body: &Body) {
    if let Some(layer) = body.layer() {
        layer.before_fin();
    }
    if body.flush.fin() {
        send_fin(body);
    }
}

/// The peer sees a reset; everybody on this side sees `reason` (if it is the first).
pub(crate) fn reset(body: &Body, reason: CloseReason) {
    body.store_reason(reason);
    if body.socket.cut() {
        // A socket that is not connected any more cannot be reset, and need not be.
        let _ = sys::socket::reset(body.as_fd());
    }
    body.end(reason);
}

/// Reactor, while it drains: a connection that is on its way here stays where it is. True: it was one.
pub(crate) fn refuse_arrival(body: &Body) -> bool {
    let refused = body.socket.refuse();
    if refused {
        body.end(CloseReason::Draining);
    }
    refused
}

/// A half's hold on its connection: dropping it tells the connection that the half is gone.
#[derive(Debug)]
pub(crate) struct Held {
    body: Arc<Body>,
    half: u32,
}

impl Held {
    pub(crate) fn new(body: Arc<Body>, half: u32) -> Self {
        Self { body, half }
    }
}

impl Deref for Held {
    type Target = Arc<Body>;

    #[inline]
    fn deref(&self) -> &Arc<Body> {
        &self.body
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        half_gone(&self.body, self.half);
    }
}

/// Reactor: an edge said that the peer sends nothing more (`half`), or that the connection is broken (`hung_up`).
#[cold]
pub(crate) fn peer_edge(body: &Body, half: bool, hung_up: bool) {
    let bits = if half { ends::PEER_HALF } else { 0 } | if hung_up { ends::HUNG_UP } else { 0 };
    body.ends.fetch_or(bits, Ordering::AcqRel);
    end_if_nobody_is_left(body);
}

/// A shared writer learns of the end without sending: by the peer's reset at once; when nobody reads, by its FIN unless it
/// is half-open, and by a drain. To be called after anything was set that this depends on: of two setters one sees both.
pub(crate) fn end_if_nobody_is_left(body: &Body) {
    // The drain's mark is in another word than these bits.
    fence(Ordering::SeqCst);
    let bits = body.ends.load(Ordering::Acquire);
    let has = |bit| bits & bit != 0;
    if !has(ends::SHARED) {
        return;
    }
    let broken =
        has(ends::HUNG_UP) && (!body.tcp || matches!(sys::socket::tcp_state(body.as_fd()), Ok(sys::socket::CLOSE)));
    if broken && let Some(reason) = why_broken(body, has(ends::READER_GONE)) {
        body.end(reason);
    } else if has(ends::READER_GONE) {
        let drains = body.read.look().is_draining();
        if drains || has(ends::PEER_FIN | ends::PEER_HALF) && !shared::is_half_open(body) {
            // What was accepted still goes out: the peer may be reading.
            body.store_reason(if drains { CloseReason::Draining } else { CloseReason::PeerFin });
            fin_behind_queue(body);
            body.wake_ready();
        }
    }
}

/// The error that broke the connection. `None`: whoever met it (a send or a recv under way) reports it, or the reader
/// comes to a clean end.
fn why_broken(body: &Body, reader_gone: bool) -> Option<CloseReason> {
    match sys::socket::take_error(body.as_fd()) {
        Ok(Some(error)) => Some(CloseReason::from_io("connection", &error)),
        _ if body.flush.is_flushing() || !reader_gone => None,
        _ if body.tcp && !body.flush.has_fin() => Some(CloseReason::PeerReset { errno: sys::errno::ECONNRESET }),
        _ => Some(CloseReason::PeerFin),
    }
}

/// A half is dropped. The last one lets the connection go.
fn half_gone(body: &Body, half: u32) {
    if !body.socket.is_ours() {
        // Whoever took the socket ends it.
    } else if half == ends::WRITER_GONE && (std::thread::panicking() || local::discard() != Discard::No) {
        // A cut body must not look whole (law 6). A reader that dies alone cuts nothing.
        if !body.flush.is_closed() {
            reset(body, CloseReason::Aborted);
        }
    } else if half == ends::WRITER_GONE {
        fin_behind_queue(body);
    }
    let before = body.ends.fetch_or(half, Ordering::AcqRel);
    if half == ends::READER_GONE {
        end_if_nobody_is_left(body);
    }
    if ends::are_both_gone(before | half) {
        let_go(body, before & ends::KNOWN != 0);
    }
}

/// A connect is given up before it was decided: nothing goes out any more, the descriptor closes.
pub(crate) fn abandon(body: &Body) {
    body.end(CloseReason::Local);
    let before = body.ends.fetch_or(ends::READER_GONE | ends::WRITER_GONE, Ordering::AcqRel);
    tell_reactor(body, before & ends::KNOWN != 0);
}

/// Both halves are gone: the reactor reads and discards until the peer's FIN, then closes. With no reactor left the
/// descriptor closes with the last holder.
fn let_go(body: &Body, known: bool) {
    let how = match (body.has_ended(ends::PEER_FIN), body.has_ended(ends::DRAINED)) {
        (_, true) => CloseReason::Draining,
        (true, false) => CloseReason::PeerFin,
        (false, false) => CloseReason::Local,
    };
    // Not yet a reason while a flush still drains: its own failure is more telling.
    if body.flush.is_idle() {
        body.store_reason(how);
    }
    tell_reactor(body, known);
}

/// A reactor that does not know the connection yet will see by itself that nobody uses it.
fn tell_reactor(body: &Body, known: bool) {
    if known && body.home.stage() < Stage::Stopped {
        body.home.send(Msg::LetGo(body.key()));
    }
}
