//! Cancelled flushes: a flush whose future is dropped goes on without it, and what is staged
//! meanwhile goes out behind it, whole and in order, whoever sends.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::Duration;

use epoxide::Connection;
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, Rng, Server, block_within, loopback, pattern, poll_once, rounds, stage,
};

const HANG: Duration = Duration::from_secs(10);

/// Sends `whole` in pieces of uneven size. Every flush is polled once and dropped; only when
/// staging is refused (or at the end) is one awaited. Returns how many were pending when dropped.
async fn send_cancelling(connection: &mut Connection, whole: &[u8], seed: u64) -> io::Result<usize> {
    let mut rng = Rng::new(seed);
    let (mut at, mut cancelled) = (0, 0);
    while at < whole.len() {
        let size = usize::try_from(1 + rng.below(8192)).unwrap_or(1).min(whole.len() - at);
        if connection.stage(&whole[at..at + size]).is_err() {
            connection.flush().await?;
            continue;
        }
        at += size;
        let mut flush = pin!(connection.flush());
        let first = poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx))).await;
        match first {
            Poll::Ready(outcome) => outcome?,
            Poll::Pending => cancelled += 1,
        }
    }
    connection.flush().await?;
    Ok(cancelled)
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
        b.listen(loopback(), move |mut connection: Connection| {
            let (whole, counts) = (whole.clone(), counts.clone());
            async move {
                let _ = counts.send(send_cancelling(&mut connection, &whole, 1).await?);
                connection.shutdown().await
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    receive(&mut peer, &expected);
    assert!(cancelled.recv_timeout(HANG).unwrap() > 0, "vacuity: no flush was ever pending");
}

/// The same from a thread of its own: the reactor sends the remainder of one flush while the writer
/// stages and flushes the next.
#[test]
fn cancelled_flushes_on_another_thread_keep_the_order() {
    let case = Case::start_rounds();
    let expected = load();
    let (connections, accepted) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |connection: Connection| {
            let connections = connections.clone();
            async move {
                let _ = connections.send(connection);
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    let mut connection = accepted.recv_timeout(HANG).expect("handed over");
    let whole = expected.clone();
    let writer = std::thread::spawn(move || {
        let sent = async {
            let cancelled = send_cancelling(&mut connection, &whole, 2).await?;
            connection.shutdown().await?;
            io::Result::Ok(cancelled)
        };
        block_within(sent, Duration::from_secs(100)).expect("the writer hangs")
    });
    receive(&mut peer, &expected);
    drop(peer);
    assert!(writer.join().unwrap().unwrap() > 0, "vacuity: no flush was ever pending");
}

/// A flush that is polled by one waker and then by another wakes the last one.
#[test]
fn a_flush_wakes_whoever_polled_it_last() {
    let case = Case::start();
    let (connections, accepted) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |connection: Connection| {
            let connections = connections.clone();
            async move {
                let _ = connections.send(connection);
            }
        });
    });
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
