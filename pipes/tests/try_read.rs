//! Reading without waiting, after a read that failed: a `try_read` waits for nobody, so it leaves nothing behind that a clock
//! or an edge could take for a waiter, and it tells a failure as often as it is asked.

mod common;

use common::{SOON, everywhere, small};
use epoxide::{Clock, CloseReason, Connection, ReactorConfig, time};
use epoxide_pipes::{Duplex, PipeReader};
use epoxide_tests_e2e::{Case, Peer, wait_until};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const LIMIT: Duration = Duration::from_millis(400);

/// Until `try_read` has something; what is held then.
async fn poll_for(input: &mut PipeReader, bytes: usize) -> io::Result<Vec<u8>> {
    loop {
        if let Some(result) = input.try_read()?
            && result.buffer.len() >= bytes
        {
            return Ok(result.buffer.to_vec());
        }
        let held = input.held_len();
        input.advance_to(0, held);
        time::sleep(Duration::from_millis(1)).await;
    }
}

/// Holds "AB" and has examined it, or holds nothing; then a read ran out of its own time.
async fn failed_read(connection: Connection, held: bool) -> io::Result<(PipeReader, epoxide_pipes::PipeWriter)> {
    let (mut input, output) = Duplex::new(connection).into_parts();
    let n = input.read_exact(2).await?.buffer.len();
    if held {
        input.advance_to(0, n);
    } else {
        input.advance(n);
    }
    let late = input.read_until(b"\n", 100, LIMIT / 8).await.unwrap_err();
    assert_eq!((late.kind(), CloseReason::of(&late)), (io::ErrorKind::TimedOut, None));
    let held = input.held_len();
    input.advance_to(0, held);
    Ok((input, output))
}

/// After a read that ran out of time, looks that find nothing are no wait: a silence longer than `read_timeout` between two
/// of them ends nothing, and bytes are seen when they come.
#[test]
fn looks_that_find_nothing_are_no_wait_for_the_read_clock() {
    for held in [true, false] {
        let case = Case::start();
        let (tell, told): (Sender<Vec<u8>>, Receiver<Vec<u8>>) = channel();
        let config = ReactorConfig { read_timeout: LIMIT, ..ReactorConfig::default() };
        let server = everywhere(&case, config, move |connection| {
            let tell = tell.clone();
            async move {
                let (mut input, _output) = failed_read(connection, held).await?;
                for _ in 0..3 {
                    assert!(input.try_read()?.is_none());
                    // sleep: the work of a busy handler, longer than the limit.
                    time::sleep(2 * LIMIT).await;
                }
                assert!(input.try_read()?.is_none());
                let _ = tell.send(Vec::new());
                let _ = tell.send(poll_for(&mut input, if held { 3 } else { 1 }).await?);
                Ok(())
            }
        });
        for addr in server.addrs() {
            let mut peer = Peer::connect(*addr);
            peer.send(b"AB").unwrap();
            told.recv_timeout(SOON).expect("no look ended the connection");
            peer.send(b"C").unwrap();
            assert_eq!(told.recv_timeout(SOON).unwrap(), if held { &b"ABC"[..] } else { b"C" }, "held: {held}");
        }
        assert_eq!(server.stats().timeouts, 0);
    }
}

/// A read that is given up parks; one that waits afterwards still has the whole time, whatever was looked at between.
#[test]
fn a_read_after_looks_has_the_whole_time_and_then_ends() {
    let case = Case::start();
    let (tell, told) = channel();
    let config = ReactorConfig { read_timeout: LIMIT, ..ReactorConfig::default() };
    let server = everywhere(&case, config, move |connection| {
        let tell = tell.clone();
        async move {
            let (mut input, _output) = failed_read(connection, true).await?;
            assert!(input.try_read()?.is_none());
            // sleep: as above.
            time::sleep(2 * LIMIT).await;
            assert!(input.try_read()?.is_none());
            let before = std::time::Instant::now();
            let error = input.read().await.map(|_| ()).unwrap_err();
            // The ended connection is told by a look too, again and again; what was received stays.
            for _ in 0..3 {
                assert_eq!(CloseReason::of(&input.try_read().unwrap_err()), CloseReason::of(&error));
            }
            assert_eq!(input.buffer().to_vec(), b"AB");
            let _ = tell.send((CloseReason::of(&error), before.elapsed()));
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"AB").unwrap();
        let (reason, took) = told.recv_timeout(SOON).unwrap();
        assert_eq!(reason, Some(CloseReason::Timeout(Clock::Read)));
        assert!(took >= LIMIT, "it had {took:?} only");
    }
}

/// Behind a reset that a read was told of, a look is told the same, and never "nothing yet".
#[test]
fn a_reset_is_told_by_every_look_after_the_read_that_met_it() {
    let case = Case::start();
    let (tell, told) = channel::<()>();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let tell = tell.clone();
        async move {
            let (mut input, _output) = Duplex::new(connection).into_parts();
            let n = input.read_exact(2).await?.buffer.len();
            input.advance_to(0, n);
            let _ = tell.send(());
            let met = input.read().await.map(|_| ()).unwrap_err();
            assert_eq!(met.kind(), io::ErrorKind::ConnectionReset);
            for _ in 0..3 {
                assert_eq!(input.try_read().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            }
            assert_eq!(input.take(2), "AB", "what was received before stays");
            assert_eq!(input.try_read().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            let _ = tell.send(());
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"AB").unwrap();
        told.recv_timeout(SOON).unwrap();
        peer.reset();
        told.recv_timeout(SOON).unwrap();
    }
}

/// Past `max_held` a look is refused like a read, takes nothing in, and loses nothing.
#[test]
fn a_look_past_the_limit_is_refused_and_loses_nothing() {
    let case = Case::start();
    let (give, given) = channel();
    let server = everywhere(&case, small(8), move |connection| {
        let give = give.clone();
        async move {
            let _ = give.send(connection);
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        let (mut input, _output) = Duplex::new(given.recv_timeout(SOON).unwrap()).into_parts();
        input.set_max_held(4);
        peer.send(b"ABCD").unwrap();
        assert!(wait_until(SOON, || {
            let held = input.held_len();
            input.advance_to(0, held);
            held == 4 || input.try_read().is_ok_and(|result| result.is_some_and(|r| r.buffer.len() == 4))
        }));
        input.advance_to(0, 4);
        peer.send(b"EF").unwrap();
        let refused = epoxide_tests_e2e::block_within(input.read(), SOON).unwrap().map(|_| ()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        for _ in 0..3 {
            assert_eq!(input.try_read().unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        }
        assert_eq!(input.buffer().to_vec(), b"ABCD");
        input.advance(4);
        let got = epoxide_tests_e2e::block_within(input.read_exact(2), SOON).unwrap().unwrap().buffer.to_vec();
        assert_eq!(got, b"EF");
    }
}
