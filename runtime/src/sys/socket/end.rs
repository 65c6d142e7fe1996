//! Ending a connection: FIN, or RST.
//!
//! Job: shutdown of one or both directions; reset. State owned: none. Thread class: any thread.
//! Laws kept: 5 (a reset reaches the peer whoever else holds the socket).

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use nix::sys::socket::Shutdown;

use super::{calls, options};
use crate::sys::error::errno_of;

/// Sends the FIN behind what the kernel has taken. Reads go on.
pub(crate) fn shutdown_write(fd: BorrowedFd<'_>) -> io::Result<()> {
    calls::shutdown(fd, Shutdown::Write)
}

/// Ends both directions: our reads return 0.
pub(crate) fn shutdown_both(fd: BorrowedFd<'_>) -> io::Result<()> {
    calls::shutdown(fd, Shutdown::Both)
}

/// Sends the RST now and drops what was queued: `connect(AF_UNSPEC)`, which works on the socket and not
/// on the descriptor, so a duplicate held elsewhere does not delay it. Where that is refused (unix, kTLS):
/// SO_LINGER {1, 0} and a shutdown, and the RST goes out with the last close. A socket that is
/// not connected any more is no error.
pub(crate) fn reset(fd: BorrowedFd<'_>) -> io::Result<()> {
    if calls::connect(fd, None).is_ok() {
        return Ok(());
    }
    options::set_linger(fd, Some(Duration::ZERO))?;
    match shutdown_both(fd) {
        Err(error) if errno_of(&error) == Some(libc::ENOTCONN) => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    }

    #[test]
    fn a_reset_reaches_the_peer_though_a_duplicate_is_held() {
        let (served, mut client) = pair();
        let duplicate = served.try_clone().unwrap();
        reset(served.as_fd()).unwrap();
        // A blocking read: it would wait for ever had the RST not been sent.
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let error = client.read(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        drop(duplicate);
        // Twice is no error.
        reset(served.as_fd()).unwrap();
    }

    #[test]
    fn a_reset_discards_what_was_sent_and_not_read() {
        let (mut served, mut client) = pair();
        served.write_all(b"a cut body").unwrap();
        reset(served.as_fd()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let error = client.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    #[test]
    fn control_without_a_reset_a_held_duplicate_keeps_the_connection() {
        let (served, mut client) = pair();
        let duplicate = served.try_clone().unwrap();
        drop(served);
        client.set_nonblocking(true).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(duplicate);
    }

    #[test]
    fn a_unix_socket_falls_back_to_the_shutdown() {
        let (served, mut other) = UnixStream::pair().unwrap();
        let _duplicate = served.try_clone().unwrap();
        reset(served.as_fd()).unwrap();
        other.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(other.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn each_direction_ends_alone() {
        let (mut served, mut client) = pair();
        shutdown_write(served.as_fd()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        client.write_all(b"still").unwrap();
        let mut got = [0; 5];
        served.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"still");

        let (served, mut client) = pair();
        shutdown_both(served.as_fd()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
    }
}
