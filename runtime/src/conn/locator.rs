//! Where a connection is: for those who hold it weakly and may find it moved to another reactor.
//!
//! State: the current body, held weakly, behind a mutex that guards no user code; how many guards hold the read clock.
//! Who touches it: close handles and guards on any thread, the one mover. Made by the first who needs it. Thread class: any
//! thread. Laws: 9, 12.
//!
//! A move publishes the new body here BEFORE it reads from the old one what is to go along. Whoever ends the connection
//! acts on the body that it found, THEN looks whether that is still the one, and if not acts on the new one too. So of an
//! act and a move that meet, the move sees the act or the actor sees the move.

use crate::conn::body::Body;
use crate::sync::lock;
use crate::sync::plain::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Locator {
    body: Mutex<Weak<Body>>,
    /// Guards that hold the read clock.
    suspended: AtomicU32,
}

impl Locator {
    /// The one of this connection.
    pub(crate) fn of(body: &Arc<Body>) -> Arc<Self> {
        let make = || Arc::new(Self { body: Mutex::new(Arc::downgrade(body)), suspended: AtomicU32::new(0) });
        body.locator.get_or_init(make).clone()
    }

    /// The connection now; `None` once it is closed.
    pub(crate) fn current(&self) -> Option<Arc<Body>> {
        lock(&self.body).upgrade()
    }

    /// Acts on the connection, and again if it moved meanwhile: `act` must be harmless on the body that it left.
    pub(crate) fn apply(&self, act: impl Fn(&Body)) {
        let Some(mut body) = self.current() else { return };
        loop {
            act(&body);
            match self.current() {
                Some(now) if !Arc::ptr_eq(&now, &body) => body = now,
                _ => return,
            }
        }
    }

    /// The mover: from here on it is there.
    pub(crate) fn moved_to(&self, body: &Arc<Body>) {
        let old = std::mem::replace(&mut *lock(&self.body), Arc::downgrade(body));
        drop(old);
    }

    pub(crate) fn suspend(&self) {
        self.suspended.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn resume(&self) {
        self.suspended.fetch_sub(1, Ordering::AcqRel);
    }

    /// Is the read clock held?
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire) > 0
    }
}
