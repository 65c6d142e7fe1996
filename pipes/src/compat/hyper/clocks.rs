//! The clocks of a served connection, and its drain.
//!
//! Job: say when a head took too long, when an idle connection ends, when a drain is told. State owned: one sleep and the
//! phase that it counts for. Thread class: the task that drives the connection. Laws kept: 6, 16.

use super::options::HttpOptions;
use super::tracked::Requests;
use epoxide::Draining;
use epoxide::time::{self, Sleep};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How long nothing may happen at the end of an HTTP/2 connection, when no stream is open any more.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Shorter than every clock, and not zero, which is off.
pub(super) const MOMENT: Duration = Duration::from_nanos(1);

/// What the driver does next.
pub(super) enum Next {
    /// Polls hyper again.
    Again,
    EndGracefully,
    /// Lets the connection go.
    Drop,
}

/// The clocks of one connection, and its drain.
pub(super) struct Clocks {
    requests: Arc<Requests>,
    options: HttpOptions,
    http2: bool,
    draining: Draining,
    phase: Phase,
    /// Requests begun, and at the end traffic, when the phase's clock was set.
    seen: usize,
    sleep: Sleep,
    /// hyper was told to end.
    ending: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Head,
    Busy,
    /// Nothing is left to be served: the last bytes go out.
    Ending,
}

impl Clocks {
    pub(super) fn new(requests: Arc<Requests>, options: HttpOptions, http2: bool, draining: Draining) -> Self {
        let sleep = time::sleep_until(Instant::now());
        // The first phase differs, so that its clock is set at the first look.
        Self { requests, options, http2, draining, phase: Phase::Busy, seen: 0, sleep, ending: false }
    }

    /// Called with hyper pending.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        let phase = self.phase_now();
        let seen = self.requests.begun() + if phase == Phase::Ending { self.requests.traffic() } else { 0 };
        if phase != self.phase || seen != self.seen {
            self.enter(phase, seen);
        }
        if (self.http2 || phase == Phase::Busy) && !self.ending && Pin::new(&mut self.draining).poll(cx).is_ready() {
            return self.end();
        }
        let limit = self.limit(phase);
        if limit.is_zero() || Pin::new(&mut self.sleep).poll(cx).is_pending() {
            return Poll::Pending;
        }
        match phase {
            // HTTP/2: time to look again.
            Phase::Busy => self.enter(phase, seen),
            Phase::Head => self.requests.time_out_head(),
            Phase::Idle => return self.end(),
            Phase::Ending => return Poll::Ready(Next::Drop),
        }
        Poll::Ready(Next::Again)
    }

    /// HTTP/1 with a request under way, and the drain has just been seen.
    pub(super) fn drains_now(&mut self) -> bool {
        let drains = !self.ending && !self.http2 && self.phase_now() == Phase::Busy && self.draining.has_begun();
        self.ending |= drains;
        drains
    }

    fn end(&mut self) -> Poll<Next> {
        self.ending = true;
        Poll::Ready(Next::EndGracefully)
    }

    fn phase_now(&self) -> Phase {
        if self.requests.active() > 0 {
            Phase::Busy
        } else if self.ending {
            Phase::Ending
        } else if self.requests.is_in_head() {
            Phase::Head
        } else {
            Phase::Idle
        }
    }

    fn enter(&mut self, phase: Phase, seen: usize) {
        (self.phase, self.seen) = (phase, seen);
        let limit = self.limit(phase);
        if !limit.is_zero() {
            let now = Instant::now();
            self.sleep.reset(now.checked_add(limit).unwrap_or(now + FAR));
        }
    }

    /// Zero: no clock.
    fn limit(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Idle => self.options.idle_timeout,
            Phase::Head => self.options.head_timeout,
            // Requests that end on other tasks are seen at the next look.
            Phase::Busy if self.http2 => look_after(self.options.idle_timeout),
            Phase::Busy => Duration::ZERO,
            Phase::Ending if self.http2 => LAST_WORDS,
            // hyper ends it once everything is sent, and `send_timeout` bounds that.
            Phase::Ending => Duration::ZERO,
        }
    }
}

/// How long an HTTP/2 connection is left alone before it is looked at whether it is busy still. Without an idle clock
/// only the end of a connection hangs on it.
fn look_after(idle_timeout: Duration) -> Duration {
    if idle_timeout.is_zero() { LAST_WORDS } else { (idle_timeout / 16).clamp(MOMENT, LAST_WORDS) }
}

/// A deadline past what the clock can say is this far ahead.
const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    /// A look costs a poll of the whole connection: never one after the other.
    #[test]
    fn looks_are_rare_whatever_the_idle_clock_is() {
        for (idle, look) in [
            (Duration::ZERO, LAST_WORDS),
            (Duration::MAX, LAST_WORDS),
            (Duration::from_secs(60), Duration::from_millis(3750)),
            (Duration::from_millis(160), Duration::from_millis(10)),
        ] {
            assert_eq!(look_after(idle), look, "idle {idle:?}");
        }
    }
}
