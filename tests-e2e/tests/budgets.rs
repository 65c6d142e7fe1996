//! Budgets (law 8): one connection's reads and flushes, however much there is, leave the others their turn.
//!
//! The order within a pass is made by construction: the reactor is held while both parties get their bytes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, PeerOptions, Server, SockDiag, echo, hold_reactor, loopback, pattern, read_to_end,
    wait_until,
};

const SOON: Duration = Duration::from_secs(10);
/// More than any kernel buffer here takes at once.
const FLOOD: usize = 16 << 20;

/// A flooding connection and a quiet one become ready in one pass, the flood first. How many reads the flood had made
/// when the quiet one was served, and how many waited in the server's own receive queue.
fn reads_before_a_ping(read_budget: u32) -> (usize, usize) {
    let case = Case::start();
    let reads = Arc::new(AtomicUsize::new(0));
    let (counted, seen) = (Arc::clone(&reads), Arc::clone(&reads));
    let (served, serves) = channel();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { recv_buffer_size: 1024, read_budget, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let reads = Arc::clone(&counted);
            async move {
                while connection.read().await?.is_some() {
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                io::Result::Ok(())
            }
        });
        b.listen(loopback(), move |mut connection: Connection| {
            let (reads, served) = (Arc::clone(&seen), served.clone());
            async move {
                while connection.read().await?.is_some() {
                    let _ = served.send(reads.load(Ordering::Relaxed));
                }
                io::Result::Ok(())
            }
        });
    });
    let (mut flood, mut quiet) = (Peer::connect(server.addrs()[0]), Peer::connect(server.addrs()[1]));
    // Both handlers are parked.
    flood.send(b".").unwrap();
    quiet.send(b".").unwrap();
    assert_eq!(serves.recv_timeout(SOON).map(|_| ()), Ok(()));
    assert!(wait_until(SOON, || reads.load(Ordering::Relaxed) == 1 && server.stats().parks >= 4));
    let held = hold_reactor(&server.reactor());
    let sent = flood.send_until_blocked(&pattern(FLOOD), Duration::from_millis(200)).unwrap();
    quiet.send(b".").unwrap();
    let row = SockDiag::open().row(flood.peer_addr(), flood.local_addr()).expect("the kernel knows the connection");
    reads.store(0, Ordering::Relaxed);
    held.release();
    let before = serves.recv_timeout(SOON).unwrap();
    assert!(wait_until(SOON, || reads.load(Ordering::Relaxed) >= sent / 1024));
    (before, row.unread as usize / 1024)
}

/// Z6: sixteen reads in a row, then it is the others' turn; the control without a budget reads everything first.
#[test]
fn a_flooding_client_leaves_others_their_turn_after_its_read_budget() {
    let (before, there) = reads_before_a_ping(16);
    assert!(there > 100, "vacuity: the flood was {there} reads only");
    assert!(before <= 2 * 16, "the quiet one waited for {before} reads of the flood");
    let (before, there) = reads_before_a_ping(u32::MAX);
    assert!(before > there / 2, "control: without a budget only {before} of {there} reads came first");
}

/// The same as a client sees it: a flood that never ends beside 100 pings on another connection.
#[test]
fn every_ping_beside_an_endless_flood_is_answered() {
    let case = Case::start();
    let received = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&received);
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let received = Arc::clone(&counted);
            async move {
                while let Some(data) = connection.read().await? {
                    received.fetch_add(data.len(), Ordering::Relaxed);
                }
                io::Result::Ok(())
            }
        });
        b.listen(loopback(), echo);
    });
    let stop = Arc::new(AtomicBool::new(false));
    let flood = std::thread::spawn({
        let (stop, mut peer) = (Arc::clone(&stop), Peer::connect(server.addrs()[0]));
        move || {
            let bytes = pattern(1 << 20);
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                sent += peer.send_until_blocked(&bytes, Duration::from_secs(5)).expect("the flood is taken");
            }
            sent
        }
    });
    assert!(wait_until(SOON, || received.load(Ordering::Relaxed) > 1 << 20));
    let mut peer = Peer::connect(server.addrs()[1]);
    // A hundred pings, and on until the flood went on during fifty of them: the scheduler may favour either side.
    let (mut pings, mut floods) = (0_u32, 0);
    let begun = Instant::now();
    while pings < 100 || floods < 50 {
        let before = received.load(Ordering::Relaxed);
        peer.send(b"!").unwrap();
        assert_eq!(peer.read_exactly(1, SOON).as_deref(), Ok(&b"!"[..]), "ping {pings}");
        pings += 1;
        floods += u32::from(received.load(Ordering::Relaxed) > before);
        assert!(begun.elapsed() < 3 * SOON, "vacuity: the flood went on during {floods} of {pings} pings");
    }
    stop.store(true, Ordering::Relaxed);
    let sent = flood.join().unwrap();
    assert!(wait_until(SOON, || received.load(Ordering::Relaxed) == sent), "the flood lost bytes");
}

