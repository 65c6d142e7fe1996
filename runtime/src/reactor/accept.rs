//! Listeners: accept within a budget, hand each connection to its handler, back off when descriptors run out.
//!
//! State: one `Listener` each. Thread class: reactor only. Laws: 4 (level-triggered; the table entry is published
//! BEFORE the socket is registered), 5 (an accepted descriptor is owned at once), 8, 10, 16, section "sweep": a listener
//! paused by EMFILE, ENFILE, ENOBUFS or ENOMEM is tried again by the tick; one line is logged per episode.

use super::Reactor;
use crate::conn::body::Body;
use crate::conn::connection::Connection;
use crate::conn::ending;
use crate::conn::read_word::Mark;
use crate::error::{CloseReason, complain};
use crate::exec::header::Header;
use crate::exec::home::Stage;
use crate::exec::task::Task;
use crate::exec::{local, run};
use crate::id::ListenerId;
use crate::stats::{Count, Gauge};
use crate::sync::limit::{Limit, Place};
use crate::sys::epoll::Epoll;
use crate::sys::socket::UnixPath;
use crate::{sys, trace};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::Location;
use std::sync::Arc;

/// Turns a connection into the task that serves it.
pub(crate) struct Handler {
    pub(crate) serve: Box<dyn Fn(Connection, Arc<Header>) -> Task>,
    /// Where the listener was named: what a report calls the tasks of its connections.
    pub(crate) at: &'static Location<'static>,
}

/// A listening socket on this reactor.
pub(crate) struct Listener {
    fd: OwnedFd,
    /// Unlinked once the last reactor has closed the socket.
    _path: Option<Arc<UnixPath>>,
    id: ListenerId,
    handler: Handler,
    tcp: bool,
    /// Shared with the listeners of other reactors: exclusive wake-ups, few accepts a pass.
    shared: bool,
    /// The last event said that somebody waits, and the last accept did not say otherwise.
    pub(super) ready: bool,
    /// Connections of this listener, over all reactors.
    limit: Option<Arc<Limit>>,
    /// Out of epoll until the tick, or until a connection closes.
    paused: bool,
    /// One line was logged for this episode, which ends with a tick without want.
    complained: bool,
    /// Out of descriptors or memory since the last tick.
    starved: bool,
}

impl Listener {
    pub(crate) fn new(
        fd: OwnedFd,
        path: Option<Arc<UnixPath>>,
        id: ListenerId,
        shared: bool,
        limit: Option<Arc<Limit>>,
        handler: Handler,
    ) -> Self {
        let tcp = sys::socket::is_tcp(fd.as_fd());
        Self {
            fd,
            _path: path,
            id,
            handler,
            tcp,
            shared,
            limit,
            ready: false,
            paused: false,
            complained: false,
            starved: false,
        }
    }

    /// Out of epoll, for good.
    pub(super) fn leave(&self, epoll: &Epoll) {
        if !self.paused {
            // It may be gone already; then there is nothing to leave.
            let _ = epoll.delete(self.fd.as_fd());
        }
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }
}

/// What one accept said.
pub(crate) enum Accepted {
    Connection(OwnedFd),
    /// Nobody waits.
    Empty,
    /// This connection failed; the next one may not (accept(2): treat them like EAGAIN by retrying).
    Skip,
    /// Out of descriptors or memory.
    Starved(io::Error),
    /// The listener is of no use any more.
    Fault(io::Error),
}

impl Reactor {
    /// Adds a listener; accepting starts with the next pass.
    pub(crate) fn add_listener(&mut self, listener: Listener) -> io::Result<()> {
        let index = self.listeners.len() as u64;
        self.epoll.add(listener.fd.as_fd(), interest(&listener), index)?;
        self.listeners.push(listener);
        Ok(())
    }

    /// Accepts from each listener that has something, within its budget.
    #[inline(always)]
    pub(super) fn accept_ready(&mut self) {
        // Level-triggered: what a pass leaves is said again.
        if std::mem::take(&mut self.accept_due) {
            self.accept_from_all();
        }
    }

