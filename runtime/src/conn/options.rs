//! Socket options by name.
//!
//! State: none; the kernel holds it. Thread class: any thread. Laws: 5.

use crate::conn::connection::Connection;
use crate::sys::socket;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Options of the socket, by name. Each call is one system call; errors are those of getsockopt(2) and setsockopt(2).
impl Connection {
    /// Is Nagle's algorithm off? On for every accepted connection. See tcp(7), `TCP_NODELAY`.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn nodelay(&self) -> io::Result<bool> {
        socket::nodelay(self.as_fd())
    }

    /// Switches Nagle's algorithm off (`true`) or on. See tcp(7), `TCP_NODELAY`.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        socket::set_nodelay(self.as_fd(), on)
    }

    /// Are acknowledgements sent at once? See tcp(7), `TCP_QUICKACK`: the kernel resets it by itself.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn quickack(&self) -> io::Result<bool> {
        socket::quickack(self.as_fd())
    }

    /// Sends acknowledgements at once, for now. See tcp(7), `TCP_QUICKACK`.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_quickack(&self, on: bool) -> io::Result<()> {
        socket::set_quickack(self.as_fd(), on)
    }

    /// Keepalive probes: idle time before the first, interval, and how many before the connection is given up. `None`
    /// when they are off. See tcp(7), `TCP_KEEPIDLE`, `TCP_KEEPINTVL`, `TCP_KEEPCNT`.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn keepalive(&self) -> io::Result<Option<(Duration, Duration, u32)>> {
        socket::keepalive(self.as_fd())
    }

    /// Switches keepalive probes on, or off with `idle` = `None`. Times are in whole seconds, 1 at least.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_keepalive(&self, idle: Option<Duration>, interval: Duration, count: u32) -> io::Result<()> {
        socket::set_keepalive(self.as_fd(), idle, interval, count)
    }

    /// How long sent data may stay unacknowledged before the kernel gives the connection up; `None` is its default. See
    /// tcp(7), `TCP_USER_TIMEOUT`.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn tcp_user_timeout(&self) -> io::Result<Option<Duration>> {
        socket::tcp_user_timeout(self.as_fd())
    }

    /// Sets `TCP_USER_TIMEOUT`, in milliseconds, rounded up; `None` and zero are the system's default (tcp(7)).
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_tcp_user_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        socket::set_tcp_user_timeout(self.as_fd(), timeout)
    }

    /// Bytes of the kernel's receive buffer: twice what was asked for, see socket(7), `SO_RCVBUF`.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        socket::recv_buffer_size(self.as_fd())
    }

    /// Sets `SO_RCVBUF`, in bytes.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        socket::set_recv_buffer_size(self.as_fd(), bytes)
    }

    /// Bytes of the kernel's send buffer: twice what was asked for, see socket(7), `SO_SNDBUF`.
    ///
    /// # Errors
    /// Those of getsockopt(2).
    pub fn send_buffer_size(&self) -> io::Result<usize> {
        socket::send_buffer_size(self.as_fd())
    }

    /// Sets `SO_SNDBUF`, in bytes.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn set_send_buffer_size(&self, bytes: usize) -> io::Result<()> {
        socket::set_send_buffer_size(self.as_fd(), bytes)
    }
}
