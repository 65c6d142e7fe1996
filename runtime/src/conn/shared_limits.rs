//! What a shared writer may queue, and what became of a frame.
//!
//! State: none. Thread class: pure. Laws: 16 (three limits, refused whole, each by its name).

use crate::error::CloseReason;
use bytes::Bytes;
use std::fmt;
use std::time::Duration;

/// What a shared writer may queue while its peer does not keep up.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let limits = SharedLimits { frames: 16, ..SharedLimits::default() };
/// let (read, writer) = conn.into_shared(limits);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SharedLimits {
    /// Frames; one that a thread is sending at the moment does not count. Default 1024.
    pub frames: usize,
    /// Bytes. Default 1 MiB. A single frame may be larger if nothing else is queued.
    pub bytes: usize,
    /// Age of the oldest frame that waits, by the kernel's coarse clock: exact to a tick of it, 1 to 10 ms (see
    /// `CLOCK_MONOTONIC_COARSE` in clock_gettime(2)). Default 10 s; zero is off.
    pub age: Duration,
    /// Keep the connection when the peer has sent its FIN and the read half is gone. Default false: then the FIN ends it.
    pub half_open: bool,
}

impl Default for SharedLimits {
    fn default() -> Self {
        Self { frames: 1024, bytes: 1024 * 1024, age: Duration::from_secs(10), half_open: false }
    }
}

/// What became of a frame.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let (read, writer) = conn.into_shared(SharedLimits::default());
/// match writer.send("frame") {
///     SendOutcome::Sent | SendOutcome::Queued => {}
///     SendOutcome::Refused(why, frame) => eprintln!("{} bytes were refused: {why}", frame.len()),
/// }
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a refused frame is lost unless it is dealt with"]
pub enum SendOutcome {
    /// The kernel has all of it.
    Sent,
    /// It waits for the peer, or for another thread that sends; it goes out behind what was accepted before.
    Queued,
    /// Nothing of it goes out; it comes back. (Only if the connection ended during this very call, the peer may have a part.)
    Refused(Refusal, Bytes),
}

/// Why a frame was refused.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let (read, writer) = conn.into_shared(SharedLimits::default());
/// writer.close_handle().reset();
/// assert!(matches!(writer.send("late"), SendOutcome::Refused(Refusal::Closed(_), _)));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// `SharedLimits::frames` wait already.
    Frames,
    /// `SharedLimits::bytes` would be exceeded.
    Bytes,
    /// The oldest frame has waited longer than `SharedLimits::age`.
    Age,
    /// The connection has ended, for this reason.
    Closed(CloseReason),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Frames => f.write_str("too many frames wait for the peer (SharedLimits::frames)"),
            Self::Bytes => f.write_str("too many bytes wait for the peer (SharedLimits::bytes)"),
            Self::Age => f.write_str("the peer has not taken the oldest frame in time (SharedLimits::age)"),
            Self::Closed(reason) => write!(f, "the connection has ended: {reason}"),
        }
    }
}

impl std::error::Error for Refusal {}