    #[inline(never)]
    fn accept_from_all(&mut self) {
        for index in 0..self.listeners.len() {
            if self.listeners[index].ready && !self.listeners[index].paused {
                let budget = if self.listeners[index].shared { 4 } else { self.home.config.accept_budget };
                self.accept_from(index, budget);
            }
        }
    }

    /// Accepts until the queue is empty or the budget used. False: there may be more.
    pub(super) fn accept_from(&mut self, index: usize, budget: usize) -> bool {
        // Level-triggered: if anybody is left, the next wait says so again.
        self.listeners[index].ready = false;
        for _ in 0..budget {
            // Places first: past the limit nothing is accepted, and the kernel's queue holds the rest.
            let Some(places) = self.places(index) else {
                local::count_here(Count::AcceptLimited, 1);
                trace::paused_full(self.home.index, self.listeners[index].id);
                self.take_out(index);
                return true;
            };
            match accept(self.listeners[index].fd.as_fd()) {
                Accepted::Connection(fd) => {
                    self.welcome(index, fd, places);
                }
                Accepted::Empty => return true,
                Accepted::Skip => {}
                Accepted::Starved(error) => {
                    local::count_here(Count::AcceptStarved, 1);
                    self.pause(index, &error);
                    return true;
                }
                Accepted::Fault(error) => {
                    self.listener_fault(index, error);
                    return true;
                }
            }
        }
        false
    }

    /// A new connection: a body, a table entry, the registration, the handler's future.
    fn welcome(&mut self, index: usize, fd: OwnedFd, places: [Option<Place>; 2]) {
        let listener = &self.listeners[index];
        if listener.tcp {
            // A reset in the meantime is the only way this can fail; the first recv will say so.
            let _ = sys::socket::set_nodelay(fd.as_fd(), true);
        }
        let body = Arc::new(Body::new(fd, listener.tcp, self.home.clone(), listener.id, places));
        local::count_here(Count::Accepted, 1);
        if let Err(error) = self.register(&body) {
            // No handler will ever see it: a FIN would look like an empty answer.
            ending::reset(&body, CloseReason::from_io("epoll_ctl", &error));
            self.pause(index, &error);
            return;
        }
        if self.stage >= Stage::Draining {
            body.signal_reader(Mark::Draining);
        }
        trace::accepted(self.home.index, self.listeners[index].id, body.key());
        let connection = Connection::new(body);
        let handler = &self.listeners[index].handler;
        let header = local::header(handler.at).unwrap_or_else(|| Header::new(self.home.clone(), handler.at));
        let mut task = None;
        run::caught(|| task = Some((handler.serve)(connection, header)));
        if let Some(task) = task {
            local::insert_task(task);
        }
    }

    /// Gives a connection its slot, then tells epoll, once and for all (law 4).
    pub(super) fn register(&mut self, body: &Arc<Body>) -> io::Result<()> {
        let key = self.table.insert(body.clone());
        let registered = self.epoll.add(body.as_fd(), sys::epoll::CONN_INTEREST, key.0);
        if registered.is_err() {
            self.table.remove(key);
            local::count_here(Count::Closed, 1);
        }
        self.show_open();
        registered
    }

    /// The gauge follows every change at once, so that on this thread `accepted + adopted - closed` is always `open`.
    pub(super) fn show_open(&self) {
        self.home.counts.set(Gauge::Open, self.table.len());
    }

    /// Out of descriptors or memory: level-triggered epoll would spin, so the listener leaves it until the tick.
    fn pause(&mut self, index: usize, error: &io::Error) {
        let listener = &mut self.listeners[index];
        trace::paused_starved(self.home.index, listener.id, error);
        listener.starved = true;
        if !listener.complained {
            listener.complained = true;
            complain(format_args!(
                "reactor {}: accept on listener {} failed: {error}; trying again every 250 ms",
                self.home.index, listener.id.0
            ));
        }
        self.take_out(index);
    }

