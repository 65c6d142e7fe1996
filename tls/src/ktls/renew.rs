//! New keys in the middle of a session (KeyUpdate, RFC 8446, 4.6.3), where the kernel takes them: from Linux 6.14 on.
//!
//! State: `Renewal`, whether it does, and this side's keys that wait in the queue. Who touches it: whoever holds the session
//! lock; the sender says that a message leaves. Thread class: any thread. Laws: 14 (the message and what is sent behind
//! it keep their order: both are in the queue), 16 (however often the peer asks three messages are there at most: one that
//! leaves, an answer, and one that asks).

use crate::ktls::keys::{self, Keys};
use crate::wire::Wire;
use boring::ssl::{SslRef, SslStream};
use epoxide::layer::{KernelKeys, NewKeys, Queue};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// EBUSY of Linux; this crate does without libc.
const EBUSY: i32 = 16;

/// Does the kernel take keys twice? Told by the first socket: to be given the same keys again changes nothing for it.
/// `keys`: those that it has just got, of which it has used none.
pub(super) fn can_renew(queue: &Queue, keys: &Keys) -> bool {
    static CAN: OnceLock<bool> = OnceLock::new();
    let keys = keys.for_kernel();
    if !keys.tls13 {
        return false;
    }
    if let Some(can) = CAN.get() {
        return *can;
    }
    match queue.renew_tx(&keys) {
        Ok(()) => *CAN.get_or_init(|| true),
        Err(error) if error.raw_os_error() == Some(EBUSY) => *CAN.get_or_init(|| false),
        // The next one may tell.
        Err(_) => false,
    }
}

/// Keys on their way to the kernel, behind the message that tells the peer.
struct Coming {
    keys: Keys,
    /// The message asks the peer for new keys, too.
    asks: bool,
    /// The peer may have the message already: what it asks for from now on is not answered by this one.
    left: AtomicBool,
}

impl NewKeys for Coming {
    fn keys(&self) -> KernelKeys<'_> {
        self.keys.for_kernel()
    }

    fn leaving(&self) {
        self.left.store(true, Ordering::Release);
    }
}

/// See the module's text.
pub(crate) struct Renewal {
    able: bool,
    coming: Option<Arc<Coming>>,
}

impl Renewal {
    pub(crate) fn new(able: bool) -> Self {
        Self { able, coming: None }
    }

    /// This side's next records have new keys; `ask`: the peer is to renew its own, too. One that still waits does for all
    /// that want some meanwhile, unless it does not ask and this one does. False: the kernel does not take them.
    pub(crate) fn send(&mut self, stream: &mut SslStream<Wire>, ask: bool) -> bool {
        let waits = |coming: &Arc<Coming>| !coming.left.load(Ordering::Acquire);
        if self.coming.as_ref().is_some_and(|coming| waits(coming) && (coming.asks || !ask)) {
            return true;
        }
        if !self.able {
            return false;
        }
        let Some(keys) = keys::renewed(stream.ssl(), true) else { return false };
        let coming = Arc::new(Coming { keys, asks: ask, left: AtomicBool::new(false) });
        self.coming = Some(coming.clone());
        stream.get_mut().new_keys(&[24, 0, 0, 1, u8::from(ask)], coming);
        true
    }

    /// The peer's next records have new keys. False: the kernel does not take them.
    pub(crate) fn receive(&self, ssl: &SslRef, queue: &Queue) -> bool {
        self.able && keys::renewed(ssl, false).is_some_and(|keys| queue.install_rx(&keys.for_kernel()).is_ok())
    }
}
