//! Outgoing connections.
//!
//! Job: start a connect that does not block. State owned: none. Thread class: any thread.
//! Laws kept: 5.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;

use super::{calls, options};
#[cfg(epoxide_chaos)]
use crate::sys::chaos::{self, Call};
use crate::sys::error::SysError;

/// What is set before a connect starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ConnectSetup {
    /// The address to connect from.
    pub(crate) local: Option<SocketAddr>,
    /// SO_RCVBUF in bytes: before the connect, because the window's scale is fixed by it (tcp(7)).
    pub(crate) recv_buffer: Option<usize>,
    /// SO_SNDBUF in bytes.
    pub(crate) send_buffer: Option<usize>,
}

/// Starts to connect, as `setup` says. The flag says whether it is still in progress: then the
/// socket becomes writable when it is decided, and `take_error` tells how.
pub(crate) fn connect_start(addr: SocketAddr, setup: ConnectSetup) -> io::Result<(OwnedFd, bool)> {
    #[cfg(epoxide_chaos)]
    chaos::try_meet(Call::Socket, None).map_err(|e| SysError::wrap("socket for", addr, e.into()))?;
    let socket = calls::tcp_socket(addr).map_err(|e| SysError::wrap("socket for", addr, e))?;
    let fd = socket.as_fd();
    if let Some(bytes) = setup.recv_buffer {
        options::set_recv_buffer_size(fd, bytes).map_err(|e| SysError::wrap("SO_RCVBUF for", addr, e))?;
    }
    if let Some(bytes) = setup.send_buffer {
        options::set_send_buffer_size(fd, bytes).map_err(|e| SysError::wrap("SO_SNDBUF for", addr, e))?;
    }
    if let Some(local) = setup.local {
        let from = || format!("{addr} from {local}");
        options::set_reuse_addr(fd).map_err(|e| SysError::wrap("SO_REUSEADDR for", from(), e))?;
        if local.port() == 0 {
            // Only so that ports are not used up sooner; an old kernel may refuse it.
            let _ = options::set_bind_address_no_port(fd);
        }
        calls::bind(fd, local).map_err(|e| SysError::wrap("connect to", from(), e))?;
    }
    #[cfg(epoxide_chaos)]
    chaos::try_meet(Call::Connect, None).map_err(|e| SysError::wrap("connect to", addr, e.into()))?;
    match calls::connect(fd, Some(addr)) {
        #[cfg(epoxide_chaos)]
        Ok(()) if chaos::is_undecided() => Ok((socket, true)),
        Ok(()) => Ok((socket, false)),
        // After EINTR the attempt goes on in the kernel: connect(2).
        Err(Errno::EINPROGRESS | Errno::EINTR) => Ok((socket, true)),
        Err(errno) => Err(SysError::wrap("connect to", addr, errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::TcpListener;

    use super::*;
    use crate::sys::epoll::{Epoll, Events, OUT};
    use crate::sys::error::errno_of;
    use crate::sys::socket::{local_addr, peer_addr, take_error};

    fn from(local: &str) -> ConnectSetup {
        ConnectSetup { local: Some(local.parse().unwrap()), ..ConnectSetup::default() }
    }

    fn decided(socket: &OwnedFd) -> Option<io::Error> {
        let epoll = Epoll::new().unwrap();
        epoll.add(socket.as_fd(), OUT, 0).unwrap();
        let mut events = Events::with_capacity(1);
        let n = (0..100).find_map(|_| match epoll.wait(&mut events, Some(10_000)).unwrap() {
            0 => None,
            n => Some(n),
        });
        assert_eq!(n, Some(1));
        take_error(socket.as_fd()).unwrap()
    }

    #[test]
    fn a_connect_is_decided_later_and_keeps_its_local_address() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let (socket, _in_progress) = connect_start(addr, from("127.0.0.2:0")).unwrap();
        assert!(decided(&socket).is_none());
        assert_eq!(peer_addr(socket.as_fd()).unwrap(), addr);
        let local = local_addr(socket.as_fd()).unwrap();
        assert_eq!(local.ip().to_string(), "127.0.0.2");
        assert_eq!(listener.accept().unwrap().1, local);
    }

    #[test]
    fn a_refused_connect_says_so() {
        // A bound socket that does not listen keeps the port closed for the length of the test.
        let closed: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let holder = calls::tcp_socket(closed).unwrap();
        calls::bind(holder.as_fd(), closed).unwrap();
        let error = match connect_start(local_addr(holder.as_fd()).unwrap(), ConnectSetup::default()) {
            Ok((socket, _)) => decided(&socket).expect("nobody listens"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(errno_of(&error), Some(libc::ECONNREFUSED));
    }

    #[test]
    fn a_local_address_that_is_not_ours_is_an_error_naming_both() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // TEST-NET-1 (RFC 5737): nobody's.
        let addr = listener.local_addr().unwrap();
        let error = connect_start(addr, from("192.0.2.1:0")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrNotAvailable);
        assert_eq!(errno_of(&error), Some(libc::EADDRNOTAVAIL));
        let text = error.to_string();
        assert!(text.starts_with(&format!("connect to {addr} from 192.0.2.1:0: ")), "{text}");
    }
}
