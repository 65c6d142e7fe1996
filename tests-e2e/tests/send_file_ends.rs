//! Files sent by sendfile(2): a drain waits for them, a stop ends them, and they leave others their turn.

use std::io;
use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide::{CloseReason, Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, Server, block_within, hand_over, loopback, nameless_file, pattern, wait_until,
};

const HANG: Duration = Duration::from_secs(30);

/// The idle read of the other half waits for the file and ends with it.
#[test]
fn a_drain_waits_for_the_file() {
    let case = Case::start();
    let (halves, accepted) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |connection: Connection| {
            let halves = halves.clone();
            async move {
                connection.set_send_buffer_size(16 * 1024)?;
                let (mut reader, writer) = connection.into_split();
                let _ = halves.send(writer);
                while reader.read_idle().await?.is_some() {}
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    let mut writer = accepted.recv_timeout(HANG).unwrap();
    let content = pattern(3 << 20);
    let file = nameless_file(&content);
    let sender = std::thread::spawn(move || block_within(writer.send_file(file, ..), HANG));
    assert!(wait_until(HANG, || server.stats().flush_parks > 0));
    let reactor = server.reactor();
    let stopping = std::thread::spawn(move || server.stop(HANG).unwrap());
    // The drain's mark wakes the idle read once; only then does the peer read.
    let polls = reactor.stats().task_polls;
    assert!(wait_until(HANG, || reactor.stats().task_polls > polls) || stopping.is_finished());
    let (received, ending) = peer.read_to_end(HANG);
    assert_eq!((received.len(), ending), (content.len(), Ending::Eof));
    sender.join().unwrap().expect("left behind").unwrap();
    let report = stopping.join().unwrap();
    assert!(report.graceful && report.cut == 0, "{report:?}");
}

/// A stop at once does not wait, and leaves the sender not behind.
#[test]
fn a_stop_ends_a_waiting_send() {
    let case = Case::start();
    let (mut server, accepted) = hand_over(&case);
    let _peer = Peer::connect_stalling(server.addr());
    let mut connection = accepted.recv_timeout(HANG).expect("handed over");
    let file = nameless_file(&pattern(8 << 20));
    let sender = std::thread::spawn(move || {
        let result = block_within(connection.send_file(file, ..), HANG);
        (result, connection.close_reason())
    });
    assert!(wait_until(HANG, || server.stats().flush_parks > 0));
    server.abandon_connections();
    server.stop(Duration::from_millis(50)).unwrap();
    let (result, reason) = sender.join().unwrap();
    assert!(result.expect("left behind").is_err());
    assert_eq!(reason, Some(CloseReason::Aborted));
}

/// A big file on a reactor goes out in portions: what else is runnable gets its turn between them.
#[test]
fn a_send_on_a_reactor_yields() {
    let case = Case::start();
    let len: u64 = 16 << 20;
    let file = nameless_file(&pattern(len as usize));
    let (turns, counted) = channel();
    let budget = 64 * 1024;
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { flush_budget: budget, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let (file, turns) = (file.clone(), turns.clone());
            async move {
                let over = Gate::new();
                let seen = over.clone();
                let other = epoxide::spawn_local(async move {
                    let mut turns = 0_u64;
                    while !seen.is_open() {
                        turns += 1;
                        epoxide::yield_now().await;
                    }
                    turns
                });
                let sent = connection.send_file(file, ..).await;
                over.open();
                let _ = turns.send(other.await.unwrap_or(0));
                sent?;
                connection.shutdown().await
            }
        });
    });
    let (received, ending) = Peer::connect(server.addr()).read_to_end(HANG);
    assert_eq!((received.len() as u64, ending), (len, Ending::Eof));
    let turns = counted.recv_timeout(HANG).unwrap();
    assert!(turns >= len / budget as u64, "{turns} turns of another task during {} portions", len / budget as u64);
}
