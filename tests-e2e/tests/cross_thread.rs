//! Connections wholly off their reactor: on threads that epoxide has never seen, both halves at once, with a third
//! thread that closes, under every clock.

use std::io::{self, Write};
use std::net::Shutdown;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use epoxide::{Clock, CloseReason, Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Peer, Place, Rng, asked_for, block_within, handing_over, pair, pattern, rounds, run_at, several,
    stage, wait_until,
};

const SOON: Duration = Duration::from_secs(20);
const BLOCK: usize = 64 * 1024;
/// What a direction must park at least, in every form of the test.
const PARKS: u64 = 1000;

/// Z.1 and the acceptance of "any thread": both directions at once on two plain threads, exact bytes, each direction
/// parked a thousand times, counted. EPOXIDE_MIB=1024 is the large form.
#[test]
fn full_duplex_on_two_plain_threads() {
    let mib = asked_for("EPOXIDE_MIB", 64);
    let case = Case::start_within(Duration::from_secs(120 + mib as u64));
    let blocks = mib * (1 << 20) / BLOCK;
    let (server, accepted) = handing_over(&case, |_| {});
    let mut peer = Peer::connect_stalling(server.addr());
    let connection = accepted.recv_timeout(SOON).expect("handed over");
    // Small, so that a pause of the peer is soon felt.
    connection.set_send_buffer_size(BLOCK).unwrap();
    let ceiling = Duration::from_secs(60 + mib as u64);
    let (mut reader, mut writer) = connection.into_split();
    let both = Arc::new(Barrier::new(2));
    let (begun, reading) = (both.clone(), both);
    let receiving = thread::spawn(move || {
        reading.wait();
        let block = pattern(BLOCK);
        let mut total = 0;
        let all = async {
            while let Some(received) = reader.read().await? {
                let mut rest = &received[..];
                while !rest.is_empty() {
                    let at = total % BLOCK;
                    let n = rest.len().min(BLOCK - at);
                    assert!(rest[..n] == block[at..at + n], "wrong bytes behind {total}");
                    (total, rest) = (total + n, &rest[n..]);
                }
            }
            io::Result::Ok(())
        };
        block_within(all, ceiling).expect("the reader is not left hanging").unwrap();
        total
    });
    let sending = thread::spawn(move || {
        begun.wait();
        let block = pattern(BLOCK);
        let all = async {
            for _ in 0..blocks {
                writer.send_all(&block).await?;
            }
            writer.shutdown().await
        };
        block_within(all, ceiling).expect("the writer is not left hanging").unwrap();
    });
    let mut uplink = peer.stream().try_clone().unwrap();
    let reactor = server.reactor();
    let pauses = blocks.div_ceil(PARKS as usize * 11 / 10).max(1);
    let uploading = thread::spawn(move || {
        let block = pattern(BLOCK);
        for i in 0..blocks {
            let parks = reactor.stats().parks;
            uplink.write_all(&block).unwrap();
            // Until everything is read and the reader parks; it may have been waiting for a block as small as this one.
            let parked = i % pauses != 0 || wait_until(SOON, || reactor.stats().parks > parks);
            assert!(parked, "block {i}: the read does not park");
        }
        uplink.shutdown(Shutdown::Write).unwrap();
    });
    let block = pattern(BLOCK);
    for i in 0..blocks {
        if i % pauses == 0 && i + 8 < blocks {
            let parks = server.stats().flush_parks;
            // A pause until the flush parks, unless it is parked already.
            let _ = wait_until(Duration::from_millis(2), || server.stats().flush_parks > parks);
        }
        assert!(peer.read_exactly(BLOCK, SOON).as_ref() == Ok(&block), "block {i} of {blocks}");
    }
    assert_eq!(peer.ending(SOON), Ending::Eof);
    uploading.join().unwrap();
    sending.join().unwrap();
    assert_eq!(receiving.join().unwrap(), blocks * BLOCK);
    let stats = server.stats();
    println!("{mib} MiB each way: {} reads parked, {} flushes parked", stats.parks, stats.flush_parks);
    assert!(stats.parks >= PARKS, "vacuity: {} reads parked", stats.parks);
    assert!(stats.flush_parks >= PARKS, "vacuity: {} flushes parked", stats.flush_parks);
    assert!(stats.wakes_local == 0, "something resumed on the reactor");
}

