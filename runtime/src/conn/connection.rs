//! The whole connection: a read half and a write half in one.
//!
//! State: the two halves. Thread class: any thread, one task at a time (`&mut self`). Laws: 1, 3, 5, 6.

use crate::buf::RecvBuf;
use crate::conn::body::{Body, REACTORS_RATE};
use crate::conn::deadline::{self, ReadTimeoutSuspended};
use crate::conn::ending::{self, CloseHandle};
use crate::conn::read_half::{Intent, ReadHalf};
use crate::conn::read_ops::{Read, ReadMore, ReadSlice};
use crate::conn::send_file::SendFile;
use crate::conn::shared::SharedWriter;
use crate::conn::shared_limits::SharedLimits;
use crate::conn::write_futures::{Flush, SendAll, Shutdown};
use crate::conn::write_half::{Reserved, WriteHalf};
use crate::error::{CloseReason, StagedLimit};
use crate::exec::draining::Draining;
use crate::exec::handle::ReactorHandle;
use crate::exec::home::Stage;
use crate::id::ListenerId;
use crate::sync::plain::Ordering;
use crate::sys;
use bytes::Bytes;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::RangeBounds;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A connection. `Send`: read, write, flush and close it from any thread; the system calls are made by the caller.
///
/// Dropping it lets go: staged bytes are discarded, FIN goes out behind a flush in flight, and the reactor reads and
/// discards the peer's input until its FIN, bounded by `linger` and 1 MiB. Dropped by a panic or an abort, it is
/// reset: a cut answer must not look whole.
///
/// ```
/// # use epoxide::Connection;
/// async fn echo(mut conn: Connection) -> std::io::Result<()> {
///     while let Some(data) = conn.read_idle().await? {
///         conn.stage(&data)?;
///         conn.flush().await?;
///     }
///     Ok(())
/// }
/// ```
pub struct Connection {
    read: ReadHalf,
    write: WriteHalf,
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.read.body.fmt(f)
    }
}

impl AsFd for Connection {
    /// For options and inspection. Reading or writing through it breaks the connection's own bookkeeping.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.body.as_fd()
    }
}

impl Connection {
    pub(crate) fn new(body: Arc<Body>) -> Self {
        Self { read: ReadHalf::new(body.clone()), write: WriteHalf::new(body) }
    }

    pub(crate) fn body(&self) -> &Arc<Body> {
        &self.read.body
    }

    pub(crate) fn halves(&mut self) -> (&mut ReadHalf, &mut WriteHalf) {
        (&mut self.read, &mut self.write)
    }

    /// See [`ReadHalf::read`].
    pub fn read(&mut self) -> Read<'_> {
        self.read.read()
    }

    /// See [`ReadHalf::read_idle`]. With bytes staged a request is still in progress: then it is a plain `read`.
    pub fn read_idle(&mut self) -> Read<'_> {
        let intent = if self.write.is_clear() { Intent::Idle } else { Intent::Busy };
        Read::new(&mut self.read, intent)
    }

    /// See [`ReadHalf::read_more`].
    pub fn read_more<'a>(&'a mut self, buf: &'a mut RecvBuf) -> ReadMore<'a> {
        self.read.read_more(buf)
    }

    /// See [`ReadHalf::read_slice`].
    pub fn read_slice<'a>(&'a mut self, space: &'a mut [u8]) -> ReadSlice<'a> {
        self.read.read_slice(space)
    }

    /// See [`ReadHalf::peek`].
    pub fn peek<'a>(&'a mut self, space: &'a mut [u8]) -> ReadSlice<'a> {
        self.read.peek(space)
    }

    /// See [`ReadHalf::poll_read`].
    pub fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        self.read.poll_read(cx)
    }

    /// See [`ReadHalf::try_read`].
    ///
    /// # Errors
    /// As there.
    pub fn try_read(&mut self) -> io::Result<Option<RecvBuf>> {
        self.read.try_read()
    }

    /// See [`WriteHalf::staged_len`].
    pub fn staged_len(&self) -> usize {
        self.write.staged_len()
    }

    /// See [`WriteHalf::unsent_len`].
    pub fn unsent_len(&self) -> usize {
        self.write.unsent_len()
    }

    /// See [`WriteHalf::stage`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        self.write.stage(bytes)
    }

    /// See [`WriteHalf::stage_bytes`].
    ///
    /// # Errors
    /// As there.
    pub fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        self.write.stage_bytes(bytes)
    }

    /// See [`WriteHalf::try_reserve`].
    ///
    /// # Errors
    /// As there.
    pub fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        self.write.try_reserve(n)
    }

    /// See [`WriteHalf::spare`].
    ///
    /// # Errors
    /// As there.
    pub fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        self.write.spare(n)
    }

    /// See [`WriteHalf::advance`].
    ///
    /// # Panics
    /// As there.
    pub fn advance(&mut self, n: usize) {
        self.write.advance(n);
    }

    /// See [`WriteHalf::flush`].
    pub fn flush(&mut self) -> Flush<'_> {
        self.write.flush()
    }

    /// See [`WriteHalf::poll_flush`].
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.poll_flush(cx)
    }

    /// See [`WriteHalf::try_flush`].
    ///
    /// # Errors
    /// As there.
    pub fn try_flush(&mut self) -> io::Result<()> {
        self.write.try_flush()
    }

    /// See [`WriteHalf::send_all`].
    pub fn send_all<'a>(&'a mut self, bytes: &'a [u8]) -> SendAll<'a> {
        self.write.send_all(bytes)
    }

    /// See [`WriteHalf::send_file`].
    pub fn send_file(&mut self, file: impl Into<Arc<OwnedFd>>, range: impl RangeBounds<u64>) -> SendFile<'_> {
        self.write.send_file(file, range)
    }

    /// See [`WriteHalf::shutdown`].
    pub fn shutdown(&mut self) -> Shutdown<'_> {
        self.write.shutdown()
    }

    /// The two halves, to be used by two tasks, on two threads if need be.
    pub fn into_split(mut self) -> (ReadHalf, WriteHalf) {
        self.write.split = true;
        (self.read, self.write)
    }

    /// Splits off a writer that any number of threads share. What is staged goes out first.
    pub fn into_shared(self, limits: SharedLimits) -> (ReadHalf, SharedWriter) {
        (self.read, self.write.into_shared(limits))
    }

    /// Puts two halves of one connection together again.
    ///
    /// # Errors
    /// The halves come back if they belong to different connections.
    pub fn reunite(read: ReadHalf, write: WriteHalf) -> Result<Self, (ReadHalf, WriteHalf)> {
        if Arc::ptr_eq(&read.body, &write.body) { Ok(Self { read, write }) } else { Err((read, write)) }
    }
}

