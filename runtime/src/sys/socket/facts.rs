//! What a socket is and how it stands.
//!
//! Job: addresses, stored error, TCP state, unacknowledged bytes. State owned: none. Thread class: any thread.
//! Laws kept: 2 (which sockets are TCP), 11 (TCP_INFO tells a FIN from a reset).

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{calls, options};

/// TCP_INFO state: connected both ways.
#[cfg(test)]
pub(crate) const ESTABLISHED: u8 = 1;
/// TCP_INFO state: gone, by a reset or after both FINs.
pub(crate) const CLOSE: u8 = 7;
/// TCP_INFO state: the peer's FIN has come, ours has not gone.
#[cfg(test)]
pub(crate) const CLOSE_WAIT: u8 = 8;

/// getsockname(2). A unix socket has no such address: EAFNOSUPPORT.
pub(crate) fn local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    calls::getsockname(fd)
}

/// getpeername(2). A unix socket has no such address: EAFNOSUPPORT.
pub(crate) fn peer_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    calls::getpeername(fd)
}

/// O_NONBLOCK, for descriptors that were not born with it.
pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    calls::set_nonblocking(fd)
}

/// SIOCOUTQ: bytes that were sent and that the peer has not acknowledged (tcp(7)).
pub(crate) fn unsent(fd: BorrowedFd<'_>) -> io::Result<u64> {
    calls::ioctl_outq(fd)
}

/// Bytes that the peer has ever acknowledged, counted from where the connection began.
pub(crate) fn acknowledged(fd: BorrowedFd<'_>) -> io::Result<u64> {
    options::tcp_info_acked(fd)
}

/// Bytes that TCP was ever given to send, counted from where the connection began (a FIN counts, too). WouldBlock: the peer
/// acknowledges so fast that it cannot be told now.
pub(crate) fn written(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut acked = options::tcp_info_acked(fd)?;
    for _ in 0..16 {
        // Nothing was acknowledged between the two: they belong together.
        let unsent = calls::ioctl_outq(fd)?;
        let now = options::tcp_info_acked(fd)?;
        if now == acked {
            return Ok(acked.saturating_add(unsent));
        }
        acked = now;
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Would epoll say that the socket is writable?
pub(crate) fn has_room(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::POLLOUT)];
    poll(&mut fds, PollTimeout::ZERO).is_ok_and(|n| n > 0)
}

/// The state in TCP_INFO: `CLOSE_WAIT`, [`CLOSE`] or another of the kernel's.
pub(crate) fn tcp_state(fd: BorrowedFd<'_>) -> io::Result<u8> {
    options::tcp_info_state(fd)
}

/// SO_ERROR: takes the error stored on the socket, if any.
pub(crate) fn take_error(fd: BorrowedFd<'_>) -> io::Result<Option<io::Error>> {
    let errno = options::take_errno(fd)?;
    Ok((errno != 0).then(|| io::Error::from_raw_os_error(errno)))
}

/// Whether `fd` is a TCP socket over IPv4 or IPv6. SCTP and MPTCP sockets are streams over IP too, but
/// what law 2 takes from TCP is not known of them, so they do not count.
pub(crate) fn is_tcp(fd: BorrowedFd<'_>) -> bool {
    options::kind(fd).is_ok_and(|(domain, kind, protocol)| {
        matches!(domain, libc::AF_INET | libc::AF_INET6) && kind == libc::SOCK_STREAM && protocol == libc::IPPROTO_TCP
    })
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sys::epoll::{Epoll, Events, RDHUP};
    use crate::sys::socket::reset;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    /// Waits until the peer's FIN or RST has come.
    fn ended(stream: &TcpStream) {
        let epoll = Epoll::new().unwrap();
        epoll.add(stream.as_fd(), RDHUP, 0).unwrap();
        let mut events = Events::with_capacity(1);
        assert!((0..1000).any(|_| { epoll.wait(&mut events, Some(10_000)).unwrap() == 1 }));
    }

    #[test]
    fn kinds_are_told_apart() {
        let (served, _client) = pair();
        assert!(is_tcp(served.as_fd()));
        let (unix, _other) = UnixStream::pair().unwrap();
        assert!(!is_tcp(unix.as_fd()));
        assert!(!is_tcp(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()));
        assert!(!is_tcp(std::fs::File::open("/dev/null").unwrap().as_fd()));
    }

    #[test]
    fn addresses_are_std_s_and_a_unix_socket_has_none() {
        let (served, client) = pair();
        assert_eq!(local_addr(served.as_fd()).unwrap(), served.local_addr().unwrap());
        assert_eq!(peer_addr(served.as_fd()).unwrap(), client.local_addr().unwrap());
        let (unix, _other) = UnixStream::pair().unwrap();
        assert_eq!(local_addr(unix.as_fd()).unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
        assert_eq!(peer_addr(unix.as_fd()).unwrap_err().raw_os_error(), Some(libc::EAFNOSUPPORT));
    }

    #[test]
    fn a_fin_and_a_reset_leave_different_states() {
        let (served, client) = pair();
        assert_eq!(tcp_state(served.as_fd()).unwrap(), ESTABLISHED);
        drop(client);
        ended(&served);
        assert_eq!(tcp_state(served.as_fd()).unwrap(), CLOSE_WAIT);

        let (served, client) = pair();
        reset(client.as_fd()).unwrap();
        ended(&served);
        assert_eq!(tcp_state(served.as_fd()).unwrap(), CLOSE);
        let error = take_error(served.as_fd()).unwrap().expect("the reset is stored");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // Taken is taken.
        assert!(take_error(served.as_fd()).unwrap().is_none());
    }

    #[test]
    fn unacknowledged_bytes_are_counted() {
        let (mut served, mut client) = pair();
        assert_eq!(unsent(served.as_fd()).unwrap(), 0);
        let begin = written(served.as_fd()).unwrap();
        assert!(has_room(served.as_fd()));
        // More than the peer's window holds: something must stay behind.
        set_nonblocking(served.as_fd()).unwrap();
        let chunk = vec![1; 1 << 16];
        let mut sent = 0;
        let full = (0..100_000).find_map(|_| match served.write(&chunk) {
            Ok(n) => {
                sent += n;
                None
            }
            Err(error) => Some(error),
        });
        assert_eq!(full.expect("the socket fills").kind(), ErrorKind::WouldBlock);
        assert!(unsent(served.as_fd()).unwrap() > 0 && !has_room(served.as_fd()));
        assert_eq!(written(served.as_fd()).unwrap() - begin, sent as u64, "however much is acknowledged");
        let mut sink = vec![0; sent];
        client.read_exact(&mut sink).unwrap();
        // All of it was read, so all of it is acknowledged, at the latest by the delayed ACK.
        let start = std::time::Instant::now();
        while unsent(served.as_fd()).unwrap() > 0 {
            assert!(start.elapsed() < std::time::Duration::from_secs(30));
            std::thread::yield_now();
        }
        assert_eq!(written(served.as_fd()).unwrap() - begin, sent as u64);
    }
}