/// Halves on two threads of any kind, a close handle on a third at any moment: both sides come back, what arrived is a
/// part from the front, and a close in good order cuts nothing that a flush had reported.
#[test]
fn halves_on_two_threads_against_a_close_from_a_third() {
    let case = Case::start_rounds();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut during, mut cut) = (0, 0);
    for round in 0..rounds() {
        let mut rng = Rng::new(round as u64);
        let (mut peer, connection, reactors) = pair(&server, &accepted);
        let handle = connection.close_handle();
        let (mut reader, mut writer) = connection.into_split();
        let reading = run_at(Place::any(&mut rng), &reactors, SOON, async move {
            let mut all = Vec::new();
            loop {
                match reader.read().await {
                    Ok(Some(received)) => all.extend_from_slice(&received),
                    Ok(None) => return (all, None),
                    Err(error) => return (all, CloseReason::of(&error)),
                }
            }
        });
        let piece = 1 + rng.below(40_000) as usize;
        let writing = run_at(Place::any(&mut rng), &reactors, SOON, async move {
            let mut flushed = 0;
            while writer.send_all(&pattern(piece)).await.is_ok() {
                flushed += piece;
                epoxide::yield_now().await;
            }
            (flushed, writer.close_reason())
        });
        let hard = round % 2 == 0;
        let (skew, early) = (rng.below(100_000), round % 8 == 0);
        let closing = thread::spawn(move || {
            if !early {
                Rng::new(skew).skew(skew.max(1));
            }
            if hard { handle.reset() } else { handle.close() }
        });
        let sent = pattern(rng.below(100_000) as usize);
        let mut uplink = peer.stream().try_clone().unwrap();
        let (up, last) = (sent.clone(), rng.below(2) == 0);
        let uploading = thread::spawn(move || {
            let whole = uplink.write_all(&up).is_ok();
            if last {
                let _ = uplink.shutdown(Shutdown::Write);
            }
            whole
        });
        let (received, ending) = peer.read_to_end(SOON);
        closing.join().unwrap();
        let _ = uploading.join().unwrap();
        let (all, why) = reading.recv_timeout(SOON).expect("the reader is left hanging");
        let (flushed, reason) = writing.recv_timeout(SOON).expect("the writer is left hanging");
        assert!(sent.starts_with(&all), "round {round}: {} bytes, not a part from the front", all.len());
        let whole = received.chunks(piece).all(|chunk| pattern(piece).starts_with(chunk));
        assert!(whole, "round {round}: wrong bytes in {} received", received.len());
        assert!(ending.is_closed(), "round {round}: {ending:?}");
        assert!(why.is_none() || why == Some(CloseReason::Local) || hard, "round {round}: {why:?}");
        assert_eq!(reason, Some(CloseReason::Local), "round {round}");
        if !hard && ending == Ending::Eof {
            assert!(received.len() >= flushed, "round {round}: {flushed} flushed, {} arrived", received.len());
            during += usize::from(flushed > 0);
        }
        cut += usize::from(hard && ending == Ending::Reset);
    }
    println!("{during} closes came behind a flush, {cut} resets reached the peer");
    assert!(during > 0 && cut > 0, "vacuity: {during} and {cut}");
}

/// Everything a handler does, on a plain thread and on a worker: reads, staging, flushes, every clock, every ending.
#[test]
fn every_clock_and_every_ending_works_off_the_reactor() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |b| {
        b.config(ReactorConfig {
            read_timeout: Duration::from_millis(300),
            send_timeout: Duration::from_millis(300),
            linger: Duration::from_secs(2),
            ..ReactorConfig::default()
        });
    });
    let reactors = server.runtime().handles();
    for place in [Place::Plain, Place::Worker, Place::Home] {
        for how in ["read clock", "send clock", "deadline", "shutdown", "drop", "reset", "peer reset", "peer FIN"] {
            let mut peer = Peer::connect_stalling(server.addr());
            let connection = accepted.recv_timeout(SOON).expect("handed over");
            let done = run_at(place, &reactors, SOON, handler(connection, how));
            let greeting = peer.read_exactly(5, SOON);
            assert_eq!(greeting, Ok(b"hello".to_vec()), "{how} at {place:?}");
            peer.send(b"request").unwrap();
            assert_eq!(peer.read_exactly(7, SOON), Ok(b"request".to_vec()), "{how} at {place:?}");
            if how == "peer FIN" {
                peer.half_close().unwrap();
            }
            let peer = if how == "peer reset" {
                peer.reset();
                None
            } else {
                Some(peer)
            };
            let outcome = done.recv_timeout(SOON).unwrap_or_else(|_| panic!("{how} at {place:?} hangs"));
            let reason = match how {
                "read clock" => Some(CloseReason::Timeout(Clock::Read)),
                "send clock" => Some(CloseReason::Timeout(Clock::Send)),
                "deadline" => Some(CloseReason::Timeout(Clock::Deadline("elsewhere"))),
                "reset" => Some(CloseReason::Local),
                _ => None,
            };
            let Some(mut peer) = peer else {
                assert!(matches!(outcome, Some(CloseReason::PeerReset { .. })), "{outcome:?} at {place:?}");
                continue;
            };
            assert_eq!(outcome, reason, "{how} at {place:?}");
            let expected = if matches!(how, "reset" | "send clock") { Ending::Reset } else { Ending::Eof };
            assert_eq!(peer.ending(SOON), expected, "{how} at {place:?}");
        }
    }
}

/// Greets, answers one request, ends.
async fn handler(mut connection: Connection, how: &'static str) -> Option<CloseReason> {
    let served = async {
        connection.send_all(b"hello").await?;
        let request = connection.read().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        stage(&mut connection, &request)?;
        connection.flush().await?;
        match how {
            "send clock" => connection.send_all(&pattern(8 << 20)).await?,
            "deadline" => {
                let _suspended = connection.suspend_read_timeout();
                connection.set_deadline(Some(Instant::now() + Duration::from_millis(50)), "elsewhere");
                connection.read().await?;
            }
            "shutdown" => connection.shutdown().await?,
            "reset" => connection.reset(),
            "drop" => {}
            _ => assert!(connection.read().await?.is_none(), "bytes out of nowhere"),
        }
        io::Result::Ok(())
    };
    match served.await {
        Err(error) => CloseReason::of(&error),
        Ok(()) => connection.close_reason(),
    }
}
