//! One recv before a park, on threads other than the reactor's: it finds what the reactor has not told yet, becomes rare
//! where it finds nothing, and is never made on the reactor.

use std::pin::pin;
use std::thread;
use std::time::Duration;

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Parker, Peer, Server, SockDiag, block_within, echo, handing_over, hold_reactor, loopback, poll_once,
    wait_until,
};

const SOON: Duration = Duration::from_secs(10);

fn handed_over(case: &Case, optimistic: bool) -> (Server, Peer, Connection) {
    let (server, accepted) = handing_over(case, |b| {
        b.config(ReactorConfig { optimistic_reads: optimistic, ..ReactorConfig::default() });
    });
    let peer = Peer::connect(server.addr());
    let connection = accepted.recv_timeout(SOON).expect("handed over");
    (server, peer, connection)
}

/// The bytes have arrived and the reactor stands still, so only a try can find them; with tries switched off the same
/// read parks.
#[test]
fn a_try_finds_what_the_reactor_has_not_told() {
    let case = Case::start();
    for optimistic in [true, false] {
        let (server, mut peer, mut connection) = handed_over(&case, optimistic);
        let held = hold_reactor(&server.reactor());
        peer.send(b"here").unwrap();
        let (local, remote) = (peer.peer_addr(), peer.local_addr());
        let diag = SockDiag::open();
        let arrived = || diag.row(local, remote).is_some_and(|row| row.unread == 4);
        assert!(wait_until(SOON, arrived), "the bytes arrive");
        let parker = Parker::new();
        {
            let mut read = pin!(connection.read());
            let first = poll_once(read.as_mut(), &parker);
            assert_eq!(first.is_ready(), optimistic, "the read found what nobody told, or did not");
            drop(held);
            if !optimistic {
                assert_eq!(&*block_within(read, SOON).unwrap().unwrap().unwrap(), b"here");
            }
        }
        let stats = server.stats();
        assert_eq!((stats.probes, stats.probes_missed), (u64::from(optimistic), 0));
        drop((peer, connection));
    }
}

/// A peer that always answers later than the try: hardly any recv is made for nothing, and nothing is lost.
#[test]
fn tries_for_nothing_become_rare() {
    const TURNS: u64 = 1000;
    let case = Case::start();
    let (server, mut peer, mut connection) = handed_over(&case, true);
    let serving = thread::spawn(move || {
        block_within(
            async {
                while let Some(received) = connection.read().await? {
                    connection.send_all(&received).await?;
                }
                std::io::Result::Ok(())
            },
            Duration::from_secs(60),
        )
    });
    let mut parks = 0;
    for turn in 0..TURNS {
        assert!(wait_until(SOON, || server.stats().parks > parks), "turn {turn} does not park");
        parks = server.stats().parks;
        peer.send(&[turn as u8]).unwrap();
        assert_eq!(peer.read_exactly(1, SOON), Ok(vec![turn as u8]));
    }
    let stats = server.stats();
    assert!(stats.probes_missed > 0, "vacuity: nothing was tried");
    assert_eq!(stats.probes, stats.probes_missed, "each turn began with a park");
    assert!(stats.probes <= TURNS / 64 + 8, "{} tries for nothing of {TURNS} reads", stats.probes);
    drop(peer);
    serving.join().unwrap().expect("it ends").unwrap();
}

/// Tasks of the connection's own reactor never try: there a park costs no wake.
#[test]
fn the_reactor_never_tries() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let mut peer = Peer::connect(server.addr());
    for turn in 0..200_u8 {
        peer.send(&[turn]).unwrap();
        assert_eq!(peer.read_exactly(1, SOON), Ok(vec![turn]));
    }
    let stats = server.stats();
    assert_eq!((stats.probes, stats.eagain), (0, 0));
    assert!(stats.parks > 0, "vacuity: nothing parked");
}
