//! What the fault seam asks the kernel about a bare descriptor number, before it lies.
//!
//! Job: readiness, bytes that wait, TCP state. State owned: none. Thread class: any thread. Laws kept: none.
#![allow(unsafe_code, reason = "poll(2), ioctl(FIONREAD) and getsockopt(TCP_INFO) on a bare number")]

use std::os::fd::RawFd;

/// The kernel's SYN_SENT, of tcp_states.h.
pub(super) const SYN_SENT: u8 = 2;

pub(super) fn tcp_state(fd: RawFd) -> Option<u8> {
    let mut state = 0_u8;
    let mut len = 1;
    // SAFETY: the kernel writes at most `len` bytes, one, of tcp_info, which begins with the state. A number that is
    // no socket's is an error.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len) };
    (result == 0).then_some(state)
}

pub(super) fn poll(fd: RawFd, flags: i16) -> i16 {
    let mut asked = libc::pollfd { fd, events: flags, revents: 0 };
    // SAFETY: one live pollfd; a timeout of zero only looks.
    unsafe { libc::poll(&raw mut asked, 1, 0) };
    asked.revents
}

/// Bytes that a recv would find.
pub(super) fn queued(fd: RawFd) -> usize {
    let mut n: libc::c_int = 0;
    // SAFETY: the request writes one int, to a live int.
    unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) };
    usize::try_from(n).unwrap_or(0)
}
