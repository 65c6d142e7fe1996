//! Job: what the two ends of a connection must agree about.
//! State owned: what handlers reported. Thread class: any thread.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use crate::stream::{End, Got};

/// How a handler ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// It saw the peer's FIN and ended its own side in good order.
    Whole,
    /// A read failed; what was sent before is all that was promised.
    ReadFailed(String),
    /// A flush or a shutdown failed: something promised did not go out.
    WriteFailed(String),
    /// It panicked, or was aborted, on purpose.
    Cut,
    /// It let go early, on purpose.
    LetGo,
}

/// Reports of handlers by the client's address.
#[derive(Clone, Debug, Default)]
pub struct Ledger(Arc<Mutex<HashMap<SocketAddr, Served>>>);

impl Ledger {
    /// A handler ends.
    pub fn report(&self, client: SocketAddr, served: Served) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(client, served);
    }

    /// How the client's handler ended, if it did.
    pub fn of(&self, client: SocketAddr) -> Option<Served> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&client).cloned()
    }
}

/// The client sent `len` bytes (or failed to), and should get `len` back.
///
/// - Right bytes in order, and not more than were sent.
/// - With a plan that loses nothing and a handler that plays along: all of them, and clean ends.
/// - A clean end means all of them, unless the handler stopped on its own accord before it promised more.
pub fn echoed(
    name: &str,
    strict: bool,
    len: usize,
    sent: &Result<(), String>,
    got: &Got,
    served: Option<&Served>,
) -> Result<(), String> {
    let fail = |what: &str| {
        Err(format!("{name}: {what}: sent {len} ({sent:?}), got {} ({:?}), the handler: {served:?}", got.n, got.end))
    };
    if let End::Corrupt(_) = got.end {
        return fail("CORRUPT");
    }
    if got.n > len {
        return fail("MORE came back than was sent");
    }
    if strict && (sent.is_err() || got.end != End::Fin || got.n != len) {
        return fail("LOST something though the plan loses nothing");
    }
    if got.end == End::Fin && got.n < len {
        let excused = matches!(served, Some(Served::ReadFailed(_) | Served::LetGo));
        if !excused {
            return fail("CUT and looks whole");
        }
    }
    Ok(())
}
