//! The tick, every 250 ms: read and send clocks, lingering, paused listeners, unused buffers.
//!
//! State: when the next tick is due and where the walk stands; one `Watch` a connection. Thread class: reactor only.
//! Laws: 6, 8 (a tick looks at a bounded part of the table), 11, and the clocks' rules:
//!
//! - read clock: runs while a read is parked and no flush is in flight; every park, recv and send restarts it. When it
//!   has run out the reader is asked, and ends the connection itself: a read that was given up while it was parked is
//!   nobody's (`conn/read_word`). So a busy handler is never timed out.
//! - send clock: runs while a flush is in flight; restarted when the peer acknowledged something: (bytes the kernel
//!   took - bytes it still holds) grew. A slow steady reader lives, a stopped one does not. A connect has a clock of its
//!   own (`conn/connect`).
//! - kernel TLS: a flush that waits for the kernel is looked at, as at an edge (`conn/kernel_tx`). What the kernel took it may
//!   still hold back from TCP, so the send clock goes by what TCP says that the peer acknowledged.
//! - send rate: over every window of 5 s of a flush in flight, the peer acknowledged `min_send_rate` on average.

use super::Reactor;
use crate::conn::body::{Body, REACTORS_RATE, ends};
use crate::conn::{deadline, drive};
use crate::error::{Clock, CloseReason};
use crate::id::Key;
use crate::sync::plain::Ordering;
use crate::sys;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

/// Milliseconds between two ticks.
const TICK_MS: u64 = 250;
/// Connections looked at per tick at least; large tables are walked in sixteenths.
const PORTION: usize = 1024;
/// Ticks between two returns of unused buffers to the system (4 s).
const SHRINK_TICKS: u64 = 16;
/// Milliseconds over which the send rate is averaged.
const RATE_WINDOW_MS: u64 = 5000;

/// What the sweep remembers of a connection.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// While a flush is in flight: bytes acknowledged at the last growth, and when that was (ms).
    sending: Option<(u64, u64)>,
    /// The same for the start of the rate's window.
    window: Option<(u64, u64)>,
}

impl Watch {
    /// A flush is in flight and so many bytes are acknowledged: which clock has run out, if any has.
    fn look(&mut self, acknowledged: u64, now: u64, limit: Duration, rate: u64) -> Option<Clock> {
        let &mut (begun, from) = self.window.get_or_insert((acknowledged, now));
        if rate > 0 && now - from >= RATE_WINDOW_MS {
            // The count may go back a little: the owner of a flush on another thread adds what the kernel took after
            // the kernel took it.
            let taken = acknowledged.saturating_sub(begun);
            if taken.saturating_mul(1000) < rate.saturating_mul(now - from) {
                return Some(Clock::SendRate);
            }
            self.window = Some((acknowledged, now));
        }
        match self.sending {
            Some((before, since)) if acknowledged <= before => {
                (!limit.is_zero() && u128::from(now - since) > limit.as_millis()).then_some(Clock::Send)
            }
            _ => {
                self.sending = Some((acknowledged, now));
                None
            }
        }
    }
}

/// See the module's text.
pub(super) struct Sweep {
    due: u64,
    ticks: u64,
    /// Ticks go on until this one, though nobody is connected.
    needed_until: u64,
    cursor: usize,
}

impl Sweep {
    pub(super) fn new(now: u64) -> Self {
        Self { due: now + TICK_MS, ticks: 0, needed_until: 0, cursor: 0 }
    }

    /// Milliseconds until the tick, if it is needed at all.
    pub(super) fn time_to_tick(&self, now: u64, needed: bool) -> Option<u64> {
        (needed || self.ticks < self.needed_until).then(|| self.due.saturating_sub(now))
    }
}

impl Reactor {
    #[inline(always)]
    pub(super) fn sweep_if_due(&mut self, now: u64) {
        if now >= self.sweep.due {
            self.sweep(now);
        }
    }

