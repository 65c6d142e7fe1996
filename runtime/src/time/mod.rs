//! Sleeping, timeouts and intervals, on std's [`Instant`](std::time::Instant).
//!
//! Job: table of contents of the time room. State: none of its own. Thread class: any thread. Laws: 9, 10, 12.
//!
//! | file | job |
//! |---|---|
//! | `wheel` | where deadlines wait: a pure hierarchical wheel in ticks of 1 ms |
//! | `clock` | instants to ticks and back, saturating |
//! | `driver` | one wheel behind a lock, the thread's current driver, waking what is due |
//! | `thread` | the process-wide timer thread, for threads that have no driver |
//! | `sleep`, `timeout`, `interval` | what users hold |
//!
//! Everything here works on every thread. On a thread that has a current runtime the deadline waits in a reactor's
//! wheel; on any other it waits on one process-wide timer thread, which is started at first use and costs nothing
//! while it waits. A deadline is fixed when the future is created, not at its first poll, and nothing completes
//! early: a wheel counts in milliseconds rounded up, and a future is ready only once the clock itself says so.

mod clock;
pub(crate) mod driver;
mod interval;
mod sleep;
mod thread;
mod timeout;
mod wheel;

#[cfg(test)]
mod tests;

pub(crate) use clock::{after, now};
pub use interval::{Interval, MissedTick, Tick, interval, interval_at};
pub use sleep::{Sleep, sleep, sleep_until};
pub use timeout::{Elapsed, Timeout, timeout};
