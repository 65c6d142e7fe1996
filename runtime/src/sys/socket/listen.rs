//! Listening sockets.
//!
//! Job: make TCP listeners, accept. State owned: none. Thread class: any thread.
//! Laws kept: 4 (REUSEPORT listeners, and an address that a second instance cannot have), 5.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{calls, options};
use crate::sys::error::SysError;

/// A listening socket, non-blocking and CLOEXEC, with SO_REUSEADDR.
///
/// The text of an error names the step and the address; kind and errno are kept.
pub(crate) fn tcp_listener(
    addr: SocketAddr,
    backlog: i32,
    reuse_port: bool,
    v6only: Option<bool>,
) -> io::Result<OwnedFd> {
    let socket = bound(addr, reuse_port, v6only)?;
    calls::listen(socket.as_fd(), backlog).map_err(|e| SysError::wrap("listen on", addr, e))?;
    Ok(socket)
}

/// `count` sockets that listen on one address, between which the kernel distributes connections (SO_REUSEPORT).
///
/// Not shared with others, the first of them is bound without SO_REUSEPORT: of several that come at once the kernel lets
/// one listen (the others fail with EADDRINUSE, at the latest in listen(2)), and neither TIME_WAIT nor live old
/// connections are in its way. The option comes when it listens, for our own others.
pub(crate) fn tcp_listeners(
    mut addr: SocketAddr,
    backlog: i32,
    share_port: bool,
    v6only: Option<bool>,
    count: usize,
) -> io::Result<Vec<OwnedFd>> {
    let first = tcp_listener(addr, backlog, share_port, v6only)?;
    if count > 1 && !share_port {
        options::set_reuse_port(first.as_fd()).map_err(|e| SysError::wrap("SO_REUSEPORT for", addr, e))?;
    }
    if addr.port() == 0 {
        // The kernel chose: the others take the same port.
        addr.set_port(super::local_addr(first.as_fd())?.port());
    }
    let mut sockets = vec![first];
    for _ in 1..count {
        sockets.push(tcp_listener(addr, backlog, true, v6only)?);
    }
    Ok(sockets)
}

