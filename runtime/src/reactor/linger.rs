//! Connections that their handlers let go of: discard input until the peer's FIN, within bounds, then close.
//!
//! State: one `Linger` a connection, in its table entry. Thread class: reactor only. Laws: 6 (close(2) with unread
//! input would send RST and could destroy the last answer on the client; RFC 1122, 4.2.2.13), 16.

use super::Reactor;
use crate::conn::body::{Body, ends};
use crate::conn::ending;
use crate::conn::layer;
use crate::error::CloseReason;
use crate::exec::home::Msg;
use crate::exec::{local, run};
use crate::id::Key;
use crate::reactor::table::Entry;
use crate::stats::Count;
use crate::{sys, trace};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Input that is discarded at most before the connection is closed all the same, in bytes.
const MAX_DISCARD: usize = 1024 * 1024;
/// Input that is discarded in one go, in bytes.
const DISCARD_BUDGET: usize = 256 * 1024;

/// The type of a message of TLS 1.3 (RFC 8446, 4).
const NEW_SESSION_TICKET: u8 = 4;
/// What a record of tickets counts for, however long it is: it costs two calls.
const TICKET_BYTES: usize = 16 * 1024;

/// How far a lingering connection is.
#[derive(Debug, Default)]
pub(super) struct Linger {
    discarded: usize,
    /// The peer's FIN came, or the socket failed: nothing more is to be read.
    input_over: bool,
    /// When the output was seen to be out (milliseconds of the coarse clock).
    since: Option<u64>,
}

/// What is to be done with a lingering connection.
enum Next {
    Wait,
    Again,
    Close,
}

impl Linger {
    /// So much more is discarded. Enough: for this turn (true), or for good (false).
    fn count(&mut self, portion: &mut usize, bytes: usize) -> Option<bool> {
        self.discarded += bytes;
        *portion += bytes;
        if self.discarded >= MAX_DISCARD {
            return Some(false);
        }
        (*portion >= DISCARD_BUDGET).then_some(true)
    }

    fn look(&mut self, body: &Body, now: u64, bound: Duration) -> Next {
        let mut again = false;
        if !self.input_over && !body.flush.is_closed() {
            again = discard(body, self);
        }
        if !body.flush.is_idle() && !body.flush.is_closed() {
            // The send clock bounds this part; the peer may be slow.
            self.since = None;
            return Next::Wait;
        }
        let since = *self.since.get_or_insert(now);
        let over = self.input_over
            || body.flush.is_closed()
            || self.discarded >= MAX_DISCARD
            || u128::from(now.saturating_sub(since)) >= bound.as_millis();
        match (over, again) {
            (true, _) => Next::Close,
            (false, true) => Next::Again,
            (false, false) => Next::Wait,
        }
    }
}

impl Reactor {
    /// Both halves of a connection are gone.
    pub(super) fn begin_linger(&mut self, key: Key) {
        let Some(entry) = self.table.get(key) else { return };
        entry.body.forget_waiters();
        if !entry.body.socket.is_ours() {
            self.close(key);
            return;
        }
        let linger = Linger { input_over: entry.body.has_ended(ends::PEER_FIN), ..Linger::default() };
        self.table.set_lingering(key, linger);
        // At once, not at the next edge: it may be spent.
        self.attend_linger(key);
    }

    /// Looks at a lingering connection after anything that may have brought it further.
    /// The caller holds no clone of the body: its place within the limits is to be free when the slot is.
    pub(super) fn attend_linger(&mut self, key: Key) {
        let bound = match (self.home.config.linger, self.home.config.read_timeout) {
            (Duration::ZERO, _) => Duration::ZERO,
            (linger, Duration::ZERO) => linger,
            (linger, read) => linger.min(read),
        };
        let now = self.now_ms;
        let Some(Entry { body, linger: Some(linger), .. }) = self.table.get_mut(key) else { return };
        match linger.look(body, now, bound) {
            Next::Wait => {}
            Next::Close => self.close(key),
            // More is there than one portion: go on in the next pass.
            Next::Again => self.home.send(Msg::LetGo(key)),
        }
    }

