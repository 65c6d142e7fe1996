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
//!   own (`conn/connect`). A unix socket counts what it holds in the kernel's memory, several bytes for one of a small
//!   message: there it is restarted when it holds less, or took more.
//! - kernel TLS: a flush that waits for the kernel is looked at, as at an edge (`conn/kernel_tx`). What the kernel took it may
//!   still hold back from TCP, so the send clock goes by what TCP says that the peer acknowledged.
//! - send rate: over every window of 5 to 20 s of a flush in flight, the peer acknowledged `min_send_rate` on average. The
//!   kernel of a slow reader acknowledges in steps: of 131072 bytes of SO_RCVBUF 60 to 130 KB at a time, one of 10 KB/s every
//!   6 to 13 s (Linux 6.18). So a window ends with a step, if one comes in time, or once no step could make up for it.

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
/// Milliseconds over which the send rate is averaged: at least, up to something acknowledged, and at most.
const RATE_WINDOW_MS: u64 = 5000;
const LONGEST_WINDOW_MS: u64 = 20_000;
/// More than this is not acknowledged at one time by a peer that has fallen behind (a sixteenth of its buffer), in bytes.
const MOST_AT_A_TIME: i64 = 1024 * 1024;

/// What the kernel says of a flush.
#[derive(Clone, Copy, Debug)]
struct Sent {
    /// Bytes that the peer took, from some beginning: those acknowledged; of a unix socket those that it found room for. A
    /// connection made of a socket that had sent already begins below zero.
    taken: i64,
    /// What a unix socket holds, as the kernel counts it.
    held: u64,
}

impl Sent {
    /// Did the peer take anything since?
    fn is_past(self, before: Self) -> bool {
        self.taken > before.taken || self.held < before.held
    }
}

/// A window of the rate.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: u64,
    /// Bytes taken when it began, and at most since then.
    first: i64,
    last: i64,
}

/// What the sweep remembers of a connection.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// While a flush is in flight: what was taken when the peer last took anything, and when that was (ms).
    sending: Option<(Sent, u64)>,
    window: Option<Window>,
}

impl Watch {
    /// A flush is in flight and so much is taken: which clock has run out, if any has.
    fn look(&mut self, sent: Sent, now: u64, limit: Duration, rate: u64) -> Option<Clock> {
        if self.is_too_slow(sent.taken, now, rate) {
            return Some(Clock::SendRate);
        }
        match self.sending {
            Some((before, since)) if !sent.is_past(before) => {
                (!limit.is_zero() && u128::from(now - since) > limit.as_millis()).then_some(Clock::Send)
            }
            _ => {
                self.sending = Some((sent, now));
                None
            }
        }
    }

