//! Why a connection ended, and the errors of this crate.
//!
//! Job: the closed list of close reasons and its table to `io::ErrorKind`. State: none. Thread class: pure. Law 11.

use crate::sys::errno;
use std::error::Error;
use std::fmt;
use std::io;

/// The clock that ended a connection.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// use std::time::{Duration, Instant};
///
/// conn.set_deadline(Some(Instant::now() + Duration::from_millis(1)), "a whole request");
/// let late = conn.read().await.unwrap_err();
/// assert_eq!(CloseReason::of(&late), Some(CloseReason::Timeout(Clock::Deadline("a whole request"))));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Clock {
    /// A read was parked longer than `read_timeout`.
    Read,
    /// The peer acknowledged nothing for `send_timeout` while a flush waited.
    Send,
    /// The peer took less than `min_send_rate`.
    SendRate,
    /// The deadline of [`Connection::set_deadline`](crate::Connection::set_deadline), with the name given there.
    Deadline(&'static str),
}

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read => f.write_str("read timeout"),
            Self::Send => f.write_str("send timeout"),
            Self::SendRate => f.write_str("minimal send rate"),
            Self::Deadline(what) => write!(f, "deadline of {what}"),
        }
    }
}

/// Why both directions of a connection ended. Stored once: the first reason wins, and every later operation reports
/// the same one.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// conn.close_handle().reset();
/// let error = conn.send_all(b"too late").await.unwrap_err();
/// assert_eq!(CloseReason::of(&error), Some(CloseReason::Local));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer sent its FIN, and the handler then let go: a clean end.
    PeerFin,
    /// The peer reset the connection. The errno that said so: `ECONNRESET` or `EPIPE`.
    PeerReset {
        /// As returned by the system call.
        errno: i32,
    },
    /// A system call failed otherwise.
    Io {
        /// The call, for example `recv`.
        op: &'static str,
        /// As returned by the system call.
        errno: i32,
    },
    /// A clock ran out.
    Timeout(Clock),
    /// This side closed it ([`CloseHandle::close`](crate::CloseHandle::close), `reset`, or dropping the handle).
    Local,
    /// The reactor stopped, or the task that held the connection panicked or was aborted.
    Aborted,
    /// An idle connection ended because its reactor drains.
    Draining,
    /// A limit of what may be queued was exceeded and the connection was given up.
    Overflow,
}

impl CloseReason {
    /// The kind of the `io::Error` that this reason becomes.
    pub fn kind(self) -> io::ErrorKind {
        match self {
            Self::PeerFin => io::ErrorKind::UnexpectedEof,
            Self::PeerReset { .. } => io::ErrorKind::ConnectionReset,
            Self::Io { errno, .. } => io::Error::from_raw_os_error(errno).kind(),
            Self::Timeout(_) => io::ErrorKind::TimedOut,
            Self::Local | Self::Aborted => io::ErrorKind::ConnectionAborted,
            Self::Draining => io::ErrorKind::NotConnected,
            Self::Overflow => io::ErrorKind::QuotaExceeded,
        }
    }

    /// The errno behind this reason, if a system call reported it.
    pub fn errno(self) -> Option<i32> {
        match self {
            Self::PeerReset { errno } | Self::Io { errno, .. } => Some(errno),
            _ => None,
        }
    }

    /// The reason behind an error that a connection returned; `None` for any other error.
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Self>().copied()
    }

    /// The reason that a failed call on a connected socket stands for.
    pub(crate) fn from_io(op: &'static str, error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(n @ (errno::ECONNRESET | errno::EPIPE)) => Self::PeerReset { errno: n },
            Some(errno) => Self::Io { op, errno },
            None => Self::Io { op, errno: 0 },
        }
    }
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerFin => f.write_str("the peer closed the connection"),
            Self::PeerReset { errno } => write!(f, "the peer reset the connection (os error {errno})"),
            Self::Io { op, errno: 0 } => write!(f, "{op} failed without an errno"),
            Self::Io { op, errno } => write!(f, "{op} failed: {}", io::Error::from_raw_os_error(*errno)),
            Self::Timeout(clock) => write!(f, "the connection was closed by its {clock}"),
            Self::Local => f.write_str("the connection was closed on this side"),
            Self::Aborted => f.write_str("the connection was aborted: its reactor stopped or its task died"),
            Self::Draining => f.write_str("the connection ended because its reactor drains"),
            Self::Overflow => f.write_str("the connection was closed because too much was queued on it"),
        }
    }
}

impl Error for CloseReason {}

impl From<CloseReason> for io::Error {
    fn from(reason: CloseReason) -> Self {
        Self::new(reason.kind(), reason)
    }
}

/// One line to standard error, where nobody may be listening any more: that must end nothing.
pub(crate) fn complain(text: fmt::Arguments<'_>) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "epoxide: {text}");
}

