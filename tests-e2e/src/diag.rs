//! Job: ask the kernel about one TCP socket of this host: its state and what waits in its queues.
//! A test uses it to know that bytes or a FIN HAVE arrived at a server that does not read.
//!
//! It asks sock_diag(7) for the exact pair of addresses, which stays cheap among thousands of
//! sockets in TIME_WAIT, and falls back to /proc/net/tcp where netlink is not to be had.
//! State owned: one netlink socket. Thread class: any thread.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST` of linux/netlink.h.
const REQUEST: u16 = 1;
/// Sizes of `nlmsghdr` and `inet_diag_req_v2`.
const HEADER: usize = 16;
const QUERY: usize = 56;

/// The state of a TCP socket, as the kernel numbers them (include/net/tcp_states.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum TcpState {
    Established,
    SynSent,
    SynRecv,
    FinWait1,
    FinWait2,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    Other(u8),
}

impl TcpState {
    fn new(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            other => Self::Other(other),
        }
    }
}

/// What the kernel says about one socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpRow {
    /// Its state.
    pub state: TcpState,
    /// Sequence numbers received and not yet read: bytes, plus one for a FIN.
    pub unread: u32,
    /// Bytes written and not yet acknowledged.
    pub unacked: u32,
}

/// A way to ask about sockets.
#[derive(Debug)]
pub struct SockDiag(Option<OwnedFd>);

impl SockDiag {
    /// Opens the netlink socket, or falls back to /proc/net/tcp (IPv4 only).
    pub fn open() -> Self {
        let netlink =
            socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag);
        Self(netlink.ok())
    }

    /// The socket bound to `local` and connected to `peer`; `None` when there is none.
    pub fn row(&self, local: SocketAddr, peer: SocketAddr) -> Option<TcpRow> {
        match &self.0 {
            Some(netlink) => ask(netlink, local, peer).unwrap_or_else(|_| table_row(local, peer)),
            None => table_row(local, peer),
        }
    }
}

fn ask(netlink: &OwnedFd, local: SocketAddr, peer: SocketAddr) -> io::Result<Option<TcpRow>> {
    let mut request = Vec::with_capacity(HEADER + QUERY);
    let length = u32::try_from(HEADER + QUERY).unwrap_or_default();
    request.extend_from_slice(&length.to_ne_bytes());
    request.extend_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request.extend_from_slice(&REQUEST.to_ne_bytes());
    request.extend_from_slice(&[0; 8]);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    request.extend_from_slice(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    request.extend_from_slice(&u32::MAX.to_ne_bytes());
    request.extend_from_slice(&local.port().to_be_bytes());
    request.extend_from_slice(&peer.port().to_be_bytes());
    request.extend_from_slice(&address_bytes(local.ip()));
    request.extend_from_slice(&address_bytes(peer.ip()));
    request.extend_from_slice(&0_u32.to_ne_bytes());
    request.extend_from_slice(&[0xff; 8]);
    sendto(netlink.as_raw_fd(), &request, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;

    let mut answer = [0; 2048];
    let length = recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let answer = &answer[..length];
    let kind = answer.get(4..6).map(|b| u16::from_ne_bytes([b[0], b[1]]));
    if kind != Some(SOCK_DIAG_BY_FAMILY) {
        // An error message: ENOENT for a socket that is not there.
        return Ok(None);
    }
    let Some(body) = answer.get(HEADER..HEADER + 64) else { return Ok(None) };
    if body[6..8] != peer.port().to_be_bytes() {
        // There is no such connection, and the listener was found instead.
        return Ok(None);
    }
    let word = |at: usize| u32::from_ne_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
    Ok(Some(TcpRow { state: TcpState::new(body[1]), unread: word(56), unacked: word(60) }))
}

fn address_bytes(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
    }
}

fn table_row(local: SocketAddr, peer: SocketAddr) -> Option<TcpRow> {
    let name = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => Some(format!("{:08X}:{:04X}", u32::from_ne_bytes(ip.octets()), addr.port())),
        IpAddr::V6(_) => None,
    };
    let (local, peer) = (name(local)?, name(peer)?);
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    let row = table.lines().find(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next() == Some(&local) && fields.next() == Some(&peer)
    })?;
    let mut fields = row.split_whitespace().skip(3);
    let state = u8::from_str_radix(fields.next()?, 16).ok()?;
    let (unacked, unread) = fields.next()?.split_once(':')?;
    Some(TcpRow {
        state: TcpState::new(state),
        unread: u32::from_str_radix(unread, 16).ok()?,
        unacked: u32::from_str_radix(unacked, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    use super::{SockDiag, TcpState, table_row};

    /// Both ways to ask must agree, or a window would be counted that was never entered.
    #[test]
    fn unread_bytes_and_the_state_are_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let pair = (server.local_addr().unwrap(), server.peer_addr().unwrap());
        client.write_all(b"abc").unwrap();
        let diag = SockDiag::open();
        for row in [diag.row(pair.0, pair.1), table_row(pair.0, pair.1)] {
            let row = row.unwrap();
            assert_eq!((row.state, row.unread), (TcpState::Established, 3));
        }
        assert_eq!(diag.row(pair.0, "127.0.0.1:1".parse().unwrap()), None);
    }
}
