//! One pass of the loop: the phases, in order, and when to sleep.
//!
//! State: none beyond the reactor's. Thread class: reactor only. Laws: 7 (announce, re-check EVERY source, wait; awake
//! directly after every wait), 8 (each phase is bounded and what yields goes to the back), 10.

use super::Reactor;
use crate::exec::home::Stage;
use crate::exec::{late, local};
use crate::stats::{Count, Gauge};
use crate::sys;
use crate::time;
use std::io;

impl Reactor {
    /// One pass. An error is a fault of epoll: the reactor cannot go on.
    pub(crate) fn turn(&mut self) -> io::Result<()> {
        self.turn_for(|| false)
    }

    /// One pass beside which the caller has work of its own; `is_woken` is one more source to be re-checked.
    pub(crate) fn turn_for(&mut self, is_woken: impl Fn() -> bool) -> io::Result<()> {
        let timeout = self.time_to_sleep(is_woken);
        let waited = self.epoll.wait(&mut self.events, timeout);
        self.home.awake();
        let events = waited?;
        let now = sys::clock::monotonic_coarse_ms();
        self.now_ms = now;
        local::set_now_ms(now as u32);
        self.timers.begin_pass();
        self.home.counts.add_own(Count::Passes, 1);
        self.home.counts.add_own(Count::Events, events as u64);

        late::begin();
        self.dispatch(events);
        late::end();
        // An awake reactor gets no event for what other threads send it.
        let posted = self.read_inbox();
        let nobody_came = !posted && events == 0;
        self.accept_ready();
        self.serve_owed(nobody_came);
        if self.timers.next_deadline().is_some() && self.timers.fire(time::now()) > 0 {
            self.home.counts.add_own(Count::Panics, self.timers.take_wake_panics());
        }
        self.sweep_if_due(now);
        let polls = self.run_tasks();
        self.read_own_messages();

        self.home.counts.set(Gauge::Lingering, self.table.lingering());
        self.home.counts.set(Gauge::Tasks, local::with_tasks(|tasks| tasks.live()));
        self.moderate(events, posted, polls);
        Ok(())
    }

    /// How many milliseconds epoll may wait (not a `Duration`: taking one apart costs 5 instructions a request);
    /// announces the sleep if it may wait at all.
    fn time_to_sleep(&self, is_woken: impl Fn() -> bool) -> Option<u64> {
        if self.is_runnable() {
            return Some(0);
        }
        #[cfg(epoxide_chaos)]
        sys::chaos::pause(sys::chaos::Call::Sleep);
        self.home.announce_sleep();
        // Whatever other threads published before they looked at the flag is visible from here on.
        if self.home.has_wakes() || self.home.has_messages() || self.home.stage() != self.stage || is_woken() {
            self.home.awake();
            return Some(0);
        }
        // From this pass's time: the tick may be late by what the pass took, and the clock is read once a pass.
        let tick = self.sweep.time_to_tick(self.now_ms, self.needs_tick());
        let timer = self.timers.next_deadline().map(|at| sys::whole_ms(at.saturating_duration_since(time::now())));
        let drain = match self.home.drain_deadline_ms() {
            Some(at) if self.ends_itself && self.stage == Stage::Draining => {
                // Seldom, so the clock itself: the pass may have taken long.
                Some(at.saturating_sub(sys::clock::monotonic_coarse_ms()))
            }
            _ => None,
        };
        sooner(sooner(tick, timer), drain)
    }

    /// Is there work that only this thread can have made?
    pub(super) fn is_runnable(&self) -> bool {
        local::with_tasks(|tasks| tasks.has_ready()) || local::messages_len() > 0 || !self.owed.is_empty()
    }

    /// Are there clocks to look after?
    fn needs_tick(&self) -> bool {
        self.table.len() > 0 || self.listeners.iter().any(super::accept::Listener::is_paused)
    }

    /// Runs until the reactor is asked to abort, or a drain has nothing left to wait for. An error is a fault: epoll
    /// failed, or a listener did and accepting can never go on.
    pub(crate) fn run_to_end(&mut self) -> io::Result<()> {
        self.ends_itself = true;
        loop {
            self.follow_stage();
            if self.stage >= Stage::Aborting {
                return Ok(());
            }
            self.turn()?;
            if let Some(fault) = self.fault.take() {
                return Err(fault);
            }
        }
    }
}

/// The shorter of two waits; `None` is for ever.
#[inline]
fn sooner(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        _ => one.or(other),
    }
}
