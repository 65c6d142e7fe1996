//! Scenarios of the shutdown list at their own size: a connection that was just accepted, a long download, a hub of a hundred
//! members under broadcast. Ids in the comments are of that list.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use epoxide::{Connection, SendOutcome};
use epoxide_pipes::hub::{BroadcastError, HubOptions, Policy, websocket_close};
use epoxide_tests_e2e::broadcast::{Joined, frame, hub, join, numbers, roomy};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, Server, begin_drain, block_within, loopback, pattern, sharing, wait_until,
};

const HANG: Duration = Duration::from_secs(60);

/// S2, G2: a connection counts from its accept, though its handler has not come to its first read when the drain begins:
/// it is served, once, before the stop returns.
#[test]
fn a_connection_that_was_just_accepted_is_served_once() {
    let case = Case::start();
    for _ in 0..20 {
        let (entered, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
        let (on, delayed) = (entered.clone(), gate.clone());
        let server = Server::start(&case, |b| {
            b.listen(loopback(), move |mut connection: Connection| {
                on.fetch_add(1, Ordering::AcqRel);
                let delayed = delayed.clone();
                async move {
                    delayed.wait().await;
                    let request = connection.read_idle().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                    connection.send_all(&request).await
                }
            });
        });
        let mut peer = Peer::connect(server.addr());
        peer.send(b"x").unwrap();
        assert!(gate.wait_waiting(1, HANG));
        let reactor = server.reactor();
        let stopping = begin_drain(server, HANG);
        gate.open();
        let report = stopping.join().unwrap();
        assert!(report.graceful && report.cut == 0, "{report:?}");
        assert_eq!(peer.read_to_end(HANG), (b"x".to_vec(), Ending::Eof));
        let stats = reactor.stats();
        // The look whether the drain has begun may have been accepted, too.
        assert_eq!((stats.accepted, entered.load(Ordering::Acquire) as u64), (stats.closed, stats.accepted));
    }
}

/// S7, G5: 40 MiB to a steady reader that takes seconds for them, all of it behind the begin of the drain.
#[test]
fn a_long_download_is_finished() {
    const MIB: usize = 40;
    const PIECE: usize = 1 << 20;
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let _request = connection.read_idle().await?;
            for _ in 0..MIB {
                connection.send_all(&pattern(PIECE)).await?;
            }
            connection.read_idle().await.map(drop)
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"go").unwrap();
    assert!(wait_until(HANG, || server.stats().send_eagain > 0), "the answer really waits for the peer");
    let stopping = begin_drain(server, HANG);
    for i in 0..MIB {
        assert!(peer.read_exactly(PIECE, HANG).as_ref() == Ok(&pattern(PIECE)), "MiB {i}");
        // sleep: the peer is slow.
        thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(peer.ending(HANG), Ending::Eof);
    let report = stopping.join().unwrap();
    assert!(report.graceful && report.cut == 0, "{report:?}");
}

/// S10, G5: a hundred members under broadcast from four threads: whole frames in each publisher's order, 1001 and FIN to all,
/// and nothing is sent after the stop.
#[test]
fn a_hub_under_broadcast_says_goodbye_to_a_hundred_members() {
    const MEMBERS: usize = 100;
    const EACH: usize = 100_000;
    let case = Case::start_within(2 * HANG);
    let (server, shared) = sharing(&case, roomy());
    let hub = hub(HubOptions { policy: Policy::DropNewest, ..HubOptions::websocket() });
    let joined: Vec<_> = (0..MEMBERS).map(|_| join(&hub, &server, &shared)).collect();
    let writers: Vec<_> = joined.iter().map(|joined| joined.member.writer().clone()).collect();
    let publish = |publisher: usize| {
        let hub = hub.clone();
        thread::spawn(move || {
            for seq in 0..EACH {
                match hub.broadcast(frame(publisher * EACH + seq)) {
                    // The hub holds so many bytes and no more.
                    Ok(_) | Err(BroadcastError::Full(_)) => {}
                    Err(_) => return,
                }
            }
        })
    };
    let publishers: Vec<_> = (0..4).map(publish).collect();
    let read = |joined: Joined| {
        let Joined { mut peer, member } = joined;
        thread::spawn(move || (peer.read_to_end(HANG), member))
    };
    let readers: Vec<_> = joined.into_iter().map(read).collect();
    assert!(wait_until(HANG, || hub.stats().broadcasts > 50));
    let closed = block_within(hub.close(HANG), HANG).expect("the close ends");
    assert_eq!((closed.members, closed.flushed, closed.cut), (MEMBERS, MEMBERS, 0));
    let report = server.stop(HANG).unwrap();
    assert!(report.graceful, "{report:?}");
    assert!(writers.iter().all(|writer| matches!(writer.send("late"), SendOutcome::Refused(..))));
    for publisher in publishers {
        publisher.join().unwrap();
    }
    let goodbye = websocket_close(1001);
    for reader in readers {
        let ((bytes, ending), _member) = reader.join().unwrap();
        assert_eq!(ending, Ending::Eof);
        let frames = numbers(bytes.strip_suffix(&goodbye[..]).expect("1001 comes last"));
        let mut last = HashMap::new();
        for seq in frames {
            let before = last.insert(seq / EACH, seq);
            assert!(before.is_none_or(|before| before < seq), "{seq} after {before:?}");
        }
    }
}
