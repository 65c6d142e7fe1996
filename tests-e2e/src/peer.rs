//! Job: a scripted, blocking peer: it stalls, drips, half-closes, resets, sends an urgent byte, or
//! leaves with input unread, exactly when the test says so.
//! State owned: one socket. Thread class: any thread but a reactor's.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, send, setsockopt, socket, sockopt,
};

use crate::loopback;

/// How a connection ended, as its peer saw it. A reset is never taken for an end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The other side's FIN.
    Eof,
    /// The other side's RST.
    Reset,
    /// Nothing within the time: a hang.
    Timeout,
    /// Another error.
    Failed(ErrorKind),
}

impl Ending {
    fn of(error: &io::Error) -> Self {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => Self::Timeout,
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Self::Reset,
            kind => Self::Failed(kind),
        }
    }

    /// Whether the connection ended at all.
    pub fn is_closed(self) -> bool {
        matches!(self, Self::Eof | Self::Reset)
    }
}

/// What is set on a peer's socket before it connects.
#[derive(Debug, Clone, Copy, Default)]
pub struct PeerOptions {
    /// SO_RCVBUF: a small one makes the server's flush park soon. Before connect, or the window
    /// is already announced.
    pub receive_buffer: Option<usize>,
}

/// A blocking client of a server under test.
#[derive(Debug)]
pub struct Peer {
    stream: TcpStream,
}

impl Peer {
    /// Connects, with TCP_NODELAY so that every write is a segment of its own.
    ///
    /// # Panics
    /// When the server does not accept.
    pub fn connect(addr: SocketAddr) -> Self {
        Self::connect_with(addr, PeerOptions::default())
    }

    /// A peer whose kernel takes next to nothing while it does not read.
    ///
    /// # Panics
    /// When the server does not accept.
    pub fn connect_stalling(addr: SocketAddr) -> Self {
        Self::connect_with(addr, PeerOptions { receive_buffer: Some(4096) })
    }

    /// Connects with options.
    ///
    /// # Panics
    /// When the server does not accept.
    pub fn connect_with(addr: SocketAddr, options: PeerOptions) -> Self {
        Unconnected::new(addr, options).connect().expect("the server accepts a connection")
    }