    /// Frees the slot. The descriptor closes with its last holder.
    pub(super) fn close(&mut self, key: Key) {
        let Some(entry) = self.table.remove(key) else { return };
        let body = entry.body;
        let unsent = !body.flush.is_idle() && !body.flush.is_closed();
        // A call failed on a socket that may be alive (ENOBUFS, ENOMEM): what was queued is gone.
        let failed = matches!(body.reason(), Some(CloseReason::Io { .. }));
        if unsent || failed || body.has_ended(ends::CUT) {
            // What was promised to the peer cannot be sent any more: it must not look whole.
            ending::reset(&body, CloseReason::Local);
        }
        body.store_reason(if body.has_ended(ends::PEER_FIN) { CloseReason::PeerFin } else { CloseReason::Local });
        local::count_here(Count::Closed, 1);
        if body.socket.is_ours() {
            trace::ended(self.home.index, key, body.reason());
        } else if body.socket.is_gone() {
            trace::left(self.home.index, key);
        }
        self.show_open();
        if Arc::strong_count(&body) > 1 || !body.socket.is_ours() {
            // Somebody is inside a call on it, or holds the socket by another descriptor: epoll must forget it now.
            let _ = self.epoll.delete(body.as_fd());
        }
        // The last drop of what was queued may be user code.
        run::caught(|| drop(body));
        if self.listeners.iter().any(super::accept::Listener::is_paused) {
            self.resume_listeners();
        }
    }
}

/// Reads and drops input. True: the portion is used up and there is more.
fn discard(body: &Body, linger: &mut Linger) -> bool {
    let pool = crate::buf::BufPool::of_size(body.home.config.recv_buffer_size);
    let mut fill = pool.fill();
    let mut portion = 0;
    // The edges so far are spent by reading to EAGAIN below.
    body.read.consume();
    loop {
        let mut result = sys::io::recv(body.as_fd(), fill.space());
        local::count_here(Count::Discards, 1);
        if matches!(result, Ok(0)) {
            result = layer::nothing_received(body);
        }
        match result {
            Ok(0) => {
                linger.input_over = true;
                return false;
            }
            Ok(n) => {
                if let Some(again) = linger.count(&mut portion, n) {
                    return again;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) if layer::is_before_record(body, &error) => {
                // Taken, so that the close does not send RST over it.
                let taken = sys::ktls::recv_record(body.as_fd(), fill.space());
                local::count_here(Count::Discards, 1);
                // A server's tickets come before its data. Anything else is most likely the peer's end (law 6).
                if !matches!(taken, Ok((sys::ktls::HANDSHAKE, _)) if fill.space().first() == Some(&NEW_SESSION_TICKET))
                {
                    linger.input_over = true;
                    return false;
                }
                // Whoever sends nothing but tickets does not hold the loop.
                if let Some(again) = linger.count(&mut portion, TICKET_BYTES) {
                    return again;
                }
            }
            Err(error) => {
                body.end(CloseReason::from_io("recv", &error));
                linger.input_over = true;
                return false;
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{DISCARD_BUDGET, Linger, MAX_DISCARD, TICKET_BYTES};

    #[test]
    fn tickets_are_bounded_in_a_turn_and_in_all() {
        let (mut linger, mut taken, mut turns) = (Linger::default(), 0, 0);
        loop {
            let mut portion = 0;
            let again = std::iter::repeat_with(|| {
                taken += 1;
                linger.count(&mut portion, TICKET_BYTES)
            });
            let again = again.take(1000).flatten().next().expect("a turn has an end");
            assert!(portion <= DISCARD_BUDGET);
            turns += 1;
            if !again {
                break;
            }
        }
        assert_eq!((taken, turns), (MAX_DISCARD / TICKET_BYTES, MAX_DISCARD / DISCARD_BUDGET));
    }
}
