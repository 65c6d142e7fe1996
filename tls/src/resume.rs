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

/// See the module's text. It belongs to one context.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<VecDeque<(Box<str>, SslSession)>>);

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
