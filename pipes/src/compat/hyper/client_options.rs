//! [`ClientOptions`]: what an HTTP client can be told.
//!
//! State: none. Thread class: pure. Laws kept: 16.

use epoxide::ConnectOptions;
use std::time::Duration;

/// How a client connects, waits, and keeps connections.
///
/// ```
/// use epoxide_pipes::ClientOptions;
///
/// let mut options = ClientOptions::default();
/// options.max_idle_per_host = 4;
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// How to connect: its timeout counts for the name's look-up and all attempts.
    pub connect: ConnectOptions,
    /// How long an answer's head may take from the moment the request was handed over. Zero: as long as the server
    /// keeps the connection. Default 60 s. Its body is under the reactor's
    /// [`read_timeout`](epoxide::ReactorConfig::read_timeout): so long it may stall.
    pub response_timeout: Duration,
    /// How long an idle connection is kept. Zero: until the server ends it, or the reactor's `read_timeout` does, which
    /// counts in any case. Default 30 s.
    pub idle_timeout: Duration,
    /// Idle connections kept for each host and port; 0 keeps none. Default 32.
    pub max_idle_per_host: usize,
    /// Idle connections kept over all hosts; one more, and the one that has been idle longest is let go. 0 keeps none.
    /// Default 256.
    pub max_idle: usize,
    /// Bytes of an answer's head, 1 KiB to 1 MiB. Default 64 KiB.
    pub max_head: usize,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect: ConnectOptions::default(),
            response_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(30),
            max_idle_per_host: 32,
            max_idle: 256,
            max_head: 64 * 1024,
        }
    }
}
