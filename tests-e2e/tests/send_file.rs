//! Files sent by sendfile(2): ranges, order, slow readers, resets, truncation, cancellation, drain.

use std::fs::File;
use std::future::Future;
use std::io::{self, ErrorKind, Seek};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::thread::JoinHandle;
use std::time::Duration;

use epoxide::{CloseReason, Connection};
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, Server, block_within, hand_over, loopback, nameless_file, pattern, poll_once, stage,
    wait_until,
};

const HANG: Duration = Duration::from_secs(30);

fn connect(server: &Server, accepted: &Receiver<Connection>) -> (Peer, Connection) {
    let peer = Peer::connect_stalling(server.addr());
    (peer, accepted.recv_timeout(HANG).expect("handed over"))
}

fn read_on(mut peer: Peer) -> JoinHandle<(Vec<u8>, Ending)> {
    std::thread::spawn(move || peer.read_to_end(HANG))
}

/// Head, range, tail: in this order and nothing else, whoever sends.
async fn send_ranges(connection: &mut Connection, file: Arc<OwnedFd>, ranges: Vec<Range<u64>>) -> io::Result<()> {
    for range in ranges {
        stage(connection, format!("[{}..{}]", range.start, range.end).as_bytes())?;
        connection.send_file(file.clone(), range).await?;
        stage(connection, b"|")?;
    }
    connection.shutdown().await
}

fn expected(content: &[u8], ranges: &[Range<u64>]) -> Vec<u8> {
    let mut all = Vec::new();
    for range in ranges {
        all.extend_from_slice(format!("[{}..{}]", range.start, range.end).as_bytes());
        all.extend_from_slice(&content[range.start as usize..range.end as usize]);
        all.push(b'|');
    }
    all
}

fn ranges(len: u64) -> Vec<Range<u64>> {
    vec![0..1, 0..0, 7..8192, len - 1..len, len..len, 1..len, 0..len]
}

#[test]
fn ranges_go_out_in_order_from_the_reactor_and_from_a_thread() {
    let case = Case::start();
    let content = pattern(5 << 20);
    let (file, ranges) = (nameless_file(&content), ranges(5 << 20));
    let whole = expected(&content, &ranges);
    let (sent, of_file) = (ranges.clone(), file.clone());
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (ranges, file) = (sent.clone(), of_file.clone());
            async move { send_ranges(&mut connection, file, ranges).await }
        });
    });
    for stalling in [false, true] {
        let peer = if stalling { Peer::connect_stalling(server.addr()) } else { Peer::connect(server.addr()) };
        let (received, ending) = read_on(peer).join().unwrap();
        assert_eq!((received.len(), ending), (whole.len(), Ending::Eof));
        assert!(received == whole, "bytes out of place");
    }
    assert!(server.stats().send_eagain > 0, "vacuity: nothing ever waited");
    drop(server);

    let (server, accepted) = hand_over(&case);
    let (peer, mut connection) = connect(&server, &accepted);
    let reader = read_on(peer);
    let done = block_within(send_ranges(&mut connection, file.clone(), ranges), HANG);
    assert!(done.expect("a hang").is_ok());
    let (received, ending) = reader.join().unwrap();
    assert!(received == whole && ending == Ending::Eof);
    assert!(server.stats().flush_parks > 100, "vacuity: nothing ever waited");
    // The file's own position was not used.
    let mut file = File::from(Arc::into_inner(file).unwrap_or_else(|| panic!("somebody holds the file")));
    assert_eq!(file.stream_position().unwrap(), 5 << 20);
}