/// Two connections are answered in one pass: the first with `flush_budget` and a large body, the second one looks how
/// much of that body its peer's kernel holds by then.
fn bytes_before_a_ping(flush_budget: usize) -> usize {
    let case = Case::start();
    let body = Bytes::from(pattern(300 * 1024));
    let (looked, looks) = channel();
    let (pair, pairs) = channel();
    let pairs = Arc::new(std::sync::Mutex::new(pairs));
    let answer = body.clone();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { flush_budget, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let body = answer.clone();
            async move {
                connection.set_send_buffer_size(1 << 20)?;
                let Some(_) = connection.read().await? else { return Ok(()) };
                connection.stage_bytes(body)?;
                connection.flush().await
            }
        });
        b.listen(loopback(), move |mut connection: Connection| {
            let (pairs, looked) = (Arc::clone(&pairs), looked.clone());
            async move {
                let Some(_) = connection.read().await? else { return Ok(()) };
                let pairs: &Receiver<_> = &pairs.lock().expect("no holder panics");
                let (local, peer) = pairs.recv_timeout(SOON).expect("the test says which connection");
                let _ = looked.send(SockDiag::open().row(local, peer).map(|row| row.unread as usize));
                io::Result::Ok(())
            }
        });
    });
    let options = PeerOptions { receive_buffer: Some(1 << 20) };
    let (mut large, mut quiet) = (Peer::connect_with(server.addrs()[0], options), Peer::connect(server.addrs()[1]));
    pair.send((large.local_addr(), large.peer_addr())).unwrap();
    assert!(wait_until(SOON, || server.stats().parks >= 2));
    let held = hold_reactor(&server.reactor());
    large.send(b"?").unwrap();
    quiet.send(b"?").unwrap();
    held.release();
    let there = looks.recv_timeout(SOON).unwrap().expect("the kernel knows the connection");
    let (got, ending) = large.read_to_end(SOON);
    assert!(got == body && ending == Ending::Eof, "{} bytes, {ending:?}", got.len());
    there
}

#[test]
fn a_large_flush_leaves_others_their_turn_after_its_budget() {
    let budget = 16 * 1024;
    let there = bytes_before_a_ping(budget);
    assert!((1..=2 * budget).contains(&there), "{there} bytes went out first");
    let there = bytes_before_a_ping(usize::MAX);
    assert!(there > 4 * budget, "control: without a budget {there} bytes went out first");
}

/// The same as clients see it: a peer that takes everything at once beside 100 pings.
#[test]
fn every_ping_beside_a_large_flush_to_a_fast_peer_is_answered() {
    const BODY: usize = 256 << 20;
    let case = Case::start();
    let done = Gate::new();
    let handler_done = done.clone();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { flush_budget: 64 * 1024, max_staged: BODY, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let done = handler_done.clone();
            async move {
                // One flush of many pieces of one block.
                let piece = Bytes::from(vec![7; 1 << 20]);
                for _ in 0..BODY >> 20 {
                    connection.stage_bytes(piece.clone())?;
                }
                connection.flush().await?;
                done.open();
                read_to_end(&mut connection).await.map(drop)
            }
        });
        b.listen(loopback(), echo);
    });
    let begin = Gate::new();
    let fast = std::thread::spawn({
        let (begin, mut peer) = (begin.clone(), Peer::connect(server.addrs()[0]));
        move || {
            assert!(begin.wait_blocking(SOON));
            let mut space = vec![0; 1 << 20];
            let mut got = 0;
            while got < BODY {
                match peer.read(&mut space, SOON) {
                    Ok(n) if n > 0 => got += n,
                    other => panic!("{other:?} after {got} bytes"),
                }
            }
        }
    });
    let mut peer = Peer::connect(server.addrs()[1]);
    let (mut pings, mut during) = (0_u32, 0_u32);
    // From before the peer begins to read until everything is out.
    while pings < 100 || !done.is_open() {
        peer.send(b"!").unwrap();
        assert_eq!(peer.read_exactly(1, SOON).as_deref(), Ok(&b"!"[..]), "ping {pings}");
        pings += 1;
        during += u32::from(!done.is_open());
        begin.open();
    }
    assert!(during > 0, "vacuity: the flush was over before the first ping");
    fast.join().unwrap();
    assert!(done.wait_blocking(SOON));
    assert!(server.stats().flush_parks > 100, "vacuity: {} turns only", server.stats().flush_parks);
}

