//! Job: hold a reactor still while a test prepares what its next pass shall find, so that two
//! events land in ONE pass by construction and not by luck.
//! State owned: a closure posted to the reactor. Thread class: any thread but that reactor's.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use epoxide::ReactorHandle;

/// How long a reactor is held at most: a test that fails meanwhile must not leave it blocked.
const LONGEST_HOLD: Duration = Duration::from_secs(20);

/// A reactor that stands still until this is released or dropped.
#[derive(Debug)]
#[must_use = "dropping it releases the reactor"]
pub struct Held(Option<Sender<()>>);

impl Held {
    /// Lets the reactor go on.
    pub fn release(mut self) {
        self.0.take();
    }
}

/// Posts a closure that blocks `reactor`, and returns once that closure really runs there.
///
/// # Panics
/// When the reactor does not take up the closure within 10 s, or has stopped.
pub fn hold_reactor(reactor: &ReactorHandle) -> Held {
    let (here, arrived) = channel();
    let (release, released) = channel::<()>();
    let posted = reactor.run_here(move || {
        let _ = here.send(());
        // Ends when the sender is dropped; nothing is ever sent.
        let _ = released.recv_timeout(LONGEST_HOLD);
    });
    assert!(posted.is_ok(), "reactor {:?} refused the holding closure", reactor.id());
    arrived.recv_timeout(Duration::from_secs(10)).expect("the reactor takes up a posted closure");
    Held(Some(release))
}
