//! The read and send clocks: who is timed out, who is not, and that the error says which clock it was.
//!
//! Nothing here asserts a moment, only that a clock ran out, or did not, within generous bounds. The sweep ticks every
//! 250 ms. Cites ids of the list of behaviours (TMO).

use std::io::{self, ErrorKind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epoxide::{Clock, CloseReason, Connection, ReactorConfig, spawn_local, time};
use epoxide_tests_e2e::{Case, Ending, Gate, Peer, PeerOptions, Server, echo, loopback, pattern, stage, wait_until};

const SOON: Duration = Duration::from_secs(10);
/// What the original gives a clock of half a second.
const GRACE: Duration = Duration::from_secs(4);
const HALF: Duration = Duration::from_millis(500);

fn clocks(read: Duration, send: Duration) -> ReactorConfig {
    ReactorConfig { read_timeout: read, send_timeout: send, ..ReactorConfig::default() }
}

/// Which clock an error names; anything else is a failure of the test.
fn which<T>(result: io::Result<T>) -> Option<Clock> {
    let error = result.err()?;
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    match CloseReason::of(&error) {
        Some(CloseReason::Timeout(clock)) => Some(clock),
        other => panic!("not a clock: {other:?} ({error})"),
    }
}

/// A handler that echoes until its read ends, and reports how it ended.
async fn echo_and_tell(mut connection: Connection, tell: Sender<Option<Clock>>) -> io::Result<()> {
    loop {
        match connection.read().await {
            Ok(Some(data)) => {
                stage(&mut connection, &data)?;
                connection.flush().await?;
            }
            Ok(None) => {
                let _ = tell.send(None);
                return Ok(());
            }
            Err(error) => {
                let reason = connection.close_reason();
                assert_eq!(reason, CloseReason::of(&error), "the connection says the same as its read");
                let _ = tell.send(which(Err::<(), _>(error)));
                return Ok(());
            }
        }
    }
}

fn telling_server(case: &Case, config: ReactorConfig) -> (Server, Receiver<Option<Clock>>) {
    let (tell, told) = channel();
    let server = Server::start(case, |b| {
        b.config(config);
        b.listen(loopback(), move |connection| echo_and_tell(connection, tell.clone()));
    });
    (server, told)
}

/// TMO-01: a silent client is let go, and the handler's read says why.
#[test]
fn a_silent_client_is_closed_and_the_read_names_its_clock() {
    let case = Case::start();
    let (server, told) = telling_server(&case, clocks(HALF, Duration::ZERO));
    let mut peer = Peer::connect(server.addr());
    peer.send(b"hi").unwrap();
    assert_eq!(peer.read_exactly(2, SOON).unwrap(), b"hi");
    assert_eq!(peer.ending(GRACE), Ending::Eof, "nothing was under way: a clean end");
    assert_eq!(told.recv_timeout(SOON), Ok(Some(Clock::Read)));
    assert_eq!(server.stats().timeouts, 1);
}

/// TMO-02: activity refreshes the clock.
#[test]
fn a_client_that_pings_is_never_closed() {
    let case = Case::start();
    let (server, told) = telling_server(&case, clocks(HALF, Duration::ZERO));
    let mut peer = Peer::connect(server.addr());
    for i in 0..10 {
        peer.send(b"ping").unwrap();
        assert_eq!(peer.read_exactly(4, SOON).as_deref(), Ok(&b"ping"[..]), "ping {i}");
        // sleep: the gap is the stimulus.
        std::thread::sleep(Duration::from_millis(200));
    }
    peer.send(b"more").unwrap();
    assert_eq!(peer.read_exactly(4, SOON).as_deref(), Ok(&b"more"[..]));
    assert_eq!(server.stats().timeouts, 0);
    // Control: the same connection is closed once it falls silent.
    assert_eq!(told.recv_timeout(GRACE), Ok(Some(Clock::Read)));
}

/// TMO-03: zero is off.
#[test]
fn a_clock_of_zero_never_runs_out() {
    let case = Case::start();
    let (server, _told) = telling_server(&case, clocks(Duration::ZERO, Duration::ZERO));
    let mut peer = Peer::connect(server.addr());
    // sleep: the silence is the stimulus.
    std::thread::sleep(Duration::from_millis(1500));
    peer.send(b"ping").unwrap();
    assert_eq!(peer.read_exactly(4, SOON).as_deref(), Ok(&b"ping"[..]));
}

/// A feed of 16 messages, 150 ms apart, to a client that says nothing: our own sends refresh the read clock.
#[test]
fn a_push_feed_is_not_timed_out_by_the_read_clock() {
    let case = Case::start();
    let (tell, told) = channel();
    let server = Server::start(&case, |b| {
        b.config(clocks(HALF, Duration::ZERO));
        b.listen(loopback(), move |connection: Connection| {
            let tell = tell.clone();
            async move {
                let (mut read, mut write) = connection.into_split();
                let Some(_) = read.read().await? else { return Ok(()) };
                let feed = spawn_local(async move {
                    for n in 0..16_u8 {
                        time::sleep(Duration::from_millis(150)).await;
                        write.send_all(&[n]).await?;
                    }
                    io::Result::Ok(write)
                });
                let end = read.read().await;
                let _ = tell.send(end.map(|data| data.is_some()).map_err(|error| CloseReason::of(&error)));
                drop(feed.await);
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"go").unwrap();
    let fed = peer.read_exactly(16, SOON);
    assert_eq!(fed, Ok((0..16).collect()), "the feed was cut");
    // Control: with the feed over the same parked read is timed out.
    assert_eq!(told.recv_timeout(GRACE), Ok(Err(Some(CloseReason::Timeout(Clock::Read)))));
}

/// A handler at work four times as long as the clock is busy, not silent.
#[test]
fn a_busy_handler_is_never_timed_out() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(clocks(HALF, HALF));
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(_) = connection.read().await? else { return Ok(()) };
            time::sleep(4 * HALF).await;
            connection.send_all(b"slow-but-here").await
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(peer.read_to_end(SOON), (b"slow-but-here".to_vec(), Ending::Eof));
    assert_eq!(server.stats().timeouts, 0);
}

/// Guards nest, hold the clock while any lives, and it counts anew from the last one's end.
#[test]
fn suspending_the_read_clock_nests() {
    let case = Case::start();
    let (tell, told) = channel();
    let server = Server::start(&case, |b| {
        b.config(clocks(HALF, Duration::ZERO));
        b.listen(loopback(), move |mut connection: Connection| {
            let tell = tell.clone();
            async move {
                let Some(_) = connection.read().await? else { return Ok(()) };
                let (outer, inner) = (connection.suspend_read_timeout(), connection.suspend_read_timeout());
                drop(inner);
                // Parked three times as long as the clock allows.
                let held = connection.read().await?.map(|data| data.to_vec());
                drop(outer);
                let after = which(connection.read().await);
                let _ = tell.send((held, after));
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"1").unwrap();
    // sleep: the silence is the stimulus.
    std::thread::sleep(3 * HALF);
    assert_eq!(server.stats().timeouts, 0, "timed out although one guard lives");
    peer.send(b"2").unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok((Some(b"2".to_vec()), Some(Clock::Read))));
}

/// TMO-06: letting go sends what was flushed, and FIN.
#[test]
fn letting_go_sends_fin_at_once() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(clocks(Duration::ZERO, Duration::ZERO));
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(_) = connection.read().await? else { return Ok(()) };
            connection.send_all(b"bye").await
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(peer.read_to_end(Duration::from_secs(2)), (b"bye".to_vec(), Ending::Eof));
}

/// TMO-07: the socket of a connection that was let go is really gone at the read timeout, also when the peer never
/// closes: its first write then draws a reset, the second one fails.
#[test]
fn a_peer_that_never_closes_does_not_hold_a_socket() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(clocks(HALF, Duration::ZERO));
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(_) = connection.read().await? else { return Ok(()) };
            io::Result::Ok(())
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(peer.read(&mut [0; 8], SOON), Ok(0), "the FIN of letting go");
    assert!(wait_until(HALF, || server.stats().lingering == 1), "vacuity: it does not wait for our FIN");
    assert!(wait_until(GRACE, || server.stats().open == 0), "still open long after the read timeout");
    let _ = peer.send(b"anybody?");
    // The reset has come when the socket says so: no sleep.
    assert!(wait_until(SOON, || peer.send(b"hello?").is_err()), "the server's socket still takes bytes");
    assert_eq!(server.stats().timeouts, 0, "the end of lingering is no timeout");
}

/// Floods its peer; the gate opens when a flush has parked, and the channel says why that flush ended.
fn flooding_server(case: &Case, config: ReactorConfig) -> (Server, Gate, Receiver<Option<CloseReason>>) {
    let (parked, (tell, told)) = (Gate::new(), channel());
    let handler_parked = parked.clone();
    let server = Server::start(case, |b| {
        b.config(config);
        b.listen(loopback(), move |mut connection: Connection| {
            let (parked, tell) = (handler_parked.clone(), tell.clone());
            async move {
                let Some(_) = connection.read().await? else { return Ok(()) };
                let chunk = Bytes::from(pattern(256 * 1024));
                for _ in 0..128 {
                    connection.stage_bytes(chunk.clone())?;
                    if time::timeout(HALF, connection.flush()).await.is_ok() {
                        continue;
                    }
                    parked.open();
                    // It goes on draining; asked again, it waits for the same bytes.
                    let end = connection.flush().await;
                    let reason = end.err().and_then(|error| CloseReason::of(&error));
                    assert_eq!(connection.close_reason(), reason, "the connection says the same as its flush");
                    let _ = tell.send(reason);
                    return Ok(());
                }
                let _ = tell.send(None);
                io::Result::Ok(())
            }
        });
    });
    (server, parked, told)
}

/// TMO-09: a client that takes nothing releases the flush that waits for it.
#[test]
fn a_flush_to_a_stopped_reader_ends_by_the_send_clock() {
    let case = Case::start();
    let (server, parked, told) = flooding_server(&case, clocks(Duration::ZERO, Duration::from_millis(700)));
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"?").unwrap();
    assert!(parked.wait_blocking(SOON), "vacuity: no flush ever parked");
    assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(Some(CloseReason::Timeout(Clock::Send))));
    assert_eq!(peer.ending(SOON), Ending::Reset, "a cut body must not look whole");
}

/// TMO-10, the control: with the clock off the same flush waits.
#[test]
fn a_flush_to_a_stopped_reader_waits_when_the_send_clock_is_off() {
    let case = Case::start();
    let (server, parked, told) = flooding_server(&case, clocks(Duration::ZERO, Duration::ZERO));
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"?").unwrap();
    assert!(parked.wait_blocking(SOON), "vacuity: no flush ever parked");
    assert!(told.recv_timeout(Duration::from_secs(3)).is_err(), "released without a clock");
    peer.reset();
    let end = told.recv_timeout(SOON);
    assert!(matches!(end, Ok(Some(CloseReason::PeerReset { .. }))), "it ended by {end:?}");
    assert_eq!(server.stats().timeouts, 0);
}

/// Letting go with 6 MiB still to be sent: a slow reader gets all of it and then the FIN, although that takes several
/// times the read timeout (ioxide surface 1.5).
#[test]
fn a_slow_reader_gets_everything_after_the_handler_let_go() {
    let case = Case::start();
    let body = pattern(6 << 20);
    let bytes = Bytes::from(body.clone());
    let let_go = Gate::new();
    let handler_gate = let_go.clone();
    let server = Server::start(&case, |b| {
        b.config(clocks(HALF, Duration::from_secs(2)));
        b.listen(loopback(), move |mut connection: Connection| {
            let (bytes, gone) = (bytes.clone(), handler_gate.clone());
            async move {
                let Some(_) = connection.read().await? else { return Ok(()) };
                connection.stage_bytes(bytes)?;
                let rest = connection.try_flush();
                drop(connection);
                if rest.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
                    gone.open();
                }
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect_with(server.addr(), PeerOptions { receive_buffer: Some(64 * 1024) });
    peer.send(b"?").unwrap();
    assert!(let_go.wait_blocking(SOON), "vacuity: nothing was left to send when the handler let go");
    let begun = Instant::now();
    let mut got = Vec::new();
    while got.len() < body.len() {
        let portion = (256 * 1024).min(body.len() - got.len());
        got.extend(peer.read_exactly(portion, SOON).expect("the answer was cut"));
        // sleep: a slow reader is the stimulus (24 portions, 100 ms each).
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(begun.elapsed() > 3 * HALF, "vacuity: it was over before any clock could have run out");
    assert!(got == body, "the bytes differ");
    assert_eq!(peer.ending(SOON), Ending::Eof);
    assert_eq!(server.stats().timeouts, 0);
}

/// A clock never ends a connection twice, and what comes after it reports the same reason.
#[test]
fn after_a_timeout_every_operation_reports_the_same_clock() {
    let case = Case::start();
    let (tell, told) = channel();
    let server = Server::start(&case, |b| {
        b.config(clocks(HALF, HALF));
        b.listen(loopback(), move |mut connection: Connection| {
            let tell = tell.clone();
            async move {
                let Some(_) = connection.read().await? else { return Ok(()) };
                let ends = [
                    which(connection.read().await),
                    which(connection.read().await),
                    which(connection.send_all(b"late").await),
                    which(connection.shutdown().await),
                ];
                let _ = tell.send(ends);
                io::Result::Ok(())
            }
        });
        b.listen(loopback(), echo);
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok([Some(Clock::Read); 4]));
    assert_eq!(peer.ending(SOON), Ending::Eof);
    assert_eq!(server.stats().timeouts, 1);
}
