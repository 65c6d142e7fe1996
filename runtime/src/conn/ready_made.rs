//! Connections from sockets that exist already, and back.
//!
//! State: none of its own. Thread class: any thread. Laws: 3 (taken out only while nobody sends), 5 (both sides own a
//! descriptor of their own: nothing is closed under anybody), 12 (refused by a stopped reactor, the socket comes back).

use crate::conn::body::Body;
use crate::conn::connection::Connection;
use crate::conn::deadline;
use crate::error::{CloseReason, PostError};
use crate::exec::handle::ReactorHandle;
use crate::id::ListenerId;
use crate::sync::limit::Place;
use crate::sys;
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

impl Connection {
    /// Makes a connection of a connected socket, which becomes non-blocking. It belongs to the [current
    /// reactor](ReactorHandle::current) of the calling thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] on a thread without a current runtime, and those of [`from_std_on`](Self::from_std_on).
    pub fn from_std(stream: TcpStream) -> io::Result<Self> {
        Self::from_std_on(&here()?, stream)
    }

    /// Makes a connection of a connected socket, which becomes non-blocking. It belongs to `reactor`. Any thread.
    ///
    /// # Errors
    /// When the reactor has stopped, or has `max_posts` posts waiting: the error holds a [`PostError<TcpStream>`], from
    /// which the socket can be taken back ([`io::Error::downcast`]).
    pub fn from_std_on(reactor: &ReactorHandle, stream: TcpStream) -> io::Result<Self> {
        from_socket(reactor, stream)
    }

    /// [`from_std`](Self::from_std) for a unix socket.
    ///
    /// # Errors
    /// As there.
    pub fn from_unix(stream: UnixStream) -> io::Result<Self> {
        Self::from_unix_on(&here()?, stream)
    }

    /// [`from_std_on`](Self::from_std_on) for a unix socket.
    ///
    /// # Errors
    /// As there.
    pub fn from_unix_on(reactor: &ReactorHandle, stream: UnixStream) -> io::Result<Self> {
        from_socket(reactor, stream)
    }

    /// The socket, as std's: non-blocking, under a descriptor number of its own, unknown to the reactor from now on.
    /// Close handles of the connection have no effect any more. Any thread.
    ///
    /// # Errors
    /// The connection comes back with the reason: bytes that are staged or not sent yet (flush first), a connection that
    /// is over, one that is no TCP connection ([`into_unix`](Self::into_unix)), or `EMFILE`: for a moment there are two
    /// descriptors.
    #[allow(clippy::result_large_err, reason = "the connection comes back by value")]
    pub fn into_std(self) -> Result<TcpStream, (io::Error, Self)> {
        if !self.body().tcp {
            let why = "not a TCP connection: into_unix takes a unix socket out";
            return Err((io::Error::new(io::ErrorKind::InvalidInput, why), self));
        }
        self.into_fd().map(TcpStream::from)
    }

    /// [`into_std`](Self::into_std) for a unix socket.
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::result_large_err, reason = "the connection comes back by value")]
    pub fn into_unix(self) -> Result<UnixStream, (io::Error, Self)> {
        if sys::socket::unix_local_addr(self.as_fd()).is_err() {
            let why = "not a unix connection: into_std takes a TCP socket out";
            return Err((io::Error::new(io::ErrorKind::InvalidInput, why), self));
        }
        self.into_fd().map(UnixStream::from)
    }

    #[allow(clippy::result_large_err, reason = "the connection comes back by value")]
    fn into_fd(self) -> Result<OwnedFd, (io::Error, Self)> {
        match self.duplicate() {
            Ok(fd) => {
                // From here on nothing of ours ends the socket; the halves tell the reactor when they go, right now.
                if !self.body().socket.leave() {
                    return Err((self.body().reason().unwrap_or(CloseReason::Aborted).into(), self));
                }
                deadline::clear(self.body());
                Ok(fd)
            }
            Err(error) => Err((error, self)),
        }
    }

    fn duplicate(&self) -> io::Result<OwnedFd> {
        let body = self.body();
        if let Some(reason) = body.reason() {
            return Err(reason.into());
        }
        if self.staged_len() > 0 || !body.flush.is_idle() {
            let why = "bytes are staged or on their way: flush before the socket is taken out";
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, why));
        }
        // Others may be inside a call on ours, and a duplicate is the same socket; std makes it CLOEXEC.
        body.as_fd().try_clone_to_owned()
    }
}

/// The reactor of this thread.
fn here() -> io::Result<ReactorHandle> {
    ReactorHandle::current().ok_or_else(|| {
        let text = "this thread has no current runtime: use the form that takes a ReactorHandle";
        io::Error::new(io::ErrorKind::NotConnected, text)
    })
}

fn from_socket<S>(reactor: &ReactorHandle, stream: S) -> io::Result<Connection>
where
    S: Into<OwnedFd> + AsFd + Send + Sync + 'static,
{
    let admission = match reactor.home.admit() {
        Ok(admission) => admission,
        Err(why) => return Err(PostError::refused(why, stream).into()),
    };
    sys::socket::set_nonblocking(stream.as_fd())?;
    let body = Arc::new(Body::to_be_adopted(stream.into(), reactor.home.clone(), ListenerId::HANDED_IN, false));
    admission.adopt(body.clone());
    Ok(Connection::new(body))
}

/// An accepted socket.
pub(crate) fn accepted(fd: OwnedFd, place: Option<Place>, reactor: &ReactorHandle) -> io::Result<Connection> {
    let admission = reactor.home.admit()?;
    let body = Body::to_be_adopted(fd, reactor.home.clone(), ListenerId::HANDED_IN, false);
    let body = Arc::new(body.holding(place));
    admission.adopt(body.clone());
    Ok(Connection::new(body))
}
