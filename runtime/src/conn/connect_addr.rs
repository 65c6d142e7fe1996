//! Where to connect, and how.
//!
//! Job: what users write, taken apart. State: none. Thread class: pure. Laws: none of its own.

use crate::conn::address::{self, Address};
use std::ffi::OsStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::unix::net;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How to connect.
///
/// ```
/// # epoxide::block_on(async {
/// use epoxide::{ConnectAddr, ConnectOptions};
/// use std::time::Duration;
///
/// let server = std::net::TcpListener::bind("127.0.0.1:0")?;
/// let hasty = ConnectOptions { timeout: Duration::from_secs(2), ..ConnectOptions::default() };
/// let conn = epoxide::connect(ConnectAddr::new(server.local_addr()?).options(hasty)).await?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConnectOptions {
    /// How long everything may take: the look-up of the name and all attempts. Zero: as long as the kernel tries
    /// (tcp(7), `tcp_syn_retries`, about two minutes). Default 30 s.
    pub timeout: Duration,
    /// The address to connect from; port 0 is the kernel's choice. Only addresses of the same family are tried, so with
    /// one no unix socket is.
    pub local_addr: Option<SocketAddr>,
    /// Switch Nagle's algorithm off (tcp(7), `TCP_NODELAY`). Default true.
    pub nodelay: bool,
    /// How long an attempt may go undecided before the next address of a name is tried beside it. Default 250 ms
    /// (RFC 8305, section 5: Connection Attempt Delay).
    pub attempt_delay: Duration,
    /// `SO_RCVBUF` in bytes, see socket(7). Default: the kernel tunes it.
    pub recv_buffer_size: Option<usize>,
    /// `SO_SNDBUF` in bytes, see socket(7). Default: the kernel tunes it.
    pub send_buffer_size: Option<usize>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            local_addr: None,
            nodelay: true,
            attempt_delay: Duration::from_millis(250),
            recv_buffer_size: None,
            send_buffer_size: None,
        }
    }
}

/// Where to connect: a socket address, a pair of address or host name and port, a text (`"127.0.0.1:80"`, `"[::1]:80"`,
/// `"example.org:80"`, `"unix:/run/app.sock"`, `"unix:@abstract"`), or a path. A bad one is reported when the connect is
/// awaited.
///
/// ```
/// # epoxide::block_on(async {
/// use epoxide::ConnectAddr;
///
/// let by_text = ConnectAddr::new("unix:/nowhere/app.sock");
/// assert_eq!(epoxide::connect(by_text).await.unwrap_err().kind(), std::io::ErrorKind::NotFound);
/// assert!(epoxide::connect(("127.0.0.1", 0)).await.is_err()); // a pair of host and port
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct ConnectAddr {
    pub(crate) target: Target,
    pub(crate) options: ConnectOptions,
}

/// What the user wrote, taken apart.
#[derive(Clone)]
pub(crate) enum Target {
    Ip(SocketAddr),
    Host { name: String, port: u16 },
    Unix(net::SocketAddr),
    Bad(String),
}

impl ConnectAddr {
    /// The address with default options.
    pub fn new(addr: impl Into<Self>) -> Self {
        addr.into()
    }

    /// The same address with other options.
    #[must_use]
    pub fn options(mut self, options: ConnectOptions) -> Self {
        self.options = options;
        self
    }

    fn of(target: Target) -> Self {
        Self { target, options: ConnectOptions::default() }
    }

    fn unix(name: &OsStr) -> Self {
        Self::of(match address::unix_name(name) {
            Ok(addr) => Target::Unix(addr),
            Err(why) => Target::Bad(format!("cannot connect to {why}")),
        })
    }

    fn host(name: &str, port: u16) -> Self {
        Self::of(match name.parse::<IpAddr>() {
            Ok(ip) => Target::Ip(SocketAddr::new(ip, port)),
            Err(_) => Target::Host { name: name.to_owned(), port },
        })
    }

    fn text(text: &str) -> Self {
        if let Some(name) = address::after_unix(text) {
            return Self::unix(name);
        }
        if let Ok(addr) = text.parse::<SocketAddr>() {
            return addr.into();
        }
        match text.rsplit_once(':').map(|(name, port)| (name, port.parse::<u16>())) {
            Some((name, Ok(port))) if !name.is_empty() && !name.contains([':', '[', ']']) => Self::host(name, port),
            _ => Self::of(Target::Bad(format!(
                "cannot connect to '{text}': an address looks like 127.0.0.1:80, [::1]:80, example.org:80 or unix:/path"
            ))),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Host { name, port } => write!(f, "{name}:{port}"),
            Self::Unix(addr) => Address::Unix(addr.clone()).fmt(f),
            Self::Bad(why) => f.write_str(why),
        }
    }
}