    fn is_too_slow(&mut self, taken: i64, now: u64, rate: u64) -> bool {
        let window = self.window.get_or_insert(Window { began: now, first: taken, last: taken });
        // The count may go back a little: the owner of a flush on another thread adds what the kernel took after the
        // kernel took it.
        let grew = taken > window.last;
        window.last = window.last.max(taken);
        let time = now - window.began;
        if time < RATE_WINDOW_MS {
            return false;
        }
        let due = i64::try_from(rate.saturating_mul(time) / 1000).unwrap_or(i64::MAX);
        let short = due.saturating_sub(window.last - window.first);
        let is_over = grew || time >= LONGEST_WINDOW_MS;
        if is_over && short <= 0 {
            *window = Window { began: now, first: taken, last: taken };
        }
        short > if is_over { 0 } else { MOST_AT_A_TIME }
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
        let sent = match body.has_ended(ends::KERNEL_TX) {
            // It has taken more than TCP was given.
            true => Sent { taken: sys::socket::acknowledged(body.as_fd()).unwrap_or(0) as i64, held: 0 },
            false => {
                let unsent = sys::socket::unsent(body.as_fd()).unwrap_or(0);
                let accepted = body.accepted.load(Ordering::Relaxed) as i64;
                match body.tcp {
                    true => Sent { taken: accepted - unsent as i64, held: 0 },
                    false => Sent { taken: accepted, held: unsent },
                }
            }
        };
        watch.look(sent, now, limit, rate)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Over TCP.
    fn tcp(taken: i64) -> Sent {
        Sent { taken, held: 0 }
    }

    #[test]
    fn the_send_clock_runs_from_the_last_acknowledged_byte() {
        let mut watch = Watch::default();
        for (acknowledged, now, clock) in
            [(0, 0, None), (1, 900, None), (1, 1900, None), (1, 1901, Some(Clock::Send)), (2, 1902, None)]
        {
            assert_eq!(watch.look(tcp(acknowledged), now, SECOND, 0), clock, "at {now}");
        }
        assert_eq!(watch.look(tcp(2), 1_000_000, Duration::ZERO, 0), None, "zero is off");
    }

    /// A socket that had a megabyte on its way when it became a connection: below zero is no standstill.
    #[test]
    fn what_was_sent_before_counts_as_it_is_acknowledged() {
        let mut watch = Watch::default();
        for now in 0..10 {
            assert_eq!(watch.look(tcp(now * 1000 - 1_000_000), now as u64 * 900, SECOND, 0), None, "at {now}");
        }
    }

    /// Small messages: 800 bytes of memory each. What is held says that the peer reads, long before there is room for more;
    /// when there is, more is held again.
    #[test]
    fn on_a_unix_socket_less_held_is_progress_and_so_is_more_taken() {
        let mut watch = Watch::default();
        let looks = [(26_000, 212_000), (26_000, 211_200), (26_000, 60_000), (45_000, 212_000), (45_000, 210_000)];
        for (i, (taken, held)) in looks.into_iter().enumerate() {
            assert_eq!(watch.look(Sent { taken, held }, i as u64 * 900, SECOND, 0), None, "look {i}");
        }
        let stopped = Sent { taken: 45_000, held: 210_000 };
        assert_eq!(watch.look(stopped, 4 * 900 + 1001, SECOND, 0), Some(Clock::Send));
    }

    #[test]
    fn the_rate_is_an_average_over_each_window() {
        let rate = 1000;
        let mut watch = Watch::default();
        assert_eq!(watch.look(tcp(0), 0, Duration::ZERO, rate), None);
        assert_eq!(watch.look(tcp(1), 4999, Duration::ZERO, rate), None, "a window is not judged before its end");
        assert_eq!(watch.look(tcp(5000), 5000, Duration::ZERO, rate), None);
        assert_eq!(watch.look(tcp(9999), 10_000, Duration::ZERO, rate), Some(Clock::SendRate));
    }

    /// What was seen of a reader of 10 KB/s: 40 times the rate, with windows of 5 s in which nothing is acknowledged.
    #[test]
    fn a_peer_that_acknowledges_in_large_steps_is_judged_by_the_steps() {
        let mut watch = Watch::default();
        let (mut taken, mut at) = (0, 0);
        for (gap, step) in [(12_750, 117_772), (6250, 59_392), (12_500, 127_824), (6250, 59_392)] {
            for now in (at..at + gap).step_by(250) {
                assert_eq!(watch.look(tcp(taken), now, 60 * SECOND, 256), None, "at {now}");
            }
            (taken, at) = (taken + step, at + gap);
        }
        // The last of them is too slow for twice the rate that it is, and a trickler's for any.
        assert_eq!(watch.look(tcp(taken), at, 60 * SECOND, 20_000), Some(Clock::SendRate));
        let mut watch = Watch::default();
        assert_eq!(watch.look(tcp(0), 0, 60 * SECOND, 256), None);
        assert_eq!(watch.look(tcp(1), 15_000, 60 * SECOND, 256), Some(Clock::SendRate));
    }

    /// As soon as no step could make up for it, and after 20 s at the latest.
    #[test]
    fn a_peer_that_takes_nothing_falls_short_of_any_rate() {
        for (rate, at) in [(1 << 20, 5000), (100_000, 10_500), (256, 20_000), (1, 20_000)] {
            let mut watch = Watch::default();
            let end = (0..30_000).step_by(250).find(|now| watch.look(tcp(7), *now, Duration::ZERO, rate).is_some());
            assert_eq!(end, Some(at), "{rate} a second");
        }
    }

    /// One that took more than enough in a step is not judged by the silence behind it before a whole window is over.
    #[test]
    fn a_large_step_is_good_for_a_window() {
        let mut watch = Watch::default();
        let looks = [(0, 0), (60_000, 4750), (60_000, 24_500), (60_000, 39_750)];
        for (taken, now) in looks {
            assert_eq!(watch.look(tcp(taken), now, Duration::ZERO, 256), None, "at {now}");
        }
        assert_eq!(watch.look(tcp(60_000), 44_500, Duration::ZERO, 256), Some(Clock::SendRate));
    }

    /// A flush on another thread: the kernel took bytes that `accepted` does not hold yet.
    #[test]
    fn a_count_that_goes_back_is_no_progress_and_no_panic() {
        let mut watch = Watch::default();
        assert_eq!(watch.look(tcp(1000), 0, 4 * SECOND, 1), None);
        assert_eq!(watch.look(tcp(900), 3000, 4 * SECOND, 1), None);
        assert_eq!(watch.look(tcp(1000), 5000, 4 * SECOND, 1), Some(Clock::Send));
    }
}