/// Staging was refused: `asked` more bytes would exceed `limit` (`ReactorConfig::max_staged`). What was staged before
/// is still there and the connection is usable: flush, then go on.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let refused = conn.stage(&vec![0; 17 << 20]).unwrap_err(); // max_staged is 16 MiB
/// assert_eq!(conn.staged_len(), 0, "all or nothing: {refused}");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagedLimit {
    /// Bytes asked for.
    pub asked: usize,
    /// Bytes staged or queued already.
    pub staged: usize,
    /// The limit in bytes.
    pub limit: usize,
}

impl fmt::Display for StagedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, staged, limit } = self;
        write!(
            f,
            "staging {asked} bytes behind {staged} would exceed max_staged ({limit} bytes): flush first or raise it"
        )
    }
}

impl Error for StagedLimit {}

impl From<StagedLimit> for io::Error {
    fn from(limit: StagedLimit) -> Self {
        Self::new(io::ErrorKind::QuotaExceeded, limit)
    }
}

/// A hand-over to a reactor was refused; what was to be handed over comes back.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use epoxide::{PostError, Runtime};
///
/// let runtime = Runtime::builder().reactors(1).build()?;
/// let handle = runtime.handle();
/// drop(runtime);
/// // What was handed over comes back.
/// let Err(PostError::Stopped(closure)) = handle.run_here(|| 42) else { panic!("it has stopped") };
/// assert_eq!(closure(), 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError<T = ()> {
    /// The reactor has stopped.
    Stopped(T),
    /// `ReactorConfig::max_posts` hand-overs wait already.
    Full(T),
}

impl<T> PostError<T> {
    /// What was to be handed over.
    pub fn into_inner(self) -> T {
        match self {
            Self::Stopped(payload) | Self::Full(payload) => payload,
        }
    }
}

impl<T: Send + Sync + 'static> From<PostError<T>> for io::Error {
    /// `ConnectionAborted` or `QuotaExceeded`; the payload can be had back by [`io::Error::downcast`].
    fn from(error: PostError<T>) -> Self {
        let kind = match error {
            PostError::Stopped(_) => io::ErrorKind::ConnectionAborted,
            PostError::Full(_) => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}

impl<T> fmt::Debug for PostError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped(_) => "Stopped(..)",
            Self::Full(_) => "Full(..)",
        })
    }
}

impl<T> fmt::Display for PostError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stopped(_) => "the reactor has stopped",
            Self::Full(_) => "the reactor's post queue is full (ReactorConfig::max_posts)",
        })
    }
}

impl<T> Error for PostError<T> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use io::ErrorKind;

    #[test]
    fn every_reason_has_its_kind_and_survives_the_trip_through_io_error() {
        let table = [
            (CloseReason::PeerFin, ErrorKind::UnexpectedEof, None),
            (CloseReason::PeerReset { errno: 104 }, ErrorKind::ConnectionReset, Some(104)),
            (CloseReason::PeerReset { errno: 32 }, ErrorKind::ConnectionReset, Some(32)),
            (CloseReason::Io { op: "recv", errno: 113 }, ErrorKind::HostUnreachable, Some(113)),
            (CloseReason::Timeout(Clock::Read), ErrorKind::TimedOut, None),
            (CloseReason::Timeout(Clock::Send), ErrorKind::TimedOut, None),
            (CloseReason::Timeout(Clock::SendRate), ErrorKind::TimedOut, None),
            (CloseReason::Timeout(Clock::Deadline("head")), ErrorKind::TimedOut, None),
            (CloseReason::Local, ErrorKind::ConnectionAborted, None),
            (CloseReason::Aborted, ErrorKind::ConnectionAborted, None),
            (CloseReason::Draining, ErrorKind::NotConnected, None),
            (CloseReason::Overflow, ErrorKind::QuotaExceeded, None),
        ];
        for (reason, kind, errno) in table {
            let error = io::Error::from(reason);
            assert_eq!(error.kind(), kind, "{reason:?}");
            assert_eq!(CloseReason::of(&error), Some(reason));
            assert_eq!(reason.errno(), errno);
            assert!(!error.to_string().is_empty());
        }
        assert_eq!(CloseReason::of(&io::Error::from(ErrorKind::TimedOut)), None, "control: a foreign error");
    }

    #[test]
    fn failed_calls_map_to_reasons_with_their_errno() {
        let of = |errno| CloseReason::from_io("send", &io::Error::from_raw_os_error(errno));
        assert_eq!(of(errno::EPIPE), CloseReason::PeerReset { errno: 32 });
        assert_eq!(of(errno::ECONNRESET), CloseReason::PeerReset { errno: 104 });
        assert_eq!(of(110), CloseReason::Io { op: "send", errno: 110 });
    }
}
