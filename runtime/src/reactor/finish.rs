//! Drain and stop: how a reactor ends, and that everything it was told settles.
//!
//! State: none beyond the reactor's. Thread class: reactor only. Laws: 12 (accept queue, posts, timers, parked reads
//! and flushes all resolve, at any race), 6 (what is cut is reset), 10.

use super::Reactor;
use super::table::Entry;
use crate::conn::body::ends;
use crate::conn::ending;
use crate::conn::read_word::Mark;
use crate::error::CloseReason;
use crate::exec::home::{Msg, Stage};
use crate::exec::{local, run};
use crate::stats::Gauge;
use crate::trace;

/// What was left when the reactor ended.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    /// Connections that were cut.
    pub(crate) cut: usize,
}

/// Is nothing more to be sent? Lingering, a shared writer that a drain ended and that somebody still holds, or a
/// connection that moved away or was refused on its way here.
fn is_out(entry: &Entry) -> bool {
    let body = &entry.body;
    if !body.socket.is_ours() {
        return true;
    }
    let ended = body.has_ended(ends::SHARED) && body.has_ended(ends::READER_GONE) && body.flush.is_over();
    body.flush.is_idle() && (entry.linger.is_some() || ended)
}

impl Reactor {
    /// Takes note of a later stage without acting upon it.
    pub(crate) fn note_stage(&mut self) {
        self.stage = self.stage.max(self.home.stage());
    }

    /// Acts upon a later stage, once.
    pub(super) fn follow_stage(&mut self) {
        let asked = self.home.stage();
        if asked == Stage::Draining && self.stage == Stage::Running {
            self.stage = Stage::Draining;
            self.begin_drain();
        }
        let out_of_time = self.home.drain_deadline_ms().is_some_and(|at| self.now_ms >= at);
        if asked >= Stage::Aborting || self.stage == Stage::Draining && (out_of_time || self.all_are_drained()) {
            self.stage = Stage::Aborting;
        }
    }

    /// Here and at the other reactors of the runtime, whose connections tasks of this one may hold.
    fn all_are_drained(&self) -> bool {
        let company = &self.home.company;
        let out = self.is_drained();
        company.set_out(out);
        out && company.all_are_out()
    }

    /// Serves the accept queues, closes the listeners, ends idle connections.
    fn begin_drain(&mut self) {
        trace::drain_begins(self.home.index, self.table.len());
        for index in 0..self.listeners.len() {
            // Bounded: a storm of connects must not hold the drain. The backlog is at most somaxconn.
            self.accept_from(index, 65_536);
        }
        self.close_listeners();
        self.home.drain_waiters.wake_all();
        for index in 0..self.table.slots() {
            if let Some((_, entry)) = self.table.at(index) {
                let body = entry.body.clone();
                ending::refuse_arrival(&body);
                body.signal_reader(Mark::Draining);
                ending::end_if_nobody_is_left(&body);
            }
        }
        self.watches.end_listeners(CloseReason::Draining);
    }

    /// A listener holds its handler, which may hold anything: dropped with no borrow.
    fn close_listeners(&mut self) {
        for listener in std::mem::take(&mut self.listeners) {
            // Explicitly: a ready-made socket may live on in other hands, and would go on reporting here.
            listener.leave(&self.epoll);
            run::caught(|| drop(listener));
        }
    }

    /// Only connections whose output is out are left, if any.
    fn is_drained(&self) -> bool {
        (0..self.table.slots()).filter_map(|index| self.table.at(index)).all(|(_, entry)| is_out(entry))
    }

    /// Ends everything. Afterwards the home says Stopped and nothing is left in it.
    pub(crate) fn teardown(&mut self) -> Ended {
        // A connect from here on is refused; later stages of a drain have done this already.
        self.home.request(Stage::Aborting);
        self.home.company.set_out(true);
        trace::stop_begins(self.home.index, self.table.len());
        self.close_listeners();
        self.home.close_gate();
        self.home.drain_waiters.wake_all();
        self.settle_messages();
        run::discard_all();
        let ended = Ended { cut: self.cut_connections() };
        self.watches.end_all(CloseReason::Aborted);
        // After the connections: a deadline of one that is closed does not look for another timer.
        self.timers.shutdown();
        // Futures and wakers that just went may have posted or spawned.
        self.settle_messages();
        run::discard_all();
        self.home.request(Stage::Stopped);
        while self.home.posts_waiting() > 0 {
            // A producer that was admitted before the gate closed is about to push.
            self.settle_messages();
            std::thread::yield_now();
        }
        self.settle_messages();
        run::discard_all();
        crate::buf::flush_thread_magazine();
        self.home.counts.set(Gauge::Open, 0);
        self.home.counts.set(Gauge::Lingering, 0);
        self.home.counts.set(Gauge::Tasks, 0);
        trace::stopped(self.home.index, ended.cut);
        ended
    }

    /// Takes every message; posts are dropped unrun, which settles their handles with Stopped.
    fn settle_messages(&mut self) {
        while let Some(msg) = self.home.take_message().or_else(local::pop_message) {
            match msg {
                // Let go in good order before the end: no reason to cut it.
                Msg::LetGo(key) => self.let_go(key),
                other => other.settle(),
            }
        }
    }

    /// Closes what is left in the table.
    fn cut_connections(&mut self) -> usize {
        let mut cut = 0;
        for index in 0..self.table.slots() {
            let Some((key, entry)) = self.table.at(index) else { continue };
            // First: an arrival that is neither here nor refused must not look out.
            ending::refuse_arrival(&entry.body);
            let (body, lingers, out) = (entry.body.clone(), entry.linger.is_some(), is_out(entry));
            if !out {
                let is_cut = body.reason().is_none() || !lingers;
                ending::reset(&body, CloseReason::Aborted);
                // One that leaves at this moment is not ended by it.
                cut += usize::from(is_cut && body.socket.is_ours());
            }
            drop(body);
            self.close(key);
        }
        cut
    }
}
