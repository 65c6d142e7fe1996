//! What comes from elsewhere: connections that no listener of this reactor accepted, and watched descriptors.
//!
//! State: none beyond the reactor's. Thread class: reactor only. Laws: 3 (a new body's flush is Blocked, and claimed
//! here), 4 (slot first, then ADD), 6, 9 (who comes second, the user that leaves or the reactor that adopts, sees the
//! other), 12.

use super::Reactor;
use crate::conn::body::{Body, ends};
use crate::conn::read_word::Mark;
use crate::conn::watch::Watch;
use crate::conn::{drive, ending};
use crate::error::CloseReason;
use crate::exec::home::{Guest, Stage};
use crate::exec::{local, run};
use crate::id::Key;
use crate::stats::Count;
use crate::sync::plain::Ordering;
use crate::sys;
use std::any::Any;
use std::os::fd::AsFd;
use std::sync::Arc;

impl Reactor {
    pub(super) fn adopt(&mut self, guest: Arc<dyn Guest>) {
        let guest: Arc<dyn Any + Send + Sync> = guest;
        match guest.downcast::<Body>() {
            Ok(body) => {
                self.adopt_connection(&body);
                // Perhaps the last holder, and a waker may be left in it: its drop is user code.
                run::caught(|| drop(body));
            }
            Err(other) => {
                if let Ok(watch) = other.downcast::<Watch>() {
                    self.adopt_watch(&watch);
                }
            }
        }
    }

    fn adopt_connection(&mut self, body: &Arc<Body>) {
        // The home's word, not ours: what was asked for while this reactor was busy counts.
        if self.home.stage() >= Stage::Draining && ending::refuse_arrival(body) {
            return;
        }
        local::count_here(Count::Adopted, 1);
        if let Err(error) = self.register(body) {
            ending::reset(body, CloseReason::from_io("epoll_ctl", &error));
            return;
        }
        let key = body.key();
        let before = body.ends.fetch_or(ends::KNOWN, Ordering::AcqRel);
        if self.stage >= Stage::Draining {
            body.signal_reader(Mark::Draining);
        }
        // A connect is claimed by the edge that decides it; for others the key was all that was missing.
        if before & ends::CONNECTING == 0 && body.flush.writable() {
            drive::drive_as_reactor(body);
        }
        if ends::are_both_gone(before) {
            self.begin_linger(key);
        }
    }

    fn adopt_watch(&mut self, watch: &Arc<Watch>) {
        if self.stage >= Stage::Draining && watch.listens {
            watch.end(CloseReason::Draining);
        }
        let key = self.watches.insert(watch.clone());
        if let Err(error) = self.epoll.add(watch.as_fd(), sys::epoll::CONN_INTEREST, key.0) {
            self.watches.remove(key);
            watch.end(CloseReason::from_io("epoll_ctl", &error));
            return;
        }
        if watch.set_known() {
            self.let_go(key);
        }
    }

    /// Whoever used it is gone.
    pub(super) fn let_go(&mut self, key: Key) {
        if !key.is_watch() {
            self.begin_linger(key);
        } else if let Some(watch) = self.watches.remove(key) {
            // The file may be open elsewhere, and epoll goes by files: closing the descriptor is not enough.
            let _ = self.epoll.delete(watch.as_fd());
        }
    }
}