    /// Our address.
    pub fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr().expect("a connected socket has an address")
    }

    /// The server's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.stream.peer_addr().expect("a connected socket has a peer")
    }

    /// The socket itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends all of `bytes`; at most 10 s.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.set_write_timeout(Some(Duration::from_secs(10)))?;
        self.stream.write_all(bytes)
    }

    /// Sends until `within` passes without progress; returns how many bytes were taken.
    pub fn send_until_blocked(&mut self, bytes: &[u8], within: Duration) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(within))?;
        let mut sent = 0;
        while sent < bytes.len() {
            match self.stream.write(&bytes[sent..]) {
                Ok(n) => sent += n,
                Err(e) if Ending::of(&e) == Ending::Timeout => break,
                Err(e) => return Err(e),
            }
        }
        Ok(sent)
    }

    /// Sends `bytes` in pieces of `size`, one segment each, `gap` apart.
    pub fn drip(&mut self, bytes: &[u8], size: usize, gap: Duration) -> io::Result<()> {
        for piece in bytes.chunks(size) {
            self.send(piece)?;
            // sleep: the gap is the stimulus.
            std::thread::sleep(gap);
        }
        Ok(())
    }

    /// Sends `bytes` and the FIN in ONE segment: MSG_MORE holds the last bytes back until the FIN.
    pub fn send_with_fin(&mut self, bytes: &[u8]) -> io::Result<()> {
        let more = MsgFlags::from_bits_retain(libc::MSG_MORE);
        let sent = send(self.stream.as_raw_fd(), bytes, more)?;
        if sent != bytes.len() {
            return Err(io::Error::other("the bytes for one segment did not fit the send buffer"));
        }
        self.half_close()
    }

    /// Sends one urgent byte (MSG_OOB): a receiver's recv stops at its mark.
    pub fn send_urgent(&mut self, byte: u8) -> io::Result<()> {
        send(self.stream.as_raw_fd(), &[byte], MsgFlags::MSG_OOB)?;
        Ok(())
    }

    /// Sends our FIN; reading goes on.
    pub fn half_close(&mut self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Leaves with a RST.
    pub fn reset(self) {
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        setsockopt(&self.stream.as_fd(), sockopt::Linger, &linger).expect("SO_LINGER is settable");
    }

    /// Reads once; 0 is the FIN.
    pub fn read(&mut self, buffer: &mut [u8], within: Duration) -> Result<usize, Ending> {
        self.stream.set_read_timeout(Some(within)).map_err(|e| Ending::of(&e))?;
        self.stream.read(buffer).map_err(|e| Ending::of(&e))
    }

    /// Reads exactly `count` bytes, or says how it ended before.
    pub fn read_exactly(&mut self, count: usize, within: Duration) -> Result<Vec<u8>, Ending> {
        let deadline = Instant::now() + within;
        let mut bytes = vec![0; count];
        let mut filled = 0;
        while filled < count {
            match self.read(&mut bytes[filled..], left(deadline))? {
                0 => return Err(Ending::Eof),
                n => filled += n,
            }
        }
        Ok(bytes)
    }

    /// Reads until the connection ends or `within` passes.
    pub fn read_to_end(&mut self, within: Duration) -> (Vec<u8>, Ending) {
        let deadline = Instant::now() + within;
        let mut all = Vec::new();
        let mut chunk = vec![0; 64 * 1024];
        loop {
            match self.read(&mut chunk, left(deadline)) {
                Ok(0) => return (all, Ending::Eof),
                Ok(n) => all.extend_from_slice(&chunk[..n]),
                Err(ending) => return (all, ending),
            }
        }
    }

    /// How the connection ends, whatever still arrives before.
    pub fn ending(&mut self, within: Duration) -> Ending {
        self.read_to_end(within).1
    }
}

/// A peer that has its descriptor and is not connected yet.
#[derive(Debug)]
pub struct Unconnected {
    socket: OwnedFd,
    addr: SocketAddr,
}

impl Unconnected {
    /// Makes the socket.
    ///
    /// # Panics
    /// When the kernel refuses a socket.
    pub fn new(addr: SocketAddr, options: PeerOptions) -> Self {
        let family = if addr.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let socket =
            socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a client socket can be made");
        if let Some(bytes) = options.receive_buffer {
            setsockopt(&socket, sockopt::RcvBuf, &bytes).expect("SO_RCVBUF is settable");
        }
        Self { socket, addr }
    }

    /// Connects it.
    pub fn connect(self) -> io::Result<Peer> {
        connect(self.socket.as_raw_fd(), &SockaddrStorage::from(self.addr))?;
        let stream = TcpStream::from(self.socket);
        stream.set_nodelay(true)?;
        Ok(Peer { stream })
    }
}

/// SO_SNDBUF of a socket that somebody else holds.
///
/// # Panics
/// When the kernel refuses.
pub fn set_send_buffer(socket: &impl AsFd, bytes: usize) {
    setsockopt(socket, sockopt::SndBuf, &bytes).expect("SO_SNDBUF is settable");
}

/// `len` bytes, byte i = i mod 251: a shift or a gap anywhere shows.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8).collect()
}

/// Waits, bounded, for something that has no signal of its own (the kernel's side of a window).
#[must_use]
pub fn wait_until(within: Duration, mut done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    let mut turns = 0_u32;
    while !done() {
        if Instant::now() >= deadline {
            return false;
        }
        turns += 1;
        if turns < 50 {
            std::thread::yield_now();
        } else {
            // sleep: the kernel's side of a window has no signal.
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    true
}

/// Never zero: a zero timeout would mean "for ever" to the socket.
fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// A connected TCP pair: the end to be served, and a client whose reads fail after `ceiling`.
pub fn tcp_pair(ceiling: Duration) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.set_read_timeout(Some(ceiling)).unwrap();
    (listener.accept().unwrap().0, client)
}