    fn take_out(&mut self, index: usize) {
        let listener = &mut self.listeners[index];
        if !listener.paused && self.epoll.delete(listener.fd.as_fd()).is_ok() {
            listener.paused = true;
        }
    }

    /// A place within each limit, if there is one in all of them.
    fn places(&self, index: usize) -> Option<[Option<Place>; 2]> {
        let of_runtime = self.limit.take()?;
        let of_listener = match &self.listeners[index].limit {
            Some(limit) => Some(limit.take()?),
            None => None,
        };
        Some([Some(of_runtime), of_listener])
    }

    /// The tick: an episode of want ends when none was met since the last one.
    pub(super) fn end_episodes(&mut self) {
        for listener in &mut self.listeners {
            listener.complained &= listener.starved;
            listener.starved = false;
        }
    }

    /// The tick, and a connection that closed: paused listeners try again, if they may accept anybody.
    pub(super) fn resume_listeners(&mut self) {
        if self.limit.is_full() {
            return;
        }
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            let full = listener.limit.as_ref().is_some_and(|limit| limit.is_full());
            if listener.paused && !full && self.epoll.add(listener.fd.as_fd(), interest(listener), index as u64).is_ok()
            {
                listener.paused = false;
                trace::resumed(self.home.index, listener.id);
            }
        }
    }

    /// The listener cannot be used any more: out of epoll, and reported.
    fn listener_fault(&mut self, index: usize, error: io::Error) {
        let listener = &mut self.listeners[index];
        let _ = self.epoll.delete(listener.fd.as_fd());
        let text = format!("listener {} failed and accepts no more: {error}", listener.id.0);
        self.fault = Some(io::Error::new(error.kind(), text));
    }
}

fn interest(listener: &Listener) -> u32 {
    if listener.shared { sys::epoll::IN | sys::epoll::EXCLUSIVE } else { sys::epoll::IN }
}

/// One accept4(2).
pub(crate) fn accept(fd: BorrowedFd<'_>) -> Accepted {
    match sys::socket::accept(fd) {
        Ok(fd) => Accepted::Connection(fd),
        Err(error) => classify(error),
    }
}

/// By errno, as accept(2) asks.
fn classify(error: io::Error) -> Accepted {
    use sys::errno;
    match error.raw_os_error() {
        Some(errno::EAGAIN) => Accepted::Empty,
        Some(errno::EMFILE | errno::ENFILE | errno::ENOBUFS | errno::ENOMEM) => Accepted::Starved(error),
        Some(
            errno::ECONNABORTED
            | errno::EPERM
            | errno::ENETDOWN
            | errno::EPROTO
            | errno::ENOPROTOOPT
            | errno::EHOSTDOWN
            | errno::ENONET
            | errno::EHOSTUNREACH
            | errno::ENETUNREACH
            | errno::ETIMEDOUT,
        ) => Accepted::Skip,
        _ => Accepted::Fault(error),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sys::errno;

    #[test]
    fn accept_errors_are_sorted_by_what_can_be_done() {
        let of = |n| classify(io::Error::from_raw_os_error(n));
        assert!(matches!(of(errno::EAGAIN), Accepted::Empty));
        for n in [errno::EMFILE, errno::ENFILE, errno::ENOBUFS, errno::ENOMEM] {
            assert!(matches!(of(n), Accepted::Starved(_)), "{n}");
        }
        for n in [errno::ECONNABORTED, errno::EPERM, errno::EPROTO, errno::ENETDOWN, errno::EHOSTUNREACH] {
            assert!(matches!(of(n), Accepted::Skip), "{n}");
        }
        for n in [errno::EBADF, errno::EINVAL, errno::EOPNOTSUPP, errno::ENOTSOCK] {
            assert!(matches!(of(n), Accepted::Fault(_)), "{n}");
        }
    }
}
