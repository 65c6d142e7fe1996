//! A client's sessions, to be resumed when it connects to the same host again.
//!
//! State: the sessions, newest last, behind a mutex that no other lock is taken under. Who touches it: BoringSSL's callback
//! when a ticket arrives (under that session's lock), handshakes that begin. Thread class: any thread. Laws: 16 (bounded).

use boring::ssl::{SslSession, SslVersion};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Sessions that are kept, of all hosts together: the oldest goes.
const MAX: usize = 512;

/// See the module's text. It belongs to one context.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<VecDeque<(Box<str>, SslSession)>>);

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions(..)")
    }
}

impl Sessions {
    pub(crate) fn put(&self, host: &str, session: SslSession) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = (kept.len() == MAX).then(|| kept.pop_front());
        kept.push_back((host.into(), session));
        drop(kept);
        drop(oldest);
    }

    /// The newest of a host. A TLS 1.3 ticket is used once: two connections with the same one could be linked (RFC 8446,
    /// C.4).
    pub(crate) fn take(&self, host: &str) -> Option<SslSession> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().rposition(|(name, _)| **name == *host)?;
        if kept[at].1.protocol_version() == SslVersion::TLS1_2 {
            return Some(kept[at].1.clone());
        }
        kept.remove(at).map(|(_, session)| session)
    }
}
