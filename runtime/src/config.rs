//! What a reactor can be told: sizes, budgets, clocks, limits.
//!
//! Job: the public configuration and its validation at construction. State: none. Thread class: pure. Laws: 8, 16.

use std::io;
use std::time::Duration;

/// How a reactor works. Every field has a default that suits a server; a `Duration` of zero switches a clock off.
///
/// Bad values are refused by `build()` with an error that names the field and its limit.
///
/// ```
/// use epoxide::{ReactorConfig, Runtime};
/// use std::time::Duration;
///
/// let patient = ReactorConfig { read_timeout: Duration::from_secs(600), ..ReactorConfig::default() };
/// let server = Runtime::builder().reactors(1).config(patient.clone()).build().unwrap();
/// let refused = Runtime::builder().config(ReactorConfig { max_posts: 0, ..patient }).build().unwrap_err();
/// assert!(refused.to_string().contains("max_posts"));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReactorConfig {
    /// Bytes of a receive buffer, 1 to 1 GiB. Default 16 KiB.
    pub recv_buffer_size: usize,
    /// The largest buffer, in bytes, that `read_more` grows to. Default 1 MiB.
    pub max_read_buffer: usize,
    /// Bytes that may be staged or queued on one connection. Default 16 MiB.
    pub max_staged: usize,
    /// How long a read may be parked without a byte from the peer or a send of our own. Default 60 s.
    pub read_timeout: Duration,
    /// How long a waiting flush may go without the peer acknowledging a byte. Kernels acknowledge in steps: one that reads
    /// 2 KB/s may do so every half minute. Default 60 s.
    pub send_timeout: Duration,
    /// Bytes a second that the peer must take on average over every 5 to 20 s of a waiting flush; 0 (the default) is off.
    /// Looked at after 5 s, when it acknowledges something, and after 20 s at the latest.
    pub min_send_rate: u64,
    /// How long the peer's FIN is waited for after the handler has let go. Default 5 s.
    pub linger: Duration,
    /// Events taken from epoll in one pass, 1 to `i32::MAX / size_of::<epoll_event>()`. Default 1024.
    pub max_events: usize,
    /// Task polls in one pass, at least 1 (and never more than 65 536 in fact). Default 1024.
    pub task_budget: usize,
    /// Connections accepted from one listener in one pass, at least 1. Default 64.
    pub accept_budget: usize,
    /// Reads in a row that a connection may complete on a reactor thread before others get their turn. Default 16.
    pub read_budget: u32,
    /// Before a read parks on a thread other than its reactor's, may one recv be tried? How often it is depends on how often
    /// it brings something: [`Stats::probes`](crate::Stats::probes) and
    /// [`probes_missed`](crate::Stats::probes_missed) tell. Default true.
    pub optimistic_reads: bool,
    /// Bytes that one flush, or flushes in a row, may send on a reactor thread before others get their turn; up to 16 times
    /// as many while nobody else wants the thread. Default 256 KiB.
    pub flush_budget: usize,
    /// Posts from other threads that may wait. Default 65 536.
    pub max_posts: usize,
    /// How long a task may hold the loop before it is counted as a stall and told to
    /// [`Builder::on_stall`](crate::Builder::on_stall): zero, or at least 10 ms, which the clock's steps may be. Default
    /// 100 ms.
    pub stall_threshold: Duration,
    /// For how long a reactor that ran no task of its own may sleep before it waits for events again, so that one wait
    /// brings several: at most 50 us. It pays where handlers run on other threads, adapts to what it brings, and is nothing
    /// while events come one by one. Posts and wakes from other threads may wait for its end. Zero, the default, is off:
    /// measure it ([`Stats::naps`](crate::Stats::naps)), as virtual machines set timers at different prices.
    ///
    /// More than zero also makes the runtime's reactor thread give way: it becomes a batch thread (SCHED_BATCH, sched(7)) if
    /// it was an ordinary one, so that its wake does not interrupt the worker that runs on its CPU. Beside somebody who
    /// computes on that CPU it is later, by a slice (3 ms are common). Threads that handlers start on it inherit that; those
    /// of the runtime do not. On a thread that is not the runtime's own ([`Reactor::builder`](crate::Reactor::builder))
    /// nothing of that thread is changed, and a nap lasts as much longer as its timer slack (prctl(2)).
    pub moderation: Duration,
}