/// What a connection and its halves have in common.
macro_rules! facts {
    ($type:ty, $($body:ident).+) => {
        impl $type {
            /// Ends the connection now: the peer sees a reset, whoever else holds the socket; whatever is parked on
            /// it resumes with [`CloseReason::Local`].
            pub fn reset(&mut self) {
                ending::reset(&self.$($body).+, CloseReason::Local);
            }

            /// A handle that closes or resets this connection from any thread.
            pub fn close_handle(&self) -> CloseHandle {
                CloseHandle::new(&self.$($body).+)
            }

            /// Why both directions ended, once they have.
            pub fn close_reason(&self) -> Option<CloseReason> {
                self.$($body).+.reason()
            }

            /// The peer's address.
            ///
            /// # Errors
            /// That of getpeername(2): `ENOTCONN` once the connection was reset; `EAFNOSUPPORT` over a unix socket.
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                sys::socket::peer_addr(self.$($body).+.as_fd())
            }

            /// This side's address.
            ///
            /// # Errors
            /// That of getsockname(2); `EAFNOSUPPORT` over a unix socket.
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                sys::socket::local_addr(self.$($body).+.as_fd())
            }

            /// The listener that accepted this connection.
            pub fn listener(&self) -> ListenerId {
                self.$($body).+.listener
            }

            /// Names this connection among those that its reactor ever had (until 2^32 have used its table slot). It has
            /// another one after [`rehome`](Connection::rehome).
            pub fn id(&self) -> u64 {
                self.$($body).+.key().0
            }

            /// The reactor that this connection belongs to.
            pub fn reactor(&self) -> ReactorHandle {
                ReactorHandle { home: self.$($body).+.home.clone() }
            }

            /// Closes the connection at `at` unless the deadline is moved or cleared (`None`) before: what waits on it
            /// resumes with [`Clock::Deadline`](crate::Clock::Deadline) and the name given here. Absolute: activity
            /// does not move it. Any thread; the timer is that of the reactor which the calling
            /// thread is, or belongs to (a worker, an entered thread), elsewhere the process-wide one.
            pub fn set_deadline(&self, at: Option<Instant>, what: &'static str) {
                deadline::set(&self.$($body).+, at, what);
            }

            /// Holds the read clock while the guard lives; afterwards it counts anew. Guards nest.
            pub fn suspend_read_timeout(&self) -> ReadTimeoutSuspended {
                ReadTimeoutSuspended::new(&self.$($body).+)
            }

            /// Bytes a second that the peer must take on average over every 5 to 20 s of a waiting flush, in place
            /// of [`ReactorConfig::min_send_rate`](crate::ReactorConfig::min_send_rate); 0 is off. Any thread.
            pub fn set_min_send_rate(&self, bytes_per_second: u64) {
                let rate = bytes_per_second.min(REACTORS_RATE - 1);
                self.$($body).+.min_send_rate.store(rate, Ordering::Relaxed);
            }

            /// Waits until the reactor drains: for answers that never end by themselves.
            pub fn draining(&self) -> Draining {
                Draining::new(self.$($body).+.home.clone())
            }

            /// Has the reactor begun to drain? True at once when [`draining`](Self::draining) is ready. One load.
            pub fn is_draining(&self) -> bool {
                self.$($body).+.home.stage() >= Stage::Draining
            }
        }
    };
}

facts!(Connection, read.body);
facts!(ReadHalf, body);
facts!(WriteHalf, body);
