//! Job: hubs and their members, for the tests of the hub.
//! State owned: none. Thread class: any thread.

use std::sync::mpsc::Receiver;
use std::time::Duration;

use bytes::Bytes;
use epoxide::{SharedLimits, SharedWriter};
use epoxide_pipes::hub::{Hub, HubOptions, Member};

use crate::{Peer, Server};

/// A hang, when a test waits for longer.
const HANG: Duration = Duration::from_secs(30);
/// Bytes of a frame.
pub const FRAME: usize = 8192;

/// Few bytes for a member that does not read; no age, so that nothing depends on time.
pub fn tight() -> SharedLimits {
    SharedLimits { bytes: 64 * 1024, age: Duration::ZERO, ..SharedLimits::default() }
}

/// So much that nothing is refused.
pub fn roomy() -> SharedLimits {
    SharedLimits { frames: 1 << 20, bytes: 1 << 30, age: Duration::ZERO, ..SharedLimits::default() }
}

/// A hub with these options.
///
/// # Panics
/// When they are refused.
pub fn hub(options: HubOptions) -> Hub {
    Hub::new(options).expect("the options are good")
}

/// A member and its peer.
#[derive(Debug)]
pub struct Joined {
    /// The other end.
    pub peer: Peer,
    /// The membership.
    pub member: Member,
}

/// A connection of a [`sharing`](crate::sharing()) server, and its writer.
///
/// # Panics
/// When the server does not accept.
pub fn writer(server: &Server, shared: &Receiver<SharedWriter>) -> (Peer, SharedWriter) {
    let peer = Peer::connect_stalling(server.addr());
    (peer, shared.recv_timeout(HANG).expect("the connection is accepted"))
}

/// A connection that joins.
///
/// # Panics
/// When the server does not accept, or the hub is closed.
pub fn join(hub: &Hub, server: &Server, shared: &Receiver<SharedWriter>) -> Joined {
    let (peer, writer) = writer(server, shared);
    Joined { peer, member: hub.join(writer).expect("the hub is open") }
}

/// A frame that says which it is.
pub fn frame(seq: usize) -> Bytes {
    let mut frame = vec![seq as u8; FRAME];
    frame[..4].copy_from_slice(&(seq as u32).to_be_bytes());
    Bytes::from(frame)
}

/// The numbers of whole frames in what a peer got.
///
/// # Panics
/// When one is cut or corrupt.
pub fn numbers(bytes: &[u8]) -> Vec<usize> {
    assert_eq!(bytes.len() % FRAME, 0, "a frame is cut");
    let number = |bytes: &[u8]| {
        let seq = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        assert!(*bytes == frame(seq), "frame {seq} is corrupt");
        seq
    };
    bytes.chunks(FRAME).map(number).collect()
}

/// Broadcasts until it is done; how many.
///
/// # Panics
/// When 10 000 of them do not get there.
pub fn until(hub: &Hub, mut done: impl FnMut(&Hub) -> bool) -> usize {
    for seq in 0.. {
        assert!(seq < 10_000, "never reached");
        hub.broadcast(frame(seq)).expect("the hub is open");
        if done(hub) {
            return seq + 1;
        }
    }
    unreachable!()
}
