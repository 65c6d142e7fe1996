//! Bytes in and out of a socket: the hot path of the crate.
//!
//! Job: recv, peek, send, sendmsg; never blocking, whatever the descriptor's mode.
//! State owned: none. Thread class: any thread (who may call is decided by the read word and the flush word).
//! Laws kept: 1 and 3 use these doors; no SIGPIPE ever.
//!
//! recv and send are rustix's, which makes the system call in line: libc's functions of the same names are cancellation
//! points, which cost 50 instructions a call more in a process with several threads, and its syscall(2) 15 (measured with
//! callgrind on a keep-alive GET). Rust threads are never cancelled.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::socket::{self, MsgFlags, SockaddrStorage};
use rustix::net::{RecvFlags, SendFlags};

/// The most slices one [`send_vectored`] may carry (UIO_MAXIOV of the kernel).
pub(crate) const IOV_MAX: usize = libc::UIO_MAXIOV as usize;

const SEND: SendFlags = SendFlags::NOSIGNAL.union(SendFlags::DONTWAIT);

/// recv(2). `Ok(0)` is the peer's FIN (or an empty `space`).
#[inline]
pub(crate) fn recv(fd: BorrowedFd<'_>, space: &mut [u8]) -> io::Result<usize> {
    recv_flags(fd, space, RecvFlags::DONTWAIT)
}

/// recv(2) that leaves the bytes where they are.
#[inline]
pub(crate) fn peek(fd: BorrowedFd<'_>, space: &mut [u8]) -> io::Result<usize> {
    recv_flags(fd, space, RecvFlags::DONTWAIT.union(RecvFlags::PEEK))
}

#[inline(always)]
fn recv_flags(fd: BorrowedFd<'_>, space: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    uninterrupted(|| {
        #[cfg(epoxide_chaos)]
        let space = {
            let len = super::seam!(Recv, fd, space.len());
            &mut space[..len]
        };
        rustix::net::recv(fd, &mut *space, flags).map(|(n, _)| n)
    })
}

/// send(2): how many bytes the kernel took, perhaps fewer than offered.
#[inline]
pub(crate) fn send(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    uninterrupted(|| {
        #[cfg(epoxide_chaos)]
        let bytes = &bytes[..super::seam!(Send, fd, bytes.len())];
        rustix::net::send(fd, bytes, SEND)
    })
}

/// Repeats a call that a signal interrupted before it did anything.
#[inline(always)]
fn uninterrupted(mut call: impl FnMut() -> rustix::io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Ok(n) => return Ok(n),
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// sendmsg(2) over at most [`IOV_MAX`] slices (more are refused with EMSGSIZE).
#[inline]
pub(crate) fn send_vectored(fd: BorrowedFd<'_>, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    super::retry(|| {
        #[cfg(epoxide_chaos)]
        let slices = super::chaos::cut(fd, slices)?;
        socket::sendmsg::<SockaddrStorage>(
            fd.as_raw_fd(),
            slices,
            &[],
            MsgFlags::from_bits_retain(SEND.bits() as i32),
            None,
        )
    })
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn eagain_keeps_its_errno_and_kind_on_a_blocking_descriptor() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut space = [0; 8];
        for result in [recv(ours.as_fd(), &mut space), peek(ours.as_fd(), &mut [0; 8])] {
            let error = result.unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        }
        // Control: with bytes there both succeed, and peek leaves them.
        theirs.write_all(b"abc").unwrap();
        assert_eq!(peek(ours.as_fd(), &mut space).unwrap(), 3);
        assert_eq!(recv(ours.as_fd(), &mut space).unwrap(), 3);
        assert_eq!(&space[..3], b"abc");
        drop(theirs);
        assert_eq!(recv(ours.as_fd(), &mut space).unwrap(), 0);
    }

    #[test]
    fn a_full_socket_refuses_with_eagain_and_a_gone_peer_with_epipe() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let chunk = [7; 4096];
        let error = (0..1_000_000).find_map(|_| send(ours.as_fd(), &chunk).err());
        assert_eq!(error.expect("the socket fills").raw_os_error(), Some(libc::EAGAIN));
        drop(theirs);
        // No SIGPIPE: the process is still here to look at the error.
        let error = send(ours.as_fd(), &chunk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    }

    #[test]
    fn not_a_socket_is_an_error_that_says_so() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let error = recv(file.as_fd(), &mut [0; 8]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
        let error = send(file.as_fd(), b"x").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    }

    #[test]
    fn slices_go_out_in_order_and_too_many_are_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let slices = [IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cde")];
        assert_eq!(send_vectored(ours.as_fd(), &slices).unwrap(), 5);
        let mut got = [0; 5];
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"abcde");
        assert_eq!(send_vectored(ours.as_fd(), &vec![IoSlice::new(b"x"); IOV_MAX]).unwrap(), IOV_MAX);
        let error = send_vectored(ours.as_fd(), &vec![IoSlice::new(b"x"); IOV_MAX + 1]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EMSGSIZE));
    }
}