impl Default for ReactorConfig {
    fn default() -> Self {
        Self {
            recv_buffer_size: 16 * 1024,
            max_read_buffer: 1024 * 1024,
            max_staged: 16 * 1024 * 1024,
            read_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(60),
            min_send_rate: 0,
            linger: Duration::from_secs(5),
            max_events: 1024,
            task_budget: 1024,
            accept_budget: 64,
            read_budget: 16,
            optimistic_reads: true,
            flush_budget: 256 * 1024,
            max_posts: 65_536,
            stall_threshold: Duration::from_millis(100),
            moderation: Duration::ZERO,
        }
    }
}

const GIB: usize = 1 << 30;
/// Longer, and what waits would notice.
const MOST_MODERATION: Duration = Duration::from_micros(50);
/// What the coarse clock can tell: a tick of the kernel is at most 10 ms.
const LEAST_STALL: Duration = Duration::from_millis(10);

impl ReactorConfig {
    /// Refuses what cannot work, by name.
    pub(crate) fn validate(&self) -> io::Result<()> {
        let at_least_one = usize::MAX;
        range("recv_buffer_size", self.recv_buffer_size, 1, GIB)?;
        range("max_read_buffer", self.max_read_buffer, 1, GIB)?;
        range("max_staged", self.max_staged, 1, isize::MAX as usize)?;
        range("max_events", self.max_events, 1, crate::sys::epoll::MAX_EVENTS)?;
        range("task_budget", self.task_budget, 1, at_least_one)?;
        range("accept_budget", self.accept_budget, 1, at_least_one)?;
        range("read_budget", self.read_budget as usize, 1, u32::MAX as usize)?;
        range("flush_budget", self.flush_budget, 1, at_least_one)?;
        range("max_posts", self.max_posts, 1, usize::MAX / 4)?;
        if self.moderation > MOST_MODERATION {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("ReactorConfig::moderation is {:?}: it must be at most {MOST_MODERATION:?}", self.moderation),
            ));
        }
        let stall = self.stall_threshold;
        if stall.is_zero() || stall >= LEAST_STALL {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("ReactorConfig::stall_threshold is {stall:?}: it must be zero (off) or at least {LEAST_STALL:?}"),
        ))
    }
}

fn range(field: &str, value: usize, low: usize, high: usize) -> io::Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let limits = if high == usize::MAX { format!("at least {low}") } else { format!("{low} to {high}") };
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("ReactorConfig::{field} is {value}, which is out of range: it must be {limits}"),
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bad_values_are_refused_by_name_and_the_limits_themselves_work() {
        type Set = fn(&mut ReactorConfig, usize);
        let fields: [(&str, Set, usize, usize); 8] = [
            ("recv_buffer_size", |c, v| c.recv_buffer_size = v, 1, GIB),
            ("max_read_buffer", |c, v| c.max_read_buffer = v, 1, GIB),
            ("max_staged", |c, v| c.max_staged = v, 1, isize::MAX as usize),
            ("max_events", |c, v| c.max_events = v, 1, crate::sys::epoll::MAX_EVENTS),
            ("task_budget", |c, v| c.task_budget = v, 1, usize::MAX),
            ("accept_budget", |c, v| c.accept_budget = v, 1, usize::MAX),
            ("flush_budget", |c, v| c.flush_budget = v, 1, usize::MAX),
            ("max_posts", |c, v| c.max_posts = v, 1, usize::MAX / 4),
        ];
        assert!(ReactorConfig::default().validate().is_ok());
        let stall = |ms| ReactorConfig { stall_threshold: Duration::from_millis(ms), ..ReactorConfig::default() };
        assert!(stall(0).validate().is_ok() && stall(10).validate().is_ok() && stall(u64::MAX).validate().is_ok());
        let refused = stall(9).validate().unwrap_err();
        assert!(refused.kind() == io::ErrorKind::InvalidInput && refused.to_string().contains("stall_threshold"));
        let moderated =
            |us| ReactorConfig { moderation: Duration::from_micros(us), ..ReactorConfig::default() }.validate();
        assert!(moderated(0).is_ok() && moderated(50).is_ok());
        assert!(moderated(51).unwrap_err().to_string().contains("moderation"));
        for (name, set, low, high) in fields {
            let with = |value| {
                let mut config = ReactorConfig::default();
                set(&mut config, value);
                config.validate()
            };
            assert!(with(low).is_ok() && with(high).is_ok(), "{name} at its limits");
            let refused = with(low - 1).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            assert!(refused.to_string().contains(name), "{refused}");
            if high < usize::MAX {
                assert!(with(high + 1).unwrap_err().to_string().contains(&high.to_string()));
            }
        }
    }
}
