//! Layers for tower services on epoxide's timers: timeouts and limits, without tokio's runtime.
//!
//! Job: the table of contents of this room. State: none. Thread class: see each file.
//!
//! | file | job |
//! |---|---|
//! | `timeout` | a limit for the time of a call |
//! | `concurrency` | a limit for the calls in progress |
//! | `permits` | the permits of that limit, and who waits for one |
//! | `rate` | a limit for the calls in a window of time |
//! | `service` | a tower service as one of hyper's (with the feature `hyper`) |

mod concurrency;
mod permits;
mod rate;
#[cfg(feature = "hyper")]
mod service;
mod timeout;

pub use concurrency::{ConcurrencyLimit, ConcurrencyLimitFuture, ConcurrencyLimitLayer};
pub use rate::{RateLimit, RateLimitLayer};
#[cfg(feature = "hyper")]
pub use service::{TowerCall, TowerService};
pub use timeout::{LimitError, Timeout, TimeoutFuture, TimeoutLayer};

use std::io;

/// Refuses a zero, naming the field.
fn at_least_one(field: &str, zero: bool) -> io::Result<()> {
    if zero {
        let text = format!("{field} is 0, which would hold every call for ever: it must be at least 1");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(())
}