    #[inline(never)]
    fn sweep(&mut self, now: u64) {
        self.sweep.due = now + TICK_MS;
        self.sweep.ticks += 1;
        self.end_episodes();
        self.resume_listeners();
        let slots = self.table.slots();
        let portion = slots.min(PORTION.max(slots.div_ceil(16)));
        for _ in 0..portion {
            self.sweep.cursor = if self.sweep.cursor + 1 < slots { self.sweep.cursor + 1 } else { 0 };
            self.look_at(self.sweep.cursor, now);
        }
        if self.table.len() > 0 {
            // Buffers that a burst left behind are seen to be unused only some ticks after it.
            self.sweep.needed_until = self.sweep.ticks + 3 * SHRINK_TICKS;
        }
        if self.sweep.ticks.is_multiple_of(SHRINK_TICKS) {
            crate::buf::BufPool::shrink_all();
        }
    }

    /// The tasks of this pass took long. What they did on connections carries the time at which the pass began, so that
    /// the clocks of all would run ahead: it happened by now.
    #[cold]
    pub(super) fn date_anew(&self, now: u64) {
        for index in 0..self.table.slots() {
            if let Some((_, entry)) = self.table.at(index) {
                let began = self.now_ms as u32;
                // Another thread's stamp meanwhile is a true one.
                let _ = entry.body.activity.compare_exchange(began, now as u32, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
    }

    fn look_at(&mut self, index: usize, now: u64) {
        let Some((key, entry)) = self.table.at(index) else { return };
        let lingers = entry.linger.is_some();
        let body = Arc::clone(&entry.body);
        if let Some(clock) = self.send_clock(key, &body, now) {
            deadline::ran_out(&body, CloseReason::Timeout(clock));
        } else if !lingers
            && body.read.is_parked()
            && deadline::read_clock_ran_out(&body, now as u32)
            && let Some(waiter) = body.read.ask()
        {
            body.wake_reader(waiter);
        } else if body.has_ended(ends::KERNEL_TX) && body.flush.writable() {
            // What the kernel's TLS holds back it sends by itself, and no edge tells.
            drive::drive_as_reactor(&body);
        }
        drop(body);
        if lingers {
            self.attend_linger(key);
        }
    }

    /// Which of the send clocks has run out, if any has.
    fn send_clock(&mut self, key: Key, body: &Body, now: u64) -> Option<Clock> {
        let limit = self.home.config.send_timeout;
        let rate = match body.min_send_rate.load(Ordering::Relaxed) {
            REACTORS_RATE => self.home.config.min_send_rate,
            own => own,
        };
        let watch = &mut self.table.get_mut(key)?.watch;
        if body.flush.is_idle() || body.flush.is_closed() || body.has_ended(ends::CONNECTING) {
            *watch = Watch::default();
            return None;
        }
        let acknowledged = match body.has_ended(ends::KERNEL_TX) {
            // It has taken more than TCP was given.
            true => sys::socket::acknowledged(body.as_fd()).unwrap_or(0),
            false => {
                let unsent = sys::socket::unsent(body.as_fd()).unwrap_or(0);
                body.accepted.load(Ordering::Relaxed).saturating_sub(unsent)
            }
        };
        watch.look(acknowledged, now, limit, rate)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_send_clock_runs_from_the_last_acknowledged_byte() {
        let mut watch = Watch::default();
        for (acknowledged, now, clock) in
            [(0, 0, None), (1, 900, None), (1, 1900, None), (1, 1901, Some(Clock::Send)), (2, 1902, None)]
        {
            assert_eq!(watch.look(acknowledged, now, SECOND, 0), clock, "at {now}");
        }
        assert_eq!(watch.look(2, 1_000_000, Duration::ZERO, 0), None, "zero is off");
    }

    #[test]
    fn the_rate_is_an_average_over_each_window() {
        let rate = 1000;
        let mut watch = Watch::default();
        assert_eq!(watch.look(0, 0, Duration::ZERO, rate), None);
        assert_eq!(watch.look(1, 4999, Duration::ZERO, rate), None, "a window is not judged before its end");
        assert_eq!(watch.look(5000, 5000, Duration::ZERO, rate), None);
        assert_eq!(watch.look(9999, 10_000, Duration::ZERO, rate), Some(Clock::SendRate));
    }

    /// A flush on another thread: the kernel took bytes that `accepted` does not hold yet.
    #[test]
    fn a_count_that_goes_back_is_no_progress_and_no_panic() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(1000, 0, Duration::ZERO, 1), None);
        assert_eq!(watch.look(900, 5000, Duration::ZERO, 1), Some(Clock::SendRate));
    }
}
