//! Addresses of both families: IP and unix.
//!
//! Job: one type for what a listener listens on and a peer is called, and the texts they are written in. State: none.
//! Thread class: pure, but for the two questions to the kernel. Laws: none of its own.

use crate::sys::{self, errno};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net;
use std::path::Path;

/// An IP address and port, or a unix socket's name.
///
/// Shown as `127.0.0.1:80`, `[::1]:80`, `unix:/run/app.sock`, `unix:@name` (abstract) or `unix:` (unnamed, as a connecting
/// unix socket is).
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use epoxide::Runtime;
///
/// let mut server = Runtime::builder();
/// server.reactors(1).listen("127.0.0.1:0", |_| async {});
/// let runtime = server.build()?;
/// let address = &runtime.addresses()[0];
/// assert!(address.ip().is_some() && address.path().is_none());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub enum Address {
    /// An IP address and port.
    Ip(SocketAddr),
    /// A unix socket's name: a path, an abstract name or nothing.
    Unix(net::SocketAddr),
}

impl Address {
    /// The IP address and port, if it is one.
    pub fn ip(&self) -> Option<SocketAddr> {
        match self {
            Self::Ip(addr) => Some(*addr),
            Self::Unix(_) => None,
        }
    }

    /// The path of a unix socket, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Ip(_) => None,
            Self::Unix(addr) => addr.as_pathname(),
        }
    }

    /// This side's name of a socket.
    pub(crate) fn local_of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        match sys::socket::local_addr(fd) {
            Err(error) if error.raw_os_error() == Some(errno::EAFNOSUPPORT) => {
                sys::socket::unix_local_addr(fd).map(Self::Unix)
            }
            other => other.map(Self::Ip),
        }
    }

    /// What a peer is called that has gone before it could be asked.
    pub(crate) fn unspecified(ip: bool) -> Self {
        match net::SocketAddr::from_pathname("") {
            Ok(unnamed) if !ip => Self::Unix(unnamed),
            _ => Self::Ip(SocketAddr::from(([0, 0, 0, 0], 0))),
        }
    }

    /// The other side's name of a socket.
    pub(crate) fn peer_of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        match sys::socket::peer_addr(fd) {
            Err(error) if error.raw_os_error() == Some(errno::EAFNOSUPPORT) => {
                sys::socket::unix_peer_addr(fd).map(Self::Unix)
            }
            other => other.map(Self::Ip),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(addr)
    }
}

impl From<net::SocketAddr> for Address {
    fn from(addr: net::SocketAddr) -> Self {
        Self::Unix(addr)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Unix(addr) => match (addr.as_pathname(), addr.as_abstract_name()) {
                (Some(path), _) => write!(f, "unix:{}", path.display()),
                (None, Some(name)) => write!(f, "unix:@{}", name.escape_ascii()),
                (None, None) => f.write_str("unix:"),
            },
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A unix socket's name from what a user wrote: a path, or an abstract name after a leading `@` or NUL.
pub(crate) fn unix_name(name: &OsStr) -> Result<net::SocketAddr, String> {
    let refused = |why: &dyn fmt::Display| format!("'{}' is no name of a unix socket: {why}", name.display());
    match name.as_bytes() {
        [] => Err(refused(&"it is empty")),
        [b'@' | 0] => Err(refused(&"an abstract name has at least one byte")),
        [b'@' | 0, rest @ ..] => net::SocketAddr::from_abstract_name(rest).map_err(|error| refused(&error)),
        _ => net::SocketAddr::from_pathname(name).map_err(|error| refused(&error)),
    }
}

/// The part behind `unix:`, if a text has it.
pub(crate) fn after_unix(text: &str) -> Option<&OsStr> {
    text.strip_prefix("unix:").map(OsStr::new)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_as_they_are_written() {
        for text in ["unix:/run/app.sock", "unix:@a name", "unix:relative"] {
            let name = unix_name(after_unix(text).unwrap()).unwrap();
            assert_eq!(Address::from(name).to_string(), text);
        }
        let abstract_name = unix_name(OsStr::from_bytes(b"\0x")).unwrap();
        assert_eq!(abstract_name.as_abstract_name(), Some(&b"x"[..]));
        assert_eq!(Address::from(SocketAddr::from(([127, 0, 0, 1], 80))).to_string(), "127.0.0.1:80");
        assert_eq!(after_unix("127.0.0.1:80"), None);
    }

    #[test]
    fn bad_names_are_refused_with_a_reason() {
        for (name, why) in [("", "empty"), ("@", "at least one byte"), (&*"x".repeat(200), "SUN_LEN")] {
            let text = unix_name(OsStr::new(name)).unwrap_err();
            assert!(text.contains(why), "{text}");
        }
        assert!(unix_name(OsStr::new(&format!("@{}", "x".repeat(200)))).is_err());
    }
}
