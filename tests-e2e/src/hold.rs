//! Job: hold a reactor still while a test prepares what its next pass shall find, so that two
//! events land in ONE pass by construction and not by luck.
//! State owned: a closure posted to the reactor. Thread class: any thread but that reactor's.

use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::{Peer, Server, wait_until};
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

/// One turn of peers whose connections echo a byte and park again: all send while the reactor is held, so that one wait
/// has all the events; then each byte comes back, and every read has parked for the next turn.
///
/// # Panics
/// When one of that does not happen within 10 s.
pub fn echo_in_one_wait(server: &Server, peers: &mut [Peer], byte: u8) {
    const SOON: Duration = Duration::from_secs(10);
    let parks = server.stats().parks;
    let held = hold_reactor(&server.reactor());
    for peer in peers.iter_mut() {
        peer.send(&[byte]).unwrap();
    }
    held.release();
    for (i, peer) in peers.iter_mut().enumerate() {
        assert_eq!(peer.read_exactly(1, SOON), Ok(vec![byte]), "turn {byte}, connection {i}");
    }
    assert!(wait_until(SOON, || server.stats().parks >= parks + peers.len() as u64), "turn {byte}");
}
