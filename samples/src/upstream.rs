//! The server that a relay stands in front of: where it is, and whether it answers.
//!
//! State: one flag, so that each outage is told of once, however many clients meet it. Thread class: any thread.

use crate::say::complain;
use epoxide::{ConnectOptions, Connection, connect_with};
use std::fmt::Display;
use std::io;
use std::net::ToSocketAddrs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// See the module's text.
#[derive(Debug)]
pub struct Upstream {
    /// Who speaks on standard error.
    name: &'static str,
    addr: String,
    down: AtomicBool,
}

impl Upstream {
    /// One at `addr`, HOST:PORT. Says so if that has no address now: a wrong name is seen at once, and a name server
    /// that is away for a while keeps no relay from its start. Blocks meanwhile.
    pub fn new(name: &'static str, addr: String) -> Self {
        let upstream = Self { name, addr, down: AtomicBool::new(false) };
        match upstream.addr.to_socket_addrs().map(|mut found| found.next()) {
            Ok(Some(_)) => {}
            Ok(None) => upstream.is_down(&format_args!("{} has no address", upstream.addr)),
            Err(error) => upstream.is_down(&format_args!("{}: {error}", upstream.addr)),
        }
        upstream
    }

    /// Where it is.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Connects to it within ten seconds; what comes of it is told of when it changes.
    ///
    /// # Errors
    /// Those of [`connect_with`].
    pub async fn connect(&self) -> io::Result<Connection> {
        let options = ConnectOptions { timeout: Duration::from_secs(10), ..ConnectOptions::default() };
        let result = connect_with(self.addr(), options).await;
        match &result {
            Ok(_) => self.is_up(),
            Err(error) => self.is_down(error),
        }
        result
    }

    /// It answers.
    pub fn is_up(&self) {
        // The load alone while nothing changes: the flag is every reactor's.
        if self.down.load(Ordering::Relaxed) && self.down.swap(false, Ordering::Relaxed) {
            self.say(format_args!("{} answers again", self.addr));
        }
    }

    /// It does not; `why` names the address.
    pub fn is_down(&self, why: &dyn Display) {
        if !self.down.swap(true, Ordering::Relaxed) {
            self.say(format_args!("{why}; clients are turned away until it answers"));
        }
    }

    /// To standard error; where nobody reads that any more, it ends nothing.
    pub fn say(&self, text: std::fmt::Arguments<'_>) {
        complain(format_args!("[{}] {text}", self.name));
    }
}
