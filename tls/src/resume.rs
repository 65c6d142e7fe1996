//! A client's sessions, to be resumed when it connects to the same host again.
//!
//! State: the sessions, newest last, behind a mutex that no other lock is taken under. Who touches it: BoringSSL's callback
//! when a ticket arrives (under that session's lock), handshakes that begin. Thread class: any thread. Laws: 16 (bounded).

use crate::context::host_index;
use crate::ffi;
use boring::ex_data::Index;
use boring::ssl::{Ssl, SslRef, SslSession, SslVersion};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// Sessions that are kept, of all hosts together: the oldest goes.
const MAX: usize = 512;

/// Of one host: a server that sends tickets without end must not push out those of others.
const MAX_OF_HOST: usize = 64;

/// See the module's text. It belongs to one context.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<Shelf<SslSession>>);

/// What is kept for hosts, newest last.
struct Shelf<T>(VecDeque<(Box<str>, T)>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Shelf<T> {
    /// What had to go for it comes back.
    fn put(&mut self, host: &str, value: T) -> Option<(Box<str>, T)> {
        let of_host = |(name, _): &(Box<str>, T)| **name == *host;
        let gone = if self.0.iter().filter(|kept| of_host(kept)).count() == MAX_OF_HOST {
            self.0.iter().position(of_host).and_then(|oldest| self.0.remove(oldest))
        } else if self.0.len() == MAX {
            self.0.pop_front()
        } else {
            None
        };
        self.0.push_back((host.into(), value));
        gone
    }

    /// The newest of a host: it stays if `again` says so.
    fn take(&mut self, host: &str, again: impl FnOnce(&T) -> Option<T>) -> Option<T> {
        let at = self.0.iter().rposition(|(name, _)| **name == *host)?;
        again(&self.0[at].1).or_else(|| self.0.remove(at).map(|(_, value)| value))
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions(..)")
    }
}

/// Where a client's session keeps what its tickets go to, for those that come past BoringSSL.
fn index() -> Option<Index<Ssl, Arc<Sessions>>> {
    static INDEX: LazyLock<Option<Index<Ssl, Arc<Sessions>>>> = LazyLock::new(|| Ssl::new_ex_index().ok());
    *INDEX
}

/// Before the handshake: tickets of this session go to `sessions`.
pub(crate) fn keep(ssl: &mut SslRef, sessions: Arc<Sessions>) {
    if let Some(index) = index() {
        ssl.set_ex_data(index, sessions);
    }
}

/// A ticket that the kernel has decrypted, a whole message. A malformed one is forgotten: it is the server's loss.
pub(crate) fn take_ticket(ssl: &mut SslRef, message: &[u8]) {
    let Some(session) = ffi::ticket(ssl, message) else { return };
    let kept = index().and_then(|index| ssl.ex_data(index)).zip(host_index().and_then(|index| ssl.ex_data(index)));
    if let Some((sessions, host)) = kept {
        sessions.put(host, session);
    }
}

impl Sessions {
    pub(crate) fn put(&self, host: &str, session: SslSession) {
        let gone = self.0.lock().unwrap_or_else(PoisonError::into_inner).put(host, session);
        drop(gone);
    }

    /// The newest of a host. A TLS 1.3 ticket is used once: two connections with the same one could be linked (RFC 8446,
    /// C.4).
    pub(crate) fn take(&self, host: &str) -> Option<SslSession> {
        let again = |session: &SslSession| (session.protocol_version() == SslVersion::TLS1_2).then(|| session.clone());
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(host, again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_of_a_host_is_taken_and_no_host_pushes_out_the_others() {
        let mut shelf = Shelf::default();
        assert_eq!(shelf.put("quiet", 0), None);
        for n in 1..=1000 {
            assert_eq!(shelf.put("loud", n).is_some(), n > MAX_OF_HOST);
        }
        assert_eq!(shelf.0.len(), 1 + MAX_OF_HOST);
        assert_eq!(shelf.take("loud", |_| None), Some(1000));
        assert_eq!(shelf.take("loud", |n| Some(*n)), Some(999), "it stays");
        assert_eq!(shelf.take("loud", |_| None), Some(999));
        assert_eq!((shelf.take("quiet", |_| None), shelf.take("quiet", |_| None)), (Some(0), None));
        for n in 0..1000 {
            let _ = shelf.put(&n.to_string(), n);
        }
        assert_eq!(shelf.0.len(), MAX);
        assert_eq!((shelf.take("0", |_| None), shelf.take("999", |_| None)), (None, Some(999)));
    }
}
