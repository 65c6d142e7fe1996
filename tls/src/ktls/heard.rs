//! What BoringSSL learns and says while the kernel makes the records.
//!
//! State: the secrets of what is sent and received; an alert that BoringSSL would have sent; whether the peer has asked for new keys. It
//! is attached to BoringSSL's session. Who touches it: callbacks of BoringSSL, within calls of whoever holds the session lock
//! (or makes the handshake), and the same afterwards. Thread class: any thread. Laws: 14.
//!
//! Once the kernel has the keys BoringSSL's own write side is stale: what it writes goes nowhere. So the two things that
//! it writes by itself, alerts and answers to a KeyUpdate, are noted here, and go through the kernel.

use crate::ffi;
use crate::ktls::{ALERT, HANDSHAKE};
use boring::ex_data::Index;
use boring::ssl::{Ssl, SslRef};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// A traffic secret (RFC 8446, 7.1), wiped when dropped.
#[derive(Clone)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        ffi::cleanse(&mut self.0);
    }
}

/// See the module's text.
#[derive(Default)]
struct Heard {
    sent: Option<Secret>,
    received: Option<Secret>,
    alert: Option<[u8; 2]>,
    wants_keys: bool,
}

fn index() -> Option<Index<Ssl, Mutex<Heard>>> {
    static INDEX: LazyLock<Option<Index<Ssl, Mutex<Heard>>>> = LazyLock::new(|| Ssl::new_ex_index().ok());
    *INDEX
}

fn heard(ssl: &SslRef) -> Option<MutexGuard<'_, Heard>> {
    Some(ssl.ex_data(index()?)?.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Before the handshake: listens.
pub(crate) fn listen(ssl: &mut SslRef) {
    if let Some(index) = index() {
        ssl.set_ex_data(index, Mutex::default());
        ffi::listen(ssl);
    }
}

/// A line of the key log: `LABEL CLIENT_RANDOM SECRET`, the last two in hexadecimal digits.
pub(crate) fn key_line(ssl: &SslRef, line: &str) {
    let mut words = line.split(' ');
    let by_server = match words.next() {
        Some("SERVER_TRAFFIC_SECRET_0") => true,
        Some("CLIENT_TRAFFIC_SECRET_0") => false,
        _ => return,
    };
    let Some(mut heard) = heard(ssl) else { return };
    let secret = words.nth(1).and_then(from_hex).map(Secret);
    if by_server == ssl.is_server() {
        heard.sent = secret;
    } else {
        heard.received = secret;
    }
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = (0..digits.len()).step_by(2);
    pairs.map(|at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok()).collect()
}

/// A message that BoringSSL has sent or received, without its record's header.
pub(crate) fn message(ssl: &SslRef, sent: bool, kind: u8, body: &[u8]) {
    match (sent, kind, body) {
        (true, ALERT, &[level, what]) => {
            if let Some(mut heard) = heard(ssl) {
                heard.alert = Some([level, what]);
            }
        }
        // KeyUpdate, update_requested.
        (false, HANDSHAKE, &[24, 0, 0, 1, 1]) => {
            if let Some(mut heard) = heard(ssl) {
                heard.wants_keys = true;
            }
        }
        _ => {}
    }
}

pub(crate) fn secret(ssl: &SslRef, sent: bool) -> Option<Secret> {
    let heard = heard(ssl)?;
    if sent { heard.sent.clone() } else { heard.received.clone() }
}

/// The secret of the session from now on.
pub(crate) fn keep_secret(ssl: &SslRef, sent: bool, secret: Secret) {
    if let Some(mut heard) = heard(ssl) {
        *(if sent { &mut heard.sent } else { &mut heard.received }) = Some(secret);
    }
}

/// They are not needed any more.
pub(crate) fn forget_secrets(ssl: &SslRef) {
    if let Some(mut heard) = heard(ssl) {
        (heard.sent, heard.received) = (None, None);
    }
}

pub(crate) fn take_alert(ssl: &SslRef) -> Option<[u8; 2]> {
    heard(ssl)?.alert.take()
}

/// Has the peer asked for new keys since the last look?
pub(crate) fn take_wants_keys(ssl: &SslRef) -> bool {
    heard(ssl).is_some_and(|mut heard| std::mem::take(&mut heard.wants_keys))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_come_in_pairs() {
        assert_eq!(from_hex("00ff10").as_deref(), Some(&[0, 255, 16][..]));
        for bad in ["0", "0g", "é0"] {
            assert_eq!(from_hex(bad), None, "{bad}");
        }
    }
}
