//! Connections that their handlers let go of: discard input until the peer's FIN, within bounds, then close.
//!
//! State: one `Linger` a connection, in its table entry. Thread class: reactor only. Laws: 6 (close(2) with unread
//! input would send RST and could destroy the last answer on the client; RFC 1122, 4.2.2.13), 16.

use super::Reactor;
use crate::conn::body::ends;
use crate::conn::ending;
use crate::error::CloseReason;
use crate::exec::local;
use crate::id::Key;
use crate::stats::Count;
use crate::sys;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Input that is discarded at most before the connection is closed all the same, in bytes.
const MAX_DISCARD: usize = 1024 * 1024;
/// Input that is discarded in one go, in bytes.
const DISCARD_BUDGET: usize = 256 * 1024;

/// How far a lingering connection is.
#[derive(Debug, Default)]
pub(super) struct Linger {
    discarded: usize,
    /// The peer's FIN came, or the socket failed: nothing more is to be read.
    input_over: bool,
    /// When the output was seen to be out (milliseconds of the coarse clock).
    since: Option<u64>,
}

impl Reactor {
    /// Both halves of a connection are gone.
    pub(super) fn begin_linger(&mut self, key: Key) {
        let Some(entry) = self.table.get(key) else { return };
        entry.body.forget_waiters();
        if entry.body.has_ended(ends::TAKEN) {
            self.close(key);
            return;
        }
        let linger = Linger { input_over: entry.body.has_ended(ends::PEER_FIN), ..Linger::default() };
        self.table.set_lingering(key, linger);
        // At once, not at the next edge: it may be spent.
        self.attend_linger(key);
    }

    /// Looks at a lingering connection after anything that may have brought it further.
    pub(super) fn attend_linger(&mut self, key: Key) {
        let home = self.home.clone();
        let now = self.now_ms;
        let Some(entry) = self.table.get_mut(key) else { return };
        let body = Arc::clone(&entry.body);
        let Some(linger) = &mut entry.linger else { return };
        let mut again = false;
        if !linger.input_over && !body.flush.is_closed() {
            again = discard(&body, linger);
        }
        if !body.flush.is_idle() && !body.flush.is_closed() {
            // The send clock bounds this part; the peer may be slow.
            linger.since = None;
            return;
        }
        let since = *linger.since.get_or_insert(now);
        let bound = match (home.config.linger, home.config.read_timeout) {
            (Duration::ZERO, _) => Duration::ZERO,
            (linger, Duration::ZERO) => linger,
            (linger, read) => linger.min(read),
        };
        let over = linger.input_over
            || body.flush.is_closed()
            || linger.discarded >= MAX_DISCARD
            || u128::from(now.saturating_sub(since)) >= bound.as_millis();
        if over {
            self.close(key);
        } else if again {
            // More is there than one portion: go on in the next pass.
            home.send(crate::exec::home::Msg::LetGo(key));
        }
    }

    /// Frees the slot. The descriptor closes with its last holder.
    pub(super) fn close(&mut self, key: Key) {
        let Some(entry) = self.table.remove(key) else { return };
        let body = entry.body;
        if !body.flush.is_idle() && !body.flush.is_closed() {
            // What was promised to the peer cannot be sent any more: it must not look whole.
            ending::reset(&body, CloseReason::Local);
        }
        body.store_reason(if body.has_ended(ends::PEER_FIN) { CloseReason::PeerFin } else { CloseReason::Local });
        local::count_here(Count::Closed, 1);
        self.show_open();
        if Arc::strong_count(&body) > 1 || body.has_ended(ends::TAKEN) {
            // Somebody is inside a call on it, or holds the socket by another descriptor: epoll must forget it now.
            let _ = self.epoll.delete(body.as_fd());
        }
        drop(body);
        if self.listeners.iter().any(super::accept::Listener::is_paused) {
            self.resume_listeners();
        }
    }
}

/// Reads and drops input. True: the portion is used up and there is more.
fn discard(body: &crate::conn::body::Body, linger: &mut Linger) -> bool {
    let pool = crate::buf::BufPool::of_size(body.home.config.recv_buffer_size);
    let mut fill = pool.fill();
    let mut portion = 0;
    // The edges so far are spent by reading to EAGAIN below.
    body.read.consume();
    loop {
        let result = sys::io::recv(body.as_fd(), fill.space());
        local::count_here(Count::Discards, 1);
        match result {
            Ok(0) => {
                linger.input_over = true;
                return false;
            }
            Ok(n) => {
                linger.discarded += n;
                portion += n;
                if linger.discarded >= MAX_DISCARD {
                    return false;
                }
                if portion >= DISCARD_BUDGET {
                    return true;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(error) => {
                body.end(CloseReason::from_io("recv", &error));
                linger.input_over = true;
                return false;
            }
        }
    }
}