/// A loop of small flushes that the socket always takes: how many bytes it had sent when the other connection, which
/// became ready in the same pass, had its turn; and how many of its flushes were pending although everything was out.
fn sent_before_a_ping(flush_budget: usize, how: fn(&mut Connection) -> bool) -> (usize, usize) {
    const PIECE: usize = 1024;
    const PIECES: usize = 200;
    let case = Case::start();
    let (sent, yields) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counted, seen, yielded) = (Arc::clone(&sent), Arc::clone(&sent), Arc::clone(&yields));
    let (served, serves) = channel();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { flush_budget, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let (sent, yields) = (Arc::clone(&counted), Arc::clone(&yielded));
            async move {
                connection.set_send_buffer_size(1 << 20)?;
                let Some(_) = connection.read().await? else { return Ok(()) };
                for _ in 0..PIECES {
                    connection.stage(&[7; PIECE])?;
                    if !how(&mut connection) {
                        let mut polls = 0;
                        let mut flush = std::pin::pin!(connection.flush());
                        std::future::poll_fn(|cx| {
                            polls += 1;
                            flush.as_mut().poll(cx)
                        })
                        .await?;
                        yields.fetch_add(polls - 1, Ordering::Relaxed);
                    }
                    sent.fetch_add(PIECE, Ordering::Relaxed);
                }
                io::Result::Ok(())
            }
        });
        b.listen(loopback(), move |mut connection: Connection| {
            let (sent, served) = (Arc::clone(&seen), served.clone());
            async move {
                while connection.read().await?.is_some() {
                    let _ = served.send(sent.load(Ordering::Relaxed));
                }
                io::Result::Ok(())
            }
        });
    });
    let options = PeerOptions { receive_buffer: Some(1 << 20) };
    let (mut busy, mut quiet) = (Peer::connect_with(server.addrs()[0], options), Peer::connect(server.addrs()[1]));
    assert!(wait_until(SOON, || server.stats().parks >= 2));
    let held = hold_reactor(&server.reactor());
    busy.send(b"?").unwrap();
    quiet.send(b"?").unwrap();
    held.release();
    let before = serves.recv_timeout(SOON).unwrap();
    let (got, ending) = busy.read_to_end(SOON);
    assert!(got.len() == PIECES * PIECE && ending == Ending::Eof, "{} bytes, {ending:?}", got.len());
    assert_eq!((server.stats().send_eagain, server.stats().flush_parks), (0, 0), "vacuity: the socket refused some");
    (before, yields.load(Ordering::Relaxed))
}

/// Each flush is within its budget, so only their sum can say that others wait. Everything is out when one yields.
#[test]
fn a_loop_of_small_flushes_leaves_others_their_turn() {
    let budget = 16 * 1024;
    let (before, yields) = sent_before_a_ping(budget, |_| false);
    assert!(before <= 2 * budget, "{before} bytes were sent first");
    assert_eq!(yields, 200 * 1024 / budget, "once for each budget");
    let (before, yields) = sent_before_a_ping(usize::MAX, |_| false);
    assert!(
        before == 200 * 1024 && yields == 0,
        "control: without a budget {before} bytes came first, {yields} yields"
    );
}

/// `try_flush` cannot yield: what is out is out, and it says so. Flushes after it pay for it.
#[test]
fn try_flush_takes_no_yield_for_a_rest() {
    let try_flush = |connection: &mut Connection| {
        assert!(connection.try_flush().is_ok(), "everything is out");
        true
    };
    let (before, yields) = sent_before_a_ping(16 * 1024, try_flush);
    assert_eq!((before, yields), (200 * 1024, 0));
}

/// A flush that is given up while it yields has sent everything, once, and the connection goes on.
#[test]
fn a_flush_that_is_given_up_while_it_yields_leaves_nothing_behind() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { flush_budget: 4, ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(_) = connection.read().await? else { return Ok(()) };
            for piece in [b"1234", b"5678"] {
                connection.stage(piece)?;
                let mut flush = std::pin::pin!(connection.flush());
                let first = std::future::poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx).is_pending())).await;
                assert!(first, "vacuity: it did not yield");
            }
            assert_eq!((connection.staged_len(), connection.try_flush().is_ok()), (0, true));
            connection.send_all(b"end").await?;
            connection.shutdown().await
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(peer.read_to_end(SOON), (b"12345678end".to_vec(), Ending::Eof));
}
