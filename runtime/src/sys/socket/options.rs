//! Socket options by name, each with a getter and a setter.
//!
//! Job: setsockopt(2) and getsockopt(2) behind names and units. State owned: none. Thread class: any thread.
//! Laws kept: none. Meanings: socket(7), tcp(7), ipv6(7).
//! Durations are rounded up to the option's unit and saturate at what the kernel takes.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use libc::{IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, SOL_SOCKET, c_int};
use nix::errno::Errno;

/// MAX_TCP_KEEPIDLE and MAX_TCP_KEEPINTVL of the kernel, in seconds.
const MAX_KEEPALIVE_SECONDS: c_int = 32_767;
/// MAX_TCP_KEEPCNT of the kernel.
const MAX_KEEPALIVE_COUNT: u32 = 127;

/// TCP_NODELAY.
pub(crate) fn nodelay(fd: BorrowedFd<'_>) -> io::Result<bool> {
    get_bool(fd, IPPROTO_TCP, libc::TCP_NODELAY)
}

/// TCP_NODELAY: small segments are sent at once instead of waiting for an acknowledgement.
pub(crate) fn set_nodelay(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set(fd, IPPROTO_TCP, libc::TCP_NODELAY, &c_int::from(on))
}

/// TCP_CORK, off, as it is: TCP sends what it has been given and was told to hold for more.
pub(crate) fn push(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, IPPROTO_TCP, libc::TCP_CORK, &c_int::from(false))
}

/// TCP_QUICKACK. The kernel changes it by itself as the connection goes on.
pub(crate) fn quickack(fd: BorrowedFd<'_>) -> io::Result<bool> {
    get_bool(fd, IPPROTO_TCP, libc::TCP_QUICKACK)
}

/// TCP_QUICKACK: acknowledge at once, for now.
pub(crate) fn set_quickack(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set(fd, IPPROTO_TCP, libc::TCP_QUICKACK, &c_int::from(on))
}

/// SO_KEEPALIVE with idle time, interval and count of probes; `None` when it is off.
pub(crate) fn keepalive(fd: BorrowedFd<'_>) -> io::Result<Option<(Duration, Duration, u32)>> {
    if !get_bool(fd, SOL_SOCKET, libc::SO_KEEPALIVE)? {
        return Ok(None);
    }
    let idle = seconds(get(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE)?);
    let interval = seconds(get(fd, IPPROTO_TCP, libc::TCP_KEEPINTVL)?);
    let count: c_int = get(fd, IPPROTO_TCP, libc::TCP_KEEPCNT)?;
    Ok(Some((idle, interval, u32::try_from(count).unwrap_or(0))))
}

/// SO_KEEPALIVE: after `idle` without traffic `count` probes, `interval` apart. `None` turns it off.
/// Times: 1 s to 32 767 s; count: 1 to 127.
pub(crate) fn set_keepalive(
    fd: BorrowedFd<'_>,
    idle: Option<Duration>,
    interval: Duration,
    count: u32,
) -> io::Result<()> {
    if let Some(idle) = idle {
        // The times first: turning it on arms the timer with what is set by then.
        set(fd, IPPROTO_TCP, libc::TCP_KEEPIDLE, &ceil_seconds(idle).clamp(1, MAX_KEEPALIVE_SECONDS))?;
        set(fd, IPPROTO_TCP, libc::TCP_KEEPINTVL, &ceil_seconds(interval).clamp(1, MAX_KEEPALIVE_SECONDS))?;
        set(fd, IPPROTO_TCP, libc::TCP_KEEPCNT, &(count.clamp(1, MAX_KEEPALIVE_COUNT) as c_int))?;
    }
    set(fd, SOL_SOCKET, libc::SO_KEEPALIVE, &c_int::from(idle.is_some()))
}

/// TCP_USER_TIMEOUT; `None` is the system's default (retransmission counts).
pub(crate) fn tcp_user_timeout(fd: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    let ms: c_int = get(fd, IPPROTO_TCP, libc::TCP_USER_TIMEOUT)?;
    Ok(u64::try_from(ms).ok().filter(|&ms| ms > 0).map(Duration::from_millis))
}

