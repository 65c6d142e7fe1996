//! The keys of session tickets: random, never stored, renewed every 12 h.
//!
//! State: the key that seals now and the one before, behind a mutex that is held to copy one. Who touches it: handshakes,
//! on any thread, and reloads (which keep the keys unless who is let in has changed). Thread class: any thread.
//!
//! A ticket is the session's secrets, sealed for ourselves: AES-256-CBC and HMAC-SHA-256 as RFC 5077, 4 recommends. One
//! sealed with the key before is opened and replaced; an older one means a full handshake.

use boring::error::ErrorStack;
use boring::hash::MessageDigest;
use boring::hmac::HmacCtxRef;
use boring::rand::rand_bytes;
use boring::ssl::TicketKeyCallbackResult;
use boring::symm::{Cipher, CipherCtxRef};
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long one key seals.
pub(crate) const ROTATION: Duration = Duration::from_secs(12 * 3600);

#[derive(Clone, PartialEq, Eq)]
struct Key {
    name: [u8; 16],
    cipher: [u8; 32],
    mac: [u8; 32],
}

impl Key {
    fn random() -> Result<Self, ErrorStack> {
        let mut key = Self { name: [0; 16], cipher: [0; 32], mac: [0; 32] };
        for part in [&mut key.name[..], &mut key.cipher, &mut key.mac] {
            rand_bytes(part)?;
        }
        Ok(key)
    }
}

struct Keys {
    now: Key,
    since: Instant,
    before: Option<Key>,
}

impl Keys {
    /// The key that seals at `at`, a new one if the old one's time is over.
    fn current(&mut self, at: Instant) -> Result<Key, ErrorStack> {
        let age = at.saturating_duration_since(self.since);
        if age >= ROTATION {
            let old = std::mem::replace(&mut self.now, Key::random()?);
            // A key that nobody replaced for two rotations has had its time as the one before already.
            self.before = (age < 2 * ROTATION).then_some(old);
            self.since = at;
        }
        Ok(self.now.clone())
    }

    /// The key of this name, and whether it is the one before.
    fn find(&mut self, name: &[u8; 16], at: Instant) -> Option<(Key, bool)> {
        self.current(at).ok()?;
        if self.now.name == *name {
            return Some((self.now.clone(), false));
        }
        self.before.clone().filter(|key| key.name == *name).map(|key| (key, true))
    }
}

/// See the module's text.
pub(crate) struct TicketKeys(Mutex<Keys>);

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketKeys(..)")
    }
}

impl TicketKeys {
    pub(crate) fn new(at: Instant) -> Result<Self, ErrorStack> {
        Ok(Self(Mutex::new(Keys { now: Key::random()?, since: at, before: None })))
    }

    /// For a new ticket: sets up the name, the iv, the cipher and the mac, or refuses.
    pub(crate) fn seal(
        &self,
        name: &mut [u8; 16],
        iv: &mut [u8; 16],
        cipher: &mut CipherCtxRef,
        mac: &mut HmacCtxRef,
    ) -> TicketKeyCallbackResult {
        let key = self.0.lock().unwrap_or_else(PoisonError::into_inner).current(Instant::now());
        let sealed = key.and_then(|key| {
            *name = key.name;
            rand_bytes(iv)?;
            cipher.init_encrypt(&Cipher::aes_256_cbc(), &key.cipher, iv)?;
            mac.init(&key.mac, &MessageDigest::sha256())
        });
        if sealed.is_ok() { TicketKeyCallbackResult::Success } else { TicketKeyCallbackResult::Error }
    }

    /// For a ticket that came back: sets up the cipher and the mac, or says that a full handshake is to be made.
    pub(crate) fn open(
        &self,
        name: &[u8; 16],
        iv: &[u8; 16],
        cipher: &mut CipherCtxRef,
        mac: &mut HmacCtxRef,
    ) -> TicketKeyCallbackResult {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner).find(name, Instant::now());
        let Some((key, old)) = found else { return TicketKeyCallbackResult::Noop };
        let opened = cipher
            .init_decrypt(&Cipher::aes_256_cbc(), &key.cipher, iv)
            .and_then(|()| mac.init(&key.mac, &MessageDigest::sha256()));
        match (opened, old) {
            (Err(_), _) => TicketKeyCallbackResult::Error,
            (Ok(()), true) => TicketKeyCallbackResult::DecryptSuccessRenew,
            (Ok(()), false) => TicketKeyCallbackResult::Success,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_rotate_every_12_hours_and_one_old_one_still_opens() {
        let start = Instant::now();
        let keys = TicketKeys::new(start).unwrap();
        let mut keys = keys.0.into_inner().unwrap();
        let first = keys.current(start + ROTATION - Duration::from_secs(1)).unwrap();
        assert!(keys.find(&first.name, start).is_some_and(|(_, old)| !old));
        let second = keys.current(start + ROTATION).unwrap();
        assert!(second != first && second.cipher != first.cipher && second.mac != first.mac);
        assert!(keys.find(&first.name, start + ROTATION).is_some_and(|(key, old)| old && key == first));
        let third = keys.current(start + 2 * ROTATION).unwrap();
        assert!(keys.find(&first.name, start + 2 * ROTATION).is_none(), "a key lives for two rotations");
        assert!(keys.find(&second.name, start + 2 * ROTATION).is_some());
        // Nobody came for days: the key that sealed last is too old to open.
        assert!(keys.find(&third.name, start + 5 * ROTATION).is_none());
        assert!(keys.find(&[0; 16], start + 5 * ROTATION).is_none());
    }
}
