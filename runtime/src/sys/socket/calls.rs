//! The bare calls under the rest of `socket`: one function per system call.
//!
//! Job: turn each call into a safe function. State owned: none. Thread class: any thread.
//! Laws kept: 5 (non-blocking and CLOEXEC from birth; owned as soon as the kernel hands it out).

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{
    self as nix_socket, AddressFamily, Shutdown, SockFlag, SockType, SockaddrLike, SockaddrStorage, UnixAddr,
};

use crate::sys::retry;

const BORN: SockFlag = SockFlag::SOCK_NONBLOCK.union(SockFlag::SOCK_CLOEXEC);

/// A stream socket for the family of `addr`.
pub(super) fn tcp_socket(addr: SocketAddr) -> io::Result<OwnedFd> {
    let family = if addr.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    Ok(nix_socket::socket(family, SockType::Stream, BORN, None)?)
}

/// A unix stream socket.
pub(super) fn unix_socket() -> io::Result<OwnedFd> {
    Ok(nix_socket::socket(AddressFamily::Unix, SockType::Stream, BORN, None)?)
}

pub(super) fn bind_unix(fd: BorrowedFd<'_>, addr: &UnixAddr) -> io::Result<()> {
    Ok(nix_socket::bind(fd.as_raw_fd(), addr)?)
}

pub(super) fn connect_unix(fd: BorrowedFd<'_>, addr: &UnixAddr) -> nix::Result<()> {
    nix_socket::connect(fd.as_raw_fd(), addr)
}

pub(super) fn getsockname_unix(fd: BorrowedFd<'_>) -> io::Result<UnixAddr> {
    Ok(nix_socket::getsockname(fd.as_raw_fd())?)
}

pub(super) fn getpeername_unix(fd: BorrowedFd<'_>) -> io::Result<UnixAddr> {
    Ok(nix_socket::getpeername(fd.as_raw_fd())?)
}

pub(super) fn bind(fd: BorrowedFd<'_>, addr: SocketAddr) -> io::Result<()> {
    Ok(nix_socket::bind(fd.as_raw_fd(), &SockaddrStorage::from(addr))?)
}

/// listen(2); the kernel clamps the backlog to net.core.somaxconn.
pub(super) fn listen(fd: BorrowedFd<'_>, backlog: i32) -> io::Result<()> {
    // Not nix: its door refuses a backlog above the SOMAXCONN of the C headers, which an administrator may raise.
    // SAFETY: the call takes two integers, and the descriptor is borrowed, so it is open.
    let result = unsafe { libc::listen(fd.as_raw_fd(), backlog) };
    Ok(Errno::result(result).map(drop)?)
}

pub(super) fn accept4(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let raw = retry(|| {
        #[cfg(epoxide_chaos)]
        crate::sys::chaos::try_meet(crate::sys::chaos::Call::Accept, Some(fd))?;
        nix_socket::accept4(fd.as_raw_fd(), BORN)
    })?;
    // SAFETY: the kernel has just opened this descriptor for us; nobody else knows the number.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// connect(2), to nobody when `addr` is `None` (AF_UNSPEC, which undoes a connection).
/// EINTR is returned: the attempt goes on by itself and must not be made twice.
pub(super) fn connect(fd: BorrowedFd<'_>, addr: Option<SocketAddr>) -> nix::Result<()> {
    let result = match addr.map(SockaddrStorage::from) {
        // SAFETY: nix's address is valid for as many bytes as it says, and outlives the call.
        Some(addr) => unsafe { libc::connect(fd.as_raw_fd(), addr.as_ptr(), addr.len()) },
        None => {
            let nobody = libc::sockaddr { sa_family: libc::AF_UNSPEC as libc::sa_family_t, sa_data: [0; 14] };
            // SAFETY: the address is a whole `sockaddr` on this stack, and its size is given.
            unsafe { libc::connect(fd.as_raw_fd(), &raw const nobody, size_of::<libc::sockaddr>() as libc::socklen_t) }
        }
    };
    Errno::result(result).map(drop)
}

pub(super) fn shutdown(fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
    Ok(nix_socket::shutdown(fd.as_raw_fd(), how)?)
}

pub(super) fn getsockname(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    to_std(&nix_socket::getsockname(fd.as_raw_fd())?)
}

pub(super) fn getpeername(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    to_std(&nix_socket::getpeername(fd.as_raw_fd())?)
}

/// SIOCOUTQ (its value is TIOCOUTQ's): bytes that were sent and are not acknowledged yet.
pub(super) fn ioctl_outq(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let mut unsent: libc::c_int = 0;
    // SAFETY: the request writes one int, to a live int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut unsent) };
    Errno::result(result)?;
    Ok(u64::try_from(unsent).unwrap_or(0))
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    if !flags.contains(OFlag::O_NONBLOCK) {
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    }
    Ok(())
}

fn to_std(addr: &SockaddrStorage) -> io::Result<SocketAddr> {
    if let Some(v4) = addr.as_sockaddr_in() {
        Ok(SocketAddr::from(*v4))
    } else if let Some(v6) = addr.as_sockaddr_in6() {
        Ok(SocketAddr::from(*v6))
    } else {
        // A unix socket: it has a path or nothing, not an IP address.
        Err(Errno::EAFNOSUPPORT.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::io::{peek, recv, send};

    #[test]
    fn a_bad_descriptor_is_ebadf_at_every_door() {
        // SAFETY: the number is far above the kernel's limit, so it is never open: nothing can be closed or
        // reused while it is lent, and it is only used to see the kernel refuse it.
        let bad = unsafe { BorrowedFd::borrow_raw(i32::MAX - 1) };
        let errors = [
            recv(bad, &mut [0; 8]).unwrap_err(),
            peek(bad, &mut [0; 8]).unwrap_err(),
            send(bad, b"x").unwrap_err(),
            accept4(bad).unwrap_err(),
            listen(bad, 1).unwrap_err(),
            connect(bad, None).unwrap_err().into(),
            shutdown(bad, Shutdown::Both).unwrap_err(),
            getsockname(bad).unwrap_err(),
            ioctl_outq(bad).unwrap_err(),
            set_nonblocking(bad).unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        }
    }
}