#[test]
fn what_cannot_be_sent_is_refused_and_the_connection_stays_usable() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let (mut peer, mut connection) = connect(&server, &accepted);
    let file = nameless_file(b"0123456789");
    let socket: Arc<OwnedFd> = Arc::new(OwnedFd::from(std::os::unix::net::UnixStream::pair().unwrap().0));
    let directory: Arc<OwnedFd> = Arc::new(OwnedFd::from(File::open("/").unwrap()));
    stage(&mut connection, b"before ").unwrap();
    for (fd, range) in
        [(&file, 0..11), (&file, 11..11), (&file, u64::MAX..u64::MAX), (&socket, 0..1), (&directory, 0..0)]
    {
        let error = block_within(connection.send_file(fd.clone(), range), HANG).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    #[allow(clippy::reversed_empty_ranges)]
    let backwards = block_within(connection.send_file(file.clone(), 5..4), HANG).unwrap();
    assert_eq!(backwards.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(connection.staged_len(), 7, "a refusal sent something");
    block_within(connection.send_file(file.clone(), ..), HANG).unwrap().unwrap();
    block_within(connection.send_file(file.clone(), 8..=9), HANG).unwrap().unwrap();
    block_within(connection.send_all(b" after"), HANG).unwrap().unwrap();
    assert_eq!(peer.read_exactly(25, HANG).unwrap(), b"before 012345678989 after");
    // After this side's FIN nothing goes.
    block_within(connection.shutdown(), HANG).unwrap().unwrap();
    let error = block_within(connection.send_file(file, ..), HANG).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    assert_eq!(peer.ending(HANG), Ending::Eof);
}

/// The thread that polls reads the file: the reactor only hands the flush over, and other connections do not wait.
#[test]
fn a_slow_reader_is_served_by_the_caller_and_parks_between() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let content = pattern(4 << 20);
    let (mut peer, mut connection) = connect(&server, &accepted);
    let sent = {
        let file = nameless_file(&content);
        std::thread::spawn(move || (block_within(connection.send_file(file, ..), HANG), connection))
    };
    let mut received = Vec::new();
    let mut space = vec![0; 1500];
    while received.len() < content.len() {
        let n = peer.read(&mut space, HANG).unwrap();
        received.extend_from_slice(&space[..n]);
    }
    assert!(received == content);
    let (done, connection) = sent.join().unwrap();
    done.expect("left behind").unwrap();
    let stats = server.stats();
    assert!(stats.flush_parks > 10, "vacuity: {} parks", stats.flush_parks);
    // All calls were counted once: about one EAGAIN a park, and no spinning.
    assert!(stats.send_eagain <= stats.flush_parks + 100 && stats.sends < 20_000, "{stats}");
    drop(connection);
}

#[test]
fn a_reset_ends_it_with_the_reason() {
    let case = Case::start();
    for local in [false, true] {
        let (server, accepted) = hand_over(&case);
        let (peer, mut connection) = connect(&server, &accepted);
        let close = connection.close_handle();
        let file = nameless_file(&pattern(8 << 20));
        let sender = std::thread::spawn(move || {
            let result = block_within(connection.send_file(file, ..), HANG);
            (result, connection.close_reason())
        });
        assert!(wait_until(HANG, || server.stats().flush_parks > 0));
        if local {
            close.reset();
        } else {
            peer.reset();
        }
        let (result, reason) = sender.join().unwrap();
        let error = result.expect("left behind").unwrap_err();
        assert_eq!(CloseReason::of(&error), reason);
        match reason {
            Some(CloseReason::Local) => assert!(local),
            Some(CloseReason::PeerReset { .. }) => assert!(!local),
            other => panic!("{other:?}"),
        }
    }
}

/// `close()` while a file is on its way: the file is sent to its end, then the FIN. A cut body would look whole.
#[test]
fn a_close_waits_for_the_file() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let (peer, mut connection) = connect(&server, &accepted);
    let close = connection.close_handle();
    let content = pattern(3 << 20);
    let file = nameless_file(&content);
    let sender = std::thread::spawn(move || block_within(connection.send_file(file, ..), HANG));
    assert!(wait_until(HANG, || server.stats().flush_parks > 0));
    close.close();
    let (received, ending) = read_on(peer).join().unwrap();
    assert_eq!((received.len(), ending), (content.len(), Ending::Eof));
    assert!(received == content);
    sender.join().unwrap().expect("left behind").unwrap();
}

#[test]
fn a_file_truncated_meanwhile_is_an_error_and_a_reset() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let (mut peer, mut connection) = connect(&server, &accepted);
    let file = nameless_file(&pattern(4 << 20));
    let truncates = File::from(file.try_clone().unwrap());
    let sender = std::thread::spawn(move || {
        let result = block_within(connection.send_file(file, ..), HANG);
        (result, connection.close_reason())
    });
    assert!(wait_until(HANG, || server.stats().flush_parks > 0));
    truncates.set_len(1 << 20).unwrap();
    let (received, ending) = peer.read_to_end(HANG);
    assert_eq!(ending, Ending::Reset, "a cut body looks whole");
    assert!(received.len() <= 1 << 20);
    let (result, reason) = sender.join().unwrap();
    let error = result.expect("left behind").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    assert!(error.to_string().contains("truncated") && error.to_string().contains("1048576"), "{error}");
    assert_eq!(reason, Some(CloseReason::Aborted));
}

