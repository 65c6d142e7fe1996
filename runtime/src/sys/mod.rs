//! The doors to the kernel: the only room of the crate that calls libc, nix or rustix.
//!
//! Job: one thin function per system call, safe to call, with `EINTR` dealt with at the door and the errno kept.
//! State owned: none, except the signal slots in [`signal`].
//! Thread class: any thread.
//! Laws kept: 4 (registrations), 5 (descriptors: CLOEXEC from birth, owned before configured, reset), 7 (wake).
//!
//! This is also the seam for injected faults: every system call has exactly one door, so a fault put into
//! the door is met by every caller. The macro `seam` below is what a door says for it.
//!
//! | file | doors |
//! |---|---|
//! | [`epoll`] | `epoll_create1`, `epoll_ctl`, `epoll_wait` |
//! | [`eventfd`] | `eventfd2`, and its `read` and `write` |
//! | [`mod@file`] | `sendfile`, `fstat`, and `pthread_sigmask`, `sigtimedwait`, `sigpending` around it |
//! | [`io`] | `recv`, `send`, `sendmsg` |
//! | [`ktls`] | `setsockopt(TCP_ULP, TLS_TX, TLS_RX)`, `getsockopt(TLS_TX)`, `sendmsg` and `recvmsg` with a record type |
//! | [`socket`] | `socket`, `bind`, `listen`, `accept4`, `connect`, `shutdown`, `getsockname`, `getpeername`, `getsockopt`, `setsockopt`, `ioctl(SIOCOUTQ)`, `poll`, `fcntl(F_GETFL, F_SETFL)` |
//! | [`affinity`] | `sched_getaffinity`, `sched_setaffinity` |
//! | [`limits`] | `getrlimit`, `setrlimit` |
//! | [`clock`] | `clock_gettime(CLOCK_MONOTONIC_COARSE)` |
//! | [`schedule`] | `sched_getscheduler`, `sched_setscheduler` |
//! | [`signal`] | `sigaction`, `pthread_sigmask`, `pipe2`, `poll`, and the pipe's `read` and `write` |
//! | `chaos` | none: what the doors do when a plan tells them to misbehave (with `--cfg epoxide_chaos` only) |
//! | [`errno`] | none: the errnos that the crate sorts by |
//! | [`error`] | none: the error that names the step and keeps the errno |
//!
//! Files that need `unsafe` opt in at their top and give a SAFETY comment per block:
//! `chaos/look.rs`, `file.rs`, `ktls.rs`, `schedule.rs`, `socket/calls.rs`, `socket/options.rs` and
//! `signal.rs`.

use std::io as std_io;
use std::time::Duration;

use nix::errno::Errno;

pub(crate) mod affinity;
#[cfg(epoxide_chaos)]
pub(crate) mod chaos;
pub(crate) mod clock;
pub(crate) mod epoll;
pub(crate) mod errno;
pub(crate) mod error;
pub(crate) mod eventfd;
pub(crate) mod file;
pub(crate) mod io;
pub(crate) mod ktls;
pub(crate) mod limits;
pub(crate) mod schedule;
pub(crate) mod signal;
pub(crate) mod socket;

/// The fault seam of a door that moves bytes: how many of `$len` its call may move. What a fault does instead leaves the
/// closure around the call.
#[cfg(epoxide_chaos)]
macro_rules! seam {
    ($call:ident, $fd:expr, $len:expr) => {
        match $crate::sys::chaos::meet($crate::sys::chaos::Call::$call, $fd, $len) {
            $crate::sys::chaos::Met::Go(len) => len,
            $crate::sys::chaos::Met::Returned(n) => return Ok(n),
            $crate::sys::chaos::Met::Failed(errno) => return Err($crate::sys::chaos::Raw::raw(errno)),
        }
    };
}
#[cfg(epoxide_chaos)]
use seam;

/// Repeats a call that a signal interrupted before it did anything, and turns the errno into an
/// `io::Error` (which keeps it: no allocation, no text).
#[inline(always)]
fn retry<T>(mut call: impl FnMut() -> nix::Result<T>) -> std_io::Result<T> {
    loop {
        match call() {
            Ok(value) => return Ok(value),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A timeout in the milliseconds of epoll_wait(2) and poll(2): rounded UP, so that nothing wakes early
/// and spins, saturating at `i32::MAX` (24 days), and -1 for "for ever".
fn timeout_ms(timeout: Option<Duration>) -> i32 {
    timeout.map_or(-1, |timeout| i32::try_from(whole_ms(timeout)).unwrap_or(i32::MAX))
}

/// Milliseconds, rounded up, saturating.
pub(crate) fn whole_ms(time: Duration) -> u64 {
    // Not `as_nanos`: dividing 128 bits takes 80 instructions.
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_nanos().div_ceil(1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_rounded_up_and_saturate() {
        assert_eq!(timeout_ms(None), -1);
        assert_eq!(timeout_ms(Some(Duration::ZERO)), 0);
        assert_eq!(timeout_ms(Some(Duration::from_nanos(1))), 1);
        assert_eq!(timeout_ms(Some(Duration::from_millis(7))), 7);
        assert_eq!(timeout_ms(Some(Duration::from_micros(7001))), 8);
        assert_eq!(timeout_ms(Some(Duration::MAX)), i32::MAX);
    }

    #[test]
    fn an_interrupted_call_is_repeated_and_any_other_errno_is_kept() {
        let mut left = 3;
        let value = retry(|| {
            left -= 1;
            if left > 0 { Err(Errno::EINTR) } else { Ok(left) }
        });
        assert_eq!(value.unwrap(), 0);
        let error = retry(|| Err::<(), _>(Errno::EAGAIN)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
        assert_eq!(error.kind(), std_io::ErrorKind::WouldBlock);
    }
}