/// TCP_USER_TIMEOUT: how long sent bytes may stay unacknowledged. Milliseconds, rounded up; `None` and zero are the
/// system's default, as tcp(7) has it.
pub(crate) fn set_tcp_user_timeout(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> io::Result<()> {
    let ms = crate::sys::timeout_ms(Some(timeout.unwrap_or(Duration::ZERO)));
    set(fd, IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &ms)
}

/// SO_RCVBUF in bytes, as the kernel counts it (twice what was set).
pub(crate) fn recv_buffer_size(fd: BorrowedFd<'_>) -> io::Result<usize> {
    get_size(fd, libc::SO_RCVBUF)
}

/// SO_RCVBUF in bytes; the kernel doubles it, clamps it to net.core.rmem_max and stops tuning it.
pub(crate) fn set_recv_buffer_size(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set(fd, SOL_SOCKET, libc::SO_RCVBUF, &saturate(bytes))
}

/// SO_SNDBUF in bytes, as the kernel counts it (twice what was set).
pub(crate) fn send_buffer_size(fd: BorrowedFd<'_>) -> io::Result<usize> {
    get_size(fd, libc::SO_SNDBUF)
}

/// SO_SNDBUF in bytes; the kernel doubles it, clamps it to net.core.wmem_max and stops tuning it.
pub(crate) fn set_send_buffer_size(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    set(fd, SOL_SOCKET, libc::SO_SNDBUF, &saturate(bytes))
}

/// SO_LINGER; `None` when it is off.
#[cfg(test)]
pub(crate) fn linger(fd: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
    let value: libc::linger = get(fd, SOL_SOCKET, libc::SO_LINGER)?;
    Ok((value.l_onoff != 0).then(|| seconds(value.l_linger)))
}

/// SO_LINGER in seconds. Zero makes the last close send an RST; more would block it.
pub(crate) fn set_linger(fd: BorrowedFd<'_>, time: Option<Duration>) -> io::Result<()> {
    let value = libc::linger { l_onoff: c_int::from(time.is_some()), l_linger: time.map_or(0, ceil_seconds) };
    set(fd, SOL_SOCKET, libc::SO_LINGER, &value)
}

pub(super) fn set_reuse_addr(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, SOL_SOCKET, libc::SO_REUSEADDR, &1)
}

pub(super) fn set_reuse_port(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, SOL_SOCKET, libc::SO_REUSEPORT, &1)
}

pub(super) fn set_v6only(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    set(fd, IPPROTO_IPV6, libc::IPV6_V6ONLY, &c_int::from(on))
}

/// IP_BIND_ADDRESS_NO_PORT: a bind to port 0 picks the address only, the port is chosen by connect.
pub(super) fn set_bind_address_no_port(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1)
}

/// SO_ERROR: reads and clears the stored errno; 0 is none.
pub(super) fn take_errno(fd: BorrowedFd<'_>) -> io::Result<c_int> {
    get(fd, SOL_SOCKET, libc::SO_ERROR)
}

/// The first byte of TCP_INFO is the state.
pub(super) fn tcp_info_state(fd: BorrowedFd<'_>) -> io::Result<u8> {
    get(fd, IPPROTO_TCP, libc::TCP_INFO)
}

/// The field tcpi_bytes_acked of TCP_INFO, which libc's structure lacks: the 16th of eight bytes.
pub(super) fn tcp_info_acked(fd: BorrowedFd<'_>) -> io::Result<u64> {
    get::<[u64; 16]>(fd, IPPROTO_TCP, libc::TCP_INFO).map(|[.., acked]| acked)
}

/// SO_ACCEPTCONN: does it listen?
pub(super) fn listens(fd: BorrowedFd<'_>) -> io::Result<bool> {
    get_bool(fd, SOL_SOCKET, libc::SO_ACCEPTCONN)
}

/// SO_DOMAIN, SO_TYPE and SO_PROTOCOL.
pub(super) fn kind(fd: BorrowedFd<'_>) -> io::Result<(c_int, c_int, c_int)> {
    Ok((
        get(fd, SOL_SOCKET, libc::SO_DOMAIN)?,
        get(fd, SOL_SOCKET, libc::SO_TYPE)?,
        get(fd, SOL_SOCKET, libc::SO_PROTOCOL)?,
    ))
}