/// Dropped before a byte of the file has gone, none goes and the connection is usable; dropped later, it is reset.
#[test]
fn a_dropped_future_never_leaves_a_part() {
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    // Not polled at all, and polled while what is staged does not move.
    let (peer, mut connection) = connect(&server, &accepted);
    let file = nameless_file(&pattern(1 << 20));
    let head = pattern(2 << 20);
    drop(connection.send_file(file.clone(), ..));
    stage(&mut connection, &head).unwrap();
    {
        let mut send = pin!(connection.send_file(file.clone(), ..));
        assert!(poll_once(send.as_mut(), &Parker::new()).is_pending());
    }
    let reader = read_on(peer);
    block_within(connection.send_all(b"tail"), HANG).unwrap().unwrap();
    drop(connection);
    let (received, ending) = reader.join().unwrap();
    assert_eq!((received.len(), ending), (head.len() + 4, Ending::Eof));
    assert!(received[..head.len()] == head && received.ends_with(b"tail"));
    // A part has gone.
    let (mut peer, mut connection) = connect(&server, &accepted);
    {
        let mut send = pin!(connection.send_file(file.clone(), ..));
        assert!(poll_once(send.as_mut(), &Parker::new()).is_pending());
    }
    assert_eq!(connection.close_reason(), Some(CloseReason::Aborted));
    let (received, ending) = peer.read_to_end(HANG);
    assert_eq!(ending, Ending::Reset, "{} bytes look whole", received.len());
    drop(connection);
    // What was flushed before the file is still on its way, three times; then the file goes behind it. (A socket that
    // refuses the file's own first byte: `send_file_given_up`.)
    let (peer, mut connection) = connect(&server, &accepted);
    let mut filled = 0;
    let blocked = loop {
        stage(&mut connection, &[7; 1000]).unwrap();
        filled += 1000;
        match connection.try_flush() {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
    for _ in 0..3 {
        let mut send = pin!(connection.send_file(file.clone(), ..));
        assert!(poll_once(send.as_mut(), &Parker::new()).is_pending());
    }
    let reader = read_on(peer);
    block_within(connection.send_file(file, 0..251), HANG).unwrap().unwrap();
    drop(connection);
    let (received, ending) = reader.join().unwrap();
    assert_eq!((received.len(), ending), (filled + 251, Ending::Eof));
    assert!(received[filled..] == pattern(251));
}

/// Polls and drops race edges: each range is whole or absent, and the connection never gets stuck.
#[test]
fn drops_against_writable_edges() {
    let case = Case::start_rounds();
    let (server, accepted) = hand_over(&case);
    let content = pattern(200_000);
    let file = nameless_file(&content);
    let mut rng = epoxide_tests_e2e::Rng::new(5);
    let (mut cut, mut usable, mut whole) = (0, 0, 0);
    for round in 0..epoxide_tests_e2e::rounds() {
        let (peer, mut connection) = connect(&server, &accepted);
        let reader = read_on(peer);
        // Up to what the socket holds, so that the file's first byte may or may not fit.
        let head = pattern(rng.below(60_000) as usize);
        stage(&mut connection, &head).unwrap();
        let len = rng.below(content.len() as u64);
        let done = {
            let parker = Parker::new();
            let mut send = pin!(connection.send_file(file.clone(), 0..len));
            let mut done = false;
            for _ in 0..rng.below(6) {
                let seen = parker.wakes();
                if poll_once(send.as_mut(), &parker).is_ready() {
                    done = true;
                    break;
                }
                if rng.below(2) == 0 {
                    parker.park_past(seen, std::time::Instant::now() + HANG);
                } else {
                    rng.skew(5000);
                }
            }
            done
        };
        let was_cut = connection.close_reason().is_some();
        if !was_cut {
            let tail = block_within(connection.send_all(b"tail"), HANG).expect("stuck");
            tail.unwrap();
        }
        drop(connection);
        let (received, ending) = reader.join().unwrap();
        if was_cut {
            cut += 1;
            assert_eq!(ending, Ending::Reset, "round {round}: a cut body looks whole");
            continue;
        }
        let body = if done { &content[..len as usize] } else { &[] };
        let all = [&head, body, &b"tail"[..]].concat();
        assert_eq!((received.len(), ending), (all.len(), Ending::Eof), "round {round}");
        assert!(received == all, "round {round}: bytes out of place");
        whole += usize::from(done);
        usable += usize::from(!done);
    }
    eprintln!("{cut} cut, {usable} usable after a drop, {whole} whole");
    assert!(cut > 0 && usable > 0 && whole > 0, "vacuity: {cut} cut, {usable} usable, {whole} whole");
}

/// The compiler's word that it may move between threads.
#[test]
fn the_future_is_send() {
    fn is_send<F: Future + Send>(_: &F) {}
    let case = Case::start();
    let (server, accepted) = hand_over(&case);
    let (_peer, mut connection) = connect(&server, &accepted);
    is_send(&connection.send_file(nameless_file(b"x"), ..));
}
