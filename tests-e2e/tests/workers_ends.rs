//! How connections on the async workers end: panics, resets by the peer, a stop, and being let go after the reactor.

use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide::workers::{self};
use epoxide::{CloseReason, Connection};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, Server, assert_pool_quiet, block_within, loopback, moved_to_workers, pattern,
    provoke_panic, stage, wait_until,
};

const SOON: Duration = Duration::from_secs(10);

/// A panic on a worker resets what its task held, and the workers serve on.
#[test]
fn a_panic_on_a_worker_resets_its_connection_and_no_other() {
    let case = Case::start();
    let server = moved_to_workers(&case, |mut connection| async move {
        while let Some(received) = connection.read().await? {
            stage(&mut connection, &received)?;
            connection.flush().await?;
            if received[0] == b'!' {
                provoke_panic("a handler on a worker");
            }
        }
        Ok(())
    });
    let mut other = Peer::connect(server.addr());
    other.send(b"a").unwrap();
    assert_eq!(other.read_exactly(1, SOON), Ok(b"a".to_vec()));
    for _ in 0..5 {
        let mut peer = Peer::connect(server.addr());
        peer.send(b"!").unwrap();
        assert_eq!(peer.read_to_end(SOON), (b"!".to_vec(), Ending::Reset));
    }
    other.send(b"b").unwrap();
    assert_eq!(other.read_exactly(1, SOON), Ok(b"b".to_vec()));
    drop(other);
    assert_pool_quiet(&server, 5);
}

/// Z.1: a reset by the peer ends a parked read and a parked flush on a worker, with their reason.
#[test]
fn a_reset_by_the_peer_ends_parked_operations_on_workers() {
    let case = Case::start();
    let (ended, ends) = channel();
    let server = moved_to_workers(&case, move |mut connection| {
        let ended = ended.clone();
        async move {
            let Some(first) = connection.read().await? else { return Ok(()) };
            let (what, end) = if first[0] == b'w' {
                ("flush", connection.send_all(&pattern(4 << 20)).await)
            } else {
                ("read", connection.read().await.map(|_| ()))
            };
            let _ = ended.send((what, end.map_err(|error| CloseReason::of(&error))));
            Ok(())
        }
    });
    for (what, byte) in [("read", b"r"), ("flush", b"w")] {
        let before = server.stats();
        let mut peer = Peer::connect_stalling(server.addr());
        peer.send(byte).unwrap();
        assert!(wait_until(SOON, || {
            let now = server.stats();
            if what == "read" {
                now.parks > before.parks + 1 || now.reads > before.reads
            } else {
                now.flush_parks > before.flush_parks
            }
        }));
        peer.reset();
        let (ended, end) = ends.recv_timeout(SOON).expect("the parked operation ends");
        assert_eq!(ended, what);
        assert!(matches!(end, Err(Some(CloseReason::PeerReset { .. }))), "{end:?}");
    }
    assert_pool_quiet(&server, 0);
}

/// Z.1: a stop while pool handlers hold connections. Idle ones end, busy ones are cut and counted.
#[test]
fn a_stop_settles_connections_that_workers_hold() {
    const EACH: usize = 8;
    let case = Case::start();
    let (ended, ends) = channel();
    let server = moved_to_workers(&case, move |mut connection| {
        let ended = ended.clone();
        async move {
            let first = connection.read().await?.expect("a byte");
            connection.send_all(&first).await?;
            let end = if first[0] == b'i' {
                connection.read_idle().await.map(|bytes| bytes.is_none())
            } else {
                connection.read().await.map(|bytes| bytes.is_none())
            };
            let _ = ended.send((first[0], end.map_err(|error| CloseReason::of(&error))));
            Ok(())
        }
    });
    let mut peers = Vec::new();
    for kind in [b'i', b'b'] {
        for _ in 0..EACH {
            let mut peer = Peer::connect(server.addr());
            peer.send(&[kind]).unwrap();
            assert_eq!(peer.read_exactly(1, SOON), Ok(vec![kind]));
            peers.push((kind, peer));
        }
    }
    let pool = server.reactor().workers();
    let report = server.stop(Duration::from_millis(200)).unwrap();
    assert_eq!((report.cut, report.jobs_running), (EACH, 0), "{report:?}");
    assert_eq!((pool.report().tasks, pool.report().workers), (0, 0), "tasks and workers outlive a stop");
    for (kind, peer) in &mut peers {
        let expected = if *kind == b'i' { Ending::Eof } else { Ending::Reset };
        assert_eq!(peer.ending(SOON), expected, "kind {}", *kind as char);
    }
    let mut idle = 0;
    while let Ok((kind, end)) = ends.try_recv() {
        // A task that the reset has woken may be dropped by the pool's stop before it looks.
        match kind {
            b'i' => idle += usize::from(end == Ok(true)),
            _ => assert_eq!(end, Err(Some(CloseReason::Aborted))),
        }
    }
    assert_eq!(idle, EACH, "an idle read returns None at a drain");
}

/// Z.1: a connection that outlives its reactor in a job, let go afterwards.
#[test]
fn a_connection_may_be_let_go_after_its_reactor_has_ended() {
    let case = Case::start();
    let gate = Gate::new();
    let (ended, ends) = channel();
    let server = Server::start(&case, {
        let gate = gate.clone();
        move |b| {
            b.listen(loopback(), move |mut connection: Connection| {
                let (gate, ended) = (gate.clone(), ended.clone());
                async move {
                    let job = workers::spawn_blocking(move || {
                        let held = gate.wait_blocking(Duration::from_secs(60));
                        let read = block_within(connection.read(), SOON).expect("it ends at once");
                        let _ = ended.send((held, read.map(drop).map_err(|error| CloseReason::of(&error))));
                        drop(connection);
                    });
                    job.detach();
                }
            });
        }
    });
    let mut peer = Peer::connect(server.addr());
    let pool = server.reactor().workers();
    assert!(wait_until(SOON, || pool.report().jobs_running == 1));
    let report = server.stop(Duration::from_millis(50)).unwrap();
    assert_eq!((report.cut, report.jobs_running), (1, 1), "{report:?}");
    assert_eq!(peer.ending(SOON), Ending::Reset);
    gate.open();
    assert_eq!(ends.recv_timeout(SOON), Ok((true, Err(Some(CloseReason::Aborted)))));
    assert!(wait_until(SOON, || pool.report().blocking_threads == 0));
}
