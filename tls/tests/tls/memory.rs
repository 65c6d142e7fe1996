//! What a hostile client costs a TLS server at most, in bytes of memory: stated in SECURITY.md, asserted here.

use crate::client::{self, GET, HANG, connect};
use crate::malformed::client_hello;
use crate::servers::{World, answer_requests, serve};
use epoxide_tests_e2e::{Case, Peer, resident_bytes, wait_until};
use std::time::Duration;

const KIB: u64 = 1024;

/// Bytes a client by which the process grows once `count` of them have come: their own too, where they are in it.
fn cost<C>(count: usize, mut come: impl FnMut() -> C, settled: impl Fn(usize) -> bool) -> u64 {
    let mut clients: Vec<C> = (0..20).map(|_| come()).collect();
    assert!(wait_until(HANG, || settled(clients.len())), "they do not settle");
    let before = resident_bytes().unwrap();
    clients.extend((0..count).map(|_| come()));
    assert!(wait_until(HANG, || settled(clients.len())), "they do not settle");
    resident_bytes().unwrap().saturating_sub(before) / count as u64
}

#[test]
fn a_handshake_that_never_ends_costs_little() {
    for (what, says_hello, most) in [("a hello and no more", true, 64 * KIB), ("silent", false, 32 * KIB)] {
        let case = Case::start();
        let world = World::new();
        // No deadline: all of them are to be there at once, however slow the machine is.
        let config = world.options().handshake_timeout(Duration::ZERO).build().unwrap();
        let (server, _ends) = serve(&case, &config, answer_requests);
        let hello = client_hello(&world);
        let come = || {
            let mut peer = Peer::connect(server.addr());
            if says_hello {
                peer.send(&hello).unwrap();
                // The server has answered: it has done its part and holds what it needs for the rest.
                peer.read_exactly(1, HANG).unwrap();
            }
            peer
        };
        let each = cost(300, come, |n| config.handshakes() == n);
        assert!(each <= most, "{what}: {each} bytes");
    }
}

/// Both ends are in this process: what BoringSSL keeps for the client counts too.
#[test]
fn a_session_that_does_nothing_costs_little() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |_| {});
    let come = || {
        let mut session = connect(server.addr(), &context);
        assert!(client::ask(&mut session, GET).unwrap().ends_with("tls-ok"));
        session
    };
    let each = cost(200, come, |_| server.stats().buffers_outstanding == 0);
    assert!(each <= 96 * KIB, "{each} bytes a session");
}
