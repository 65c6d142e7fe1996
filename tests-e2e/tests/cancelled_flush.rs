//! Cancelled flushes: a flush whose future is dropped goes on without it, and what is staged
//! meanwhile goes out behind it, whole and in order, whoever sends.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::Duration;

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, Rng, Server, block_within, handing_over, loopback, pattern, poll_once, rounds, stage,
    tcp_pair, wait_until,
};
use nix::sys::socket::{setsockopt, sockopt};

const HANG: Duration = Duration::from_secs(10);

/// Sends `whole` in pieces of uneven size. Every flush is polled once and dropped, and the next piece
/// is staged at once, behind what is still being sent; where staging is refused it is tried again in
/// the next pass. Returns how many flushes were pending when dropped.
async fn send_cancelling(connection: &mut Connection, whole: &[u8]) -> io::Result<usize> {
    let mut rng = Rng::new(1);
    let (mut at, mut cancelled) = (0, 0);
    while at < whole.len() {
        let size = usize::try_from(1 + rng.below(8192)).unwrap_or(1).min(whole.len() - at);
        if connection.stage(&whole[at..at + size]).is_err() {
            epoxide::yield_now().await;
            continue;
        }
        at += size;
        let mut flush = pin!(connection.flush());
        match poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx))).await {
            Poll::Ready(outcome) => outcome?,
            Poll::Pending => cancelled += 1,
        }
    }
    connection.flush().await?;
    Ok(cancelled)
}

/// Little may be staged, so that the writer stays close to the sender.
fn little_staged() -> ReactorConfig {
    ReactorConfig { max_staged: 64 * 1024, ..ReactorConfig::default() }
}

/// How much a test sends: enough for thousands of hand-overs, below what takes minutes.
fn load() -> Vec<u8> {
    pattern((rounds() * 64 * 1024).clamp(16 << 20, 64 << 20))
}

fn receive(peer: &mut Peer, expected: &[u8]) {
    let (received, ending) = peer.read_to_end(Duration::from_secs(100));
    assert_eq!((received.len(), ending), (expected.len(), Ending::Eof));
    let wrong = received.iter().zip(expected).position(|(got, sent)| got != sent);
    assert_eq!(wrong, None, "the first byte out of order");
}