fn get_bool(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<bool> {
    get::<c_int>(fd, level, name).map(|value| value != 0)
}

fn get_size(fd: BorrowedFd<'_>, name: c_int) -> io::Result<usize> {
    get::<c_int>(fd, SOL_SOCKET, name).map(|value| usize::try_from(value).unwrap_or(0))
}

fn seconds(value: c_int) -> Duration {
    Duration::from_secs(u64::try_from(value).unwrap_or(0))
}

fn ceil_seconds(time: Duration) -> c_int {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    c_int::try_from(seconds).unwrap_or(c_int::MAX)
}

fn saturate(bytes: usize) -> c_int {
    c_int::try_from(bytes).unwrap_or(c_int::MAX)
}

/// A type that options carry: plain data, valid for every bit pattern.
trait OptionValue: Copy {
    const ZERO: Self;
}

impl OptionValue for c_int {
    const ZERO: Self = 0;
}

impl OptionValue for u8 {
    const ZERO: Self = 0;
}

impl OptionValue for [u64; 16] {
    const ZERO: Self = [0; 16];
}

impl OptionValue for libc::linger {
    const ZERO: Self = Self { l_onoff: 0, l_linger: 0 };
}

/// getsockopt(2). The kernel writes at most as many bytes as `T` has (TCP_INFO is cut to fit).
fn get<T: OptionValue>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    let mut value = T::ZERO;
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is live and initialised, `len` is its size and the kernel writes no more than that;
    // `OptionValue` types are valid whatever the bytes.
    let result = unsafe { libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len) };
    Errno::result(result)?;
    Ok(value)
}

/// setsockopt(2).
fn set<T: OptionValue>(fd: BorrowedFd<'_>, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` is a live reference to `len` bytes, which the kernel only reads.
    let result = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), len) };
    Ok(Errno::result(result).map(drop)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn stream() -> (TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        (TcpStream::connect(listener.local_addr().unwrap()).unwrap(), listener)
    }

    #[test]
    fn what_is_set_is_read_back() {
        let (stream, _listener) = stream();
        let fd = stream.as_fd();
        for on in [true, false] {
            set_nodelay(fd, on).unwrap();
            assert_eq!(nodelay(fd).unwrap(), on);
            assert_eq!(stream.nodelay().unwrap(), on);
        }
        set_quickack(fd, true).unwrap();
        assert!(quickack(fd).unwrap());

        assert_eq!(linger(fd).unwrap(), None);
        set_linger(fd, Some(Duration::from_millis(1500))).unwrap();
        assert_eq!(linger(fd).unwrap(), Some(Duration::from_secs(2)));
        set_linger(fd, None).unwrap();
        assert_eq!(linger(fd).unwrap(), None);

        assert_eq!(tcp_user_timeout(fd).unwrap(), None);
        set_tcp_user_timeout(fd, Some(Duration::from_micros(10_001))).unwrap();
        assert_eq!(tcp_user_timeout(fd).unwrap(), Some(Duration::from_millis(11)));
        set_tcp_user_timeout(fd, Some(Duration::MAX)).unwrap();
        assert_eq!(tcp_user_timeout(fd).unwrap(), Some(Duration::from_millis(i32::MAX as u64)));
        for off in [Some(Duration::ZERO), None] {
            set_tcp_user_timeout(fd, Some(Duration::from_nanos(1))).unwrap();
            assert_eq!(tcp_user_timeout(fd).unwrap(), Some(Duration::from_millis(1)));
            set_tcp_user_timeout(fd, off).unwrap();
            assert_eq!(tcp_user_timeout(fd).unwrap(), None, "{off:?}");
        }
    }

    #[test]
    fn buffer_sizes_grow_and_shrink() {
        let (stream, _listener) = stream();
        let fd = stream.as_fd();
        set_recv_buffer_size(fd, 10_000).unwrap();
        assert_eq!(recv_buffer_size(fd).unwrap(), 20_000);
        set_send_buffer_size(fd, 12_000).unwrap();
        assert_eq!(send_buffer_size(fd).unwrap(), 24_000);
        set_send_buffer_size(fd, usize::MAX).unwrap();
        assert!(send_buffer_size(fd).unwrap() > 24_000);
    }

    #[test]
    fn keepalive_goes_on_and_off_and_is_clamped() {
        let (stream, _listener) = stream();
        let fd = stream.as_fd();
        assert_eq!(keepalive(fd).unwrap(), None);
        let second = Duration::from_secs(1);
        set_keepalive(fd, Some(30 * second), 5 * second, 4).unwrap();
        assert_eq!(keepalive(fd).unwrap(), Some((30 * second, 5 * second, 4)));
        set_keepalive(fd, Some(Duration::MAX), Duration::ZERO, 0).unwrap();
        assert_eq!(keepalive(fd).unwrap(), Some((32_767 * second, second, 1)));
        set_keepalive(fd, None, second, 1).unwrap();
        assert_eq!(keepalive(fd).unwrap(), None);
    }

    #[test]
    fn an_option_of_another_kind_of_socket_is_an_error_with_its_errno() {
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let error = set_nodelay(unix.as_fd(), true).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }
}
