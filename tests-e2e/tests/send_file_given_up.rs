//! A file whose first byte the socket refuses: the flush is lent to the future, which is then dropped.

use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use epoxide::Connection;
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, Server, SockDiag, block_within, hand_over, nameless_file, pattern, poll_once,
    wait_until,
};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send};

const HANG: Duration = Duration::from_secs(30);

/// A connection whose socket is full while its flush word is idle: the test has filled it behind the library's back. With
/// it the peer, who has not read, and how much waits for it.
fn full(server: &Server, accepted: &Receiver<Connection>) -> (Peer, Connection, usize) {
    let peer = Peer::connect_stalling(server.addr());
    let connection = accepted.recv_timeout(HANG).expect("handed over");
    let (diag, ours, theirs) = (SockDiag::open(), peer.peer_addr(), peer.local_addr());
    let (bytes, mut filled) = ([7; 4096], 0);
    let mut is_full = || {
        let before = filled;
        while let Ok(n) = send(connection.as_fd().as_raw_fd(), &bytes, MsgFlags::MSG_DONTWAIT) {
            filled += n;
        }
        assert_eq!(Errno::last(), Errno::EAGAIN);
        // What the peer has and we have not heard of would make room in a moment: the sums agree when there is none.
        let unacked = diag.row(ours, theirs).expect("it is connected").unacked as usize;
        let unread = diag.row(theirs, ours).expect("it is connected").unread as usize;
        before == filled && unread > 0 && unacked + unread == filled
    };
    assert!(wait_until(HANG, &mut is_full), "the socket is never full");
    (peer, connection, filled)
}

/// The same after a `send_file` that was polled once, and dropped after `meanwhile`.
fn given_up(
    server: &Server,
    accepted: &Receiver<Connection>,
    mut meanwhile: impl FnMut(&mut Peer, usize, &Parker),
) -> (Peer, Connection, usize) {
    let file = nameless_file(&pattern(1 << 20));
    for _ in 0..100 {
        let (mut peer, mut connection, filled) = full(server, accepted);
        let sendfiles = server.stats().sendfiles;
        {
            let parker = Parker::new();
            let mut sending = pin!(connection.send_file(file.clone(), ..));
            assert!(poll_once(sending.as_mut(), &parker).is_pending());
            meanwhile(&mut peer, filled, &parker);
        }
        assert!(server.stats().sendfiles > sendfiles, "vacuity: the socket itself has refused");
        if connection.close_reason().is_none() {
            return (peer, connection, filled);
        }
        // A part has gone: what was on its way to the peer made room after all.
    }
    panic!("never given up before a byte has gone, or such a connection is reset");
}

/// The word is Blocked when the future goes: the reactor finishes an empty flush at the edge, and the next one goes out.
#[test]
fn dropped_before_the_edge_it_leaves_the_connection_usable() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let (mut peer, mut connection, filled) = given_up(&server, &accepted, |_, _, _| ());
    let client = thread::spawn(move || peer.read_to_end(HANG));
    block_within(connection.send_file(nameless_file(&pattern(251)), ..), HANG).unwrap().unwrap();
    block_within(connection.send_all(b"tail"), HANG).unwrap().unwrap();
    drop(connection);
    let (received, ending) = client.join().unwrap();
    assert_eq!((received.len(), ending), (filled + 251 + 4, Ending::Eof));
    assert!(received[filled..filled + 251] == pattern(251) && received.ends_with(b"tail"));
}

/// The connection goes with it: its FIN waits for the edge, behind nothing.
#[test]
fn dropped_with_its_connection_it_ends_with_a_fin() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let (mut peer, connection, filled) = given_up(&server, &accepted, |_, _, _| ());
    drop(connection);
    let (received, ending) = peer.read_to_end(HANG);
    assert_eq!((received.len(), ending), (filled, Ending::Eof));
}

/// The edge has come, and the reactor has handed the flush to the future, which is dropped instead of polled.
#[test]
fn dropped_after_the_edge_it_gives_the_flush_back() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let (mut peer, mut connection, _) = given_up(&server, &accepted, |peer, filled, parker| {
        assert_eq!(peer.read_exactly(filled, HANG).map(|bytes| bytes.len()), Ok(filled));
        assert!(parker.park_past(0, Instant::now() + HANG), "the edge wakes the future");
    });
    // At once: nobody else has the flush.
    connection.stage(b"tail").unwrap();
    connection.try_flush().unwrap();
    assert_eq!(peer.read_exactly(4, HANG), Ok(b"tail".to_vec()));
    drop(connection);
    assert_eq!(peer.ending(HANG), Ending::Eof);
}