#[test]
fn cancelled_flushes_on_the_reactor_keep_the_order() {
    let case = Case::start_rounds();
    let expected = load();
    let whole = expected.clone();
    let (counts, cancelled) = channel();
    let server = Server::start(&case, |b| {
        b.config(little_staged());
        b.listen(loopback(), move |mut connection: Connection| {
            let (whole, counts) = (whole.clone(), counts.clone());
            async move {
                // A buffer of next to nothing: flushes block however fast the peer reads.
                connection.set_send_buffer_size(4096)?;
                let _ = counts.send(send_cancelling(&mut connection, &whole).await?);
                connection.shutdown().await
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    receive(&mut peer, &expected);
    assert!(cancelled.recv_timeout(HANG).unwrap() > 0, "vacuity: no flush was ever pending");
}

/// A flush that is polled by one waker and then by another wakes the last one.
#[test]
fn a_flush_wakes_whoever_polled_it_last() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let body = pattern(8 << 20);
    let mut peer = Peer::connect_stalling(server.addr());
    let mut connection = accepted.recv_timeout(HANG).expect("handed over");
    stage(&mut connection, &body).unwrap();
    {
        let (first, second) = (Parker::new(), Parker::new());
        let mut flush = pin!(connection.flush());
        assert!(poll_once(flush.as_mut(), &first).is_pending(), "vacuity: it was not pending");
        assert!(poll_once(flush.as_mut(), &second).is_pending(), "vacuity: it was not pending");
        let received = peer.read_exactly(body.len(), Duration::from_secs(30)).unwrap();
        assert!(received == body);
        let woken = second.park_past(0, std::time::Instant::now() + HANG);
        assert!(woken, "the waker of the last poll was not woken");
        assert!(poll_once(flush.as_mut(), &second).is_ready());
    }
}

/// A server that hands its connections to the test, with a window and a send buffer of next to
/// nothing: flushes block and go on all the time.
fn hand_over(case: &Case) -> (Server, Peer, Connection) {
    let (server, accepted) = handing_over(case, |_| {});
    let peer = Peer::connect_stalling(server.addr());
    let connection = accepted.recv_timeout(HANG).expect("handed over");
    setsockopt(&connection.as_fd(), sockopt::SndBuf, &4096).unwrap();
    (server, peer, connection)
}

/// Reads on and on, in small bites, counts, and stops at the first byte out of order.
fn read_on(mut peer: Peer, count: Arc<AtomicUsize>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let (mut buffer, mut total) = (vec![0; 2048], 0);
        while let Ok(n @ 1..) = peer.read(&mut buffer, HANG) {
            let wrong = buffer[..n].iter().zip(total..).position(|(got, at)| usize::from(*got) != at % 251);
            assert_eq!(wrong, None, "a byte out of order behind {total} good ones");
            total += n;
            count.store(total, Ordering::Release);
        }
    })
}

/// The same from a thread of its own: the reactor sends the remainder of one flush while the writer
/// stages and flushes the next. A cycle is over when the peer has everything, so bytes that only the
/// next flush would take along are missed.
#[test]
fn cancelled_flushes_on_another_thread_keep_the_order_and_strand_nothing() {
    let case = Case::start_rounds();
    let (server, peer, mut connection) = hand_over(&case);
    let count = Arc::new(AtomicUsize::new(0));
    let reader = read_on(peer, Arc::clone(&count));
    let whole = pattern(251 * 400);
    let mut rng = Rng::new(3);
    let (mut sent, mut cancelled) = (0, 0);
    for cycle in 0..rounds() * 4 {
        let parker = Parker::new();
        for _ in 0..8 {
            let start = sent % 251;
            let size = usize::try_from(1000 + rng.below(32_000)).unwrap();
            stage(&mut connection, &whole[start..start + size]).unwrap();
            sent += size;
            match poll_once(pin!(connection.flush()), &parker) {
                Poll::Ready(outcome) => outcome.unwrap(),
                Poll::Pending => cancelled += 1,
            }
            rng.skew(3000);
        }
        let arrived = wait_until(HANG, || reader.is_finished() || count.load(Ordering::Acquire) >= sent);
        let got = count.load(Ordering::Acquire);
        assert!(arrived && got == sent, "cycle {cycle}: {got} of {sent} bytes arrived");
    }
    drop(connection);
    reader.join().unwrap();
    let parked = server.stats().flush_parks;
    assert!(cancelled > 0 && parked > 0, "vacuity: {cancelled} flushes were pending, {parked} parked");
}

/// The socket takes bytes again between the send that was refused and the parking: the edge comes
/// while the flush is neither sending nor parked.
#[test]
fn a_writable_edge_while_a_foreign_flush_blocks_is_never_lost() {
    let case = Case::start_rounds();
    let (server, peer, mut connection) = hand_over(&case);
    let count = Arc::new(AtomicUsize::new(0));
    let reader = read_on(peer, Arc::clone(&count));
    let piece = pattern(251 * 64);
    let turns = rounds() * 20;
    for turn in 0..turns {
        stage(&mut connection, &piece).unwrap();
        let flushed = block_within(connection.flush(), HANG);
        assert!(flushed.is_some_and(|f| f.is_ok()), "the flush hangs or fails at turn {turn} of {turns}");
    }
    let blocked = server.stats().send_eagain;
    drop(connection);
    reader.join().unwrap();
    assert_eq!(count.load(Ordering::Acquire), turns * piece.len());
    assert!(blocked > 0, "vacuity: no send was ever refused");
}

/// What a `send_all` of the caller's own slice leaves behind when it is given up counts like what was staged.
#[test]
fn a_send_all_that_was_given_up_does_not_lift_the_staging_limit() {
    const MAX: usize = 200 * 1024;
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { max_staged: MAX, ..ReactorConfig::default() });
    });
    let (ours, _peer) = tcp_pair(HANG);
    let mut connection = Connection::from_std_on(&server.reactor(), ours).unwrap();
    // Room is known from here on.
    connection.stage(b"x").unwrap();
    block_within(connection.flush(), HANG).expect("one byte").unwrap();
    let big = vec![7; MAX - 1000];
    let parker = Parker::new();
    let given_up = (0..1000).any(|_| {
        let pending = poll_once(pin!(connection.send_all(&big)), &parker).is_pending();
        pending && connection.unsent_len() > 0
    });
    assert!(given_up, "vacuity: the socket took everything");
    while connection.stage(&[0; 1000]).is_ok() {}
    assert!(connection.unsent_len() <= MAX, "{} bytes", connection.unsent_len());
    connection.reset();
}