/// A socket that somebody else made is to be accepted from: non-blocking from now on. One that does not listen is refused.
pub(crate) fn ready_made_listener(fd: BorrowedFd<'_>) -> io::Result<()> {
    if !options::listens(fd)? {
        let text = "the socket does not listen: call listen(2) on it first";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    calls::set_nonblocking(fd)
}

/// accept4(2), non-blocking and CLOEXEC: one attempt, repeated only when a signal came first.
pub(crate) fn accept(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    calls::accept4(fd)
}

fn bound(addr: SocketAddr, reuse_port: bool, v6only: Option<bool>) -> io::Result<OwnedFd> {
    let socket = calls::tcp_socket(addr).map_err(|e| SysError::wrap("socket for", addr, e))?;
    let fd = socket.as_fd();
    options::set_reuse_addr(fd).map_err(|e| SysError::wrap("SO_REUSEADDR for", addr, e))?;
    if reuse_port {
        options::set_reuse_port(fd).map_err(|e| SysError::wrap("SO_REUSEPORT for", addr, e))?;
    }
    if let Some(v6only) = v6only
        && addr.is_ipv6()
    {
        options::set_v6only(fd, v6only).map_err(|e| SysError::wrap("IPV6_V6ONLY for", addr, e))?;
    }
    calls::bind(fd, addr).map_err(|e| SysError::wrap("bind", addr, e))?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    use super::*;
    use crate::sys::error::errno_of;
    use crate::sys::socket::local_addr;

    fn any_v4() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    #[test]
    fn an_empty_queue_is_eagain_and_a_connection_is_accepted() {
        let listener = tcp_listener(any_v4(), 16, false, None).unwrap();
        let addr = local_addr(listener.as_fd()).unwrap();
        let error = accept(listener.as_fd()).unwrap_err();
        assert_eq!((error.kind(), error.raw_os_error()), (ErrorKind::WouldBlock, Some(libc::EAGAIN)));
        let client = TcpStream::connect(addr).unwrap();
        let served = accept(listener.as_fd()).unwrap();
        assert_eq!(local_addr(served.as_fd()).unwrap(), addr);
        // Born non-blocking and CLOEXEC.
        use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
        for fd in [listener.as_fd(), served.as_fd()] {
            let flags = fcntl(fd, FcntlArg::F_GETFD).unwrap();
            assert!(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC));
            let flags = fcntl(fd, FcntlArg::F_GETFL).unwrap();
            assert!(OFlag::from_bits_retain(flags).contains(OFlag::O_NONBLOCK));
        }
        drop(client);
    }

    #[test]
    fn a_backlog_above_the_headers_limit_is_accepted() {
        tcp_listener(any_v4(), 65_535, false, None).unwrap();
    }

    #[test]
    fn reuse_port_shares_a_port_and_without_it_the_port_is_refused() {
        let first = tcp_listener(any_v4(), 16, true, None).unwrap();
        let addr = local_addr(first.as_fd()).unwrap();
        let _second = tcp_listener(addr, 16, true, None).unwrap();
        let error = tcp_listener(addr, 16, false, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        assert_eq!(errno_of(&error), Some(libc::EADDRINUSE));
        assert!(error.to_string().starts_with(&format!("bind {addr}: ")), "{error}");
    }

    #[test]
    fn an_address_is_refused_for_a_live_listener_only() {
        let have = |addr| tcp_listeners(addr, 16, false, None, 3);
        let listeners = have(any_v4()).unwrap();
        let addr = local_addr(listeners[0].as_fd()).unwrap();
        assert!(listeners.iter().all(|one| local_addr(one.as_fd()).unwrap() == addr));
        assert_eq!(have(addr).unwrap_err().kind(), ErrorKind::AddrInUse);
        let [listener, ..] = &listeners[..] else { unreachable!("three were asked for") };

        // One connection that stays, one that we end first, so that our side goes to TIME_WAIT.
        let client = |live: &mut Vec<_>| loop {
            let client = TcpStream::connect(addr).unwrap();
            // The kernel chose one of the three: until it is the first.
            match accept(listener.as_fd()) {
                Ok(served) => return (client, served),
                Err(_) => live.push(client),
            }
        };
        let mut others = Vec::new();
        let live = client(&mut others);
        let (mut ended_client, ended) = client(&mut others);
        drop(ended);
        assert_eq!(ended_client.read(&mut [0; 1]).unwrap(), 0);
        drop((ended_client, listeners, others));

        drop(have(addr).unwrap());
        // Control: both leftovers are there, as a bind without SO_REUSEADDR says.
        let plain = calls::tcp_socket(addr).unwrap();
        let error = calls::bind(plain.as_fd(), addr).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop((plain, live));
        // And with the live one gone too, TIME_WAIT alone does not refuse it either.
        have(addr).unwrap();
    }

    /// With a probe before the bind both had it in one of 18 rounds.
    #[test]
    fn of_two_that_come_at_once_one_has_the_address() {
        let both = std::sync::Barrier::new(2);
        let mut refused = 0;
        for round in 0..1000 {
            let addr = local_addr(tcp_listener(any_v4(), 1, false, None).unwrap().as_fd()).unwrap();
            let have = || {
                both.wait();
                tcp_listeners(addr, 16, false, None, 2)
            };
            let (one, other) = std::thread::scope(|scope| {
                let one = scope.spawn(have);
                (have(), one.join().unwrap())
            });
            assert!(one.is_err() || other.is_err(), "round {round}: both listen on {addr}");
            refused += u32::from(one.is_err() != other.is_err());
            for error in [one.err(), other.err()].into_iter().flatten() {
                assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
            }
        }
        assert!(refused > 100, "vacuity: one of two in {refused} rounds");
    }

    #[test]
    fn dual_stack_is_what_was_asked_for() {
        let any_v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
        if let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) {
            eprintln!("no IPv6 here, not tested: {error}");
            return;
        }
        let both = tcp_listener(any_v6, 16, false, Some(false)).unwrap();
        let port = local_addr(both.as_fd()).unwrap().port();
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let served = accept(both.as_fd()).unwrap();
        let mapped = crate::sys::socket::peer_addr(served.as_fd()).unwrap();
        assert_eq!(mapped.ip(), Ipv4Addr::LOCALHOST.to_ipv6_mapped());
        assert_eq!(mapped.port(), client.local_addr().unwrap().port());

        // The v4 port of a v6-only listener is free: an own v4 listener can be bound to it.
        let only = tcp_listener(any_v6, 16, false, Some(true)).unwrap();
        let port = local_addr(only.as_fd()).unwrap().port();
        TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        match tcp_listener((Ipv4Addr::UNSPECIFIED, port).into(), 16, false, None) {
            Ok(_) => {}
            // Another test may hold the v4 port; then only the refusal below can be judged.
            Err(error) => assert_eq!(error.kind(), ErrorKind::AddrInUse),
        }
        let port = local_addr(both.as_fd()).unwrap().port();
        let error = tcp_listeners((Ipv4Addr::UNSPECIFIED, port).into(), 16, false, None, 2).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
}