impl fmt::Debug for ConnectAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectAddr")
            .field("target", &format_args!("{}", self.target))
            .field("options", &self.options)
            .finish()
    }
}

impl From<SocketAddr> for ConnectAddr {
    fn from(addr: SocketAddr) -> Self {
        Self::of(Target::Ip(addr))
    }
}

impl From<SocketAddrV4> for ConnectAddr {
    fn from(addr: SocketAddrV4) -> Self {
        SocketAddr::V4(addr).into()
    }
}

impl From<SocketAddrV6> for ConnectAddr {
    fn from(addr: SocketAddrV6) -> Self {
        SocketAddr::V6(addr).into()
    }
}

impl From<Address> for ConnectAddr {
    fn from(addr: Address) -> Self {
        Self::of(match addr {
            Address::Ip(addr) => Target::Ip(addr),
            Address::Unix(addr) if addr.is_unnamed() => {
                Target::Bad("an unnamed unix socket takes no connections".into())
            }
            Address::Unix(addr) => Target::Unix(addr),
        })
    }
}

macro_rules! from_ip_and_port {
    ($($ip:ty),+) => {$(
        impl From<($ip, u16)> for ConnectAddr {
            fn from(addr: ($ip, u16)) -> Self {
                SocketAddr::from(addr).into()
            }
        }
    )+};
}

from_ip_and_port!(IpAddr, Ipv4Addr, Ipv6Addr, [u8; 4]);

impl From<(&str, u16)> for ConnectAddr {
    fn from((name, port): (&str, u16)) -> Self {
        Self::host(name, port)
    }
}

impl From<(String, u16)> for ConnectAddr {
    fn from((name, port): (String, u16)) -> Self {
        Self::host(&name, port)
    }
}

impl From<&str> for ConnectAddr {
    fn from(text: &str) -> Self {
        Self::text(text)
    }
}

impl From<String> for ConnectAddr {
    fn from(text: String) -> Self {
        Self::text(&text)
    }
}

impl From<&String> for ConnectAddr {
    fn from(text: &String) -> Self {
        Self::text(text)
    }
}

impl From<&Path> for ConnectAddr {
    fn from(path: &Path) -> Self {
        Self::unix(path.as_os_str())
    }
}

impl From<PathBuf> for ConnectAddr {
    fn from(path: PathBuf) -> Self {
        Self::unix(path.as_os_str())
    }
}

impl From<&PathBuf> for ConnectAddr {
    fn from(path: &PathBuf) -> Self {
        Self::unix(path.as_os_str())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn shown(addr: impl Into<ConnectAddr>) -> String {
        let target = addr.into().target;
        let kind = match target {
            Target::Ip(_) => "ip",
            Target::Host { .. } => "host",
            Target::Unix(_) => "unix",
            Target::Bad(_) => "bad",
        };
        format!("{kind} {target}")
    }

    #[test]
    fn texts_and_pairs_are_told_apart() {
        assert_eq!(shown("127.0.0.1:80"), "ip 127.0.0.1:80");
        assert_eq!(shown("[::1]:80"), "ip [::1]:80");
        assert_eq!(shown(("::1", 80)), "ip [::1]:80");
        assert_eq!(shown(([127, 0, 0, 1], 80)), "ip 127.0.0.1:80");
        assert_eq!(shown("example.org:80"), "host example.org:80");
        assert_eq!(shown(("example.org".to_owned(), 80)), "host example.org:80");
        assert_eq!(shown("unix:/a/b"), "unix unix:/a/b");
        assert_eq!(shown(Path::new("/a/b")), "unix unix:/a/b");
        assert_eq!(shown("unix:@name"), "unix unix:@name");
    }

    #[test]
    fn bad_texts_are_kept_until_they_can_be_reported() {
        for text in ["", "80", ":80", "host", "host:", "host:65536", "::1:80", "[::1]", "unix:", "unix:@"] {
            let shown = shown(text);
            assert!(shown.starts_with("bad cannot connect to "), "{text}: {shown}");
        }
    }
}
