//! The send clock measures acknowledged bytes: a slow steady reader lives, a stopped one dies, a trickler dies by
//! `min_send_rate`. One file of its own: its tests take seconds each by their nature.
//!
//! `EPOXIDE_FULL=1` sends the whole 4 MiB at 64 KiB/s (64 s) instead of 768 KiB at the same rate: the shape is the
//! same, a flush that stays parked for many times `send_timeout`.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epoxide::{Clock, CloseReason, Connection, ReactorConfig};
use epoxide_tests_e2e::{Case, Ending, Peer, PeerOptions, Server, loopback, pattern};

const SOON: Duration = Duration::from_secs(10);

/// How the one flush of a connection went.
#[derive(Debug, PartialEq)]
struct Told {
    reason: Option<CloseReason>,
    took: Duration,
}

/// Sends `body` to whoever asks, through a kernel buffer of about this size. The next writable edge comes when a third
/// of it has drained: with a large one that is seconds for a slow reader, with a small one the flush waits to the end.
fn body_server(case: &Case, config: ReactorConfig, kernel: usize, body: &[u8]) -> (Server, Receiver<Told>) {
    let (tell, told) = channel();
    let body = Bytes::copy_from_slice(body);
    let server = Server::start(case, |b| {
        b.config(config);
        b.listen(loopback(), move |mut connection: Connection| {
            let (tell, body) = (tell.clone(), body.clone());
            async move {
                connection.set_send_buffer_size(kernel)?;
                let Some(_) = connection.read().await? else { return Ok(()) };
                let begun = Instant::now();
                connection.stage_bytes(body)?;
                let end = connection.flush().await;
                let reason = end.as_ref().err().and_then(CloseReason::of);
                assert_eq!(end.is_err(), reason.is_some(), "an error without a reason: {end:?}");
                let _ = tell.send(Told { reason, took: begun.elapsed() });
                io::Result::Ok(())
            }
        });
    });
    (server, told)
}

/// Reads `total` bytes in portions, each at its time: `rate` bytes a second. Fewer come back when it was cut.
fn read_at(peer: &mut Peer, total: usize, portion: usize, rate: usize) -> (Vec<u8>, Option<Ending>) {
    let begun = Instant::now();
    let mut got = Vec::with_capacity(total);
    while got.len() < total {
        match peer.read_exactly(portion.min(total - got.len()), SOON) {
            Ok(bytes) => got.extend(bytes),
            Err(ending) => return (got, Some(ending)),
        }
        let due = begun + Duration::from_secs_f64(got.len() as f64 / rate as f64);
        // sleep: a reader with a pace is the stimulus.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    (got, None)
}

fn slow_peer(server: &Server) -> Peer {
    let mut peer = Peer::connect_with(server.addr(), PeerOptions { receive_buffer: Some(32 * 1024) });
    peer.send(b"?").expect("the server takes a request");
    peer
}

/// The steady reader takes 64 KiB/s of a body and needs many times `send_timeout` for it; it gets everything, although
/// more than `send_timeout` passes between two sends: acknowledged bytes are the progress, not sends.
#[test]
fn a_steady_slow_reader_outlives_the_send_clock() {
    let case = Case::start();
    let full = std::env::var_os("EPOXIDE_FULL").is_some();
    let body = pattern(if full { 4 << 20 } else { 768 << 10 });
    let limit = Duration::from_secs(1);
    let config = ReactorConfig { send_timeout: limit, read_timeout: limit, ..ReactorConfig::default() };
    let (server, told) = body_server(&case, config, 208 * 1024, &body);
    let mut peer = slow_peer(&server);
    let (got, cut) = read_at(&mut peer, body.len(), 16 * 1024, 64 * 1024);
    assert_eq!((got.len(), cut), (body.len(), None), "the steady reader was cut");
    assert!(got == body, "the bytes differ");
    assert_eq!(peer.ending(SOON), Ending::Eof);
    let told = told.recv_timeout(SOON).unwrap();
    assert_eq!(told.reason, None);
    assert!(told.took > 3 * limit, "vacuity: the flush waited {:?} only", told.took);
    assert_eq!(server.stats().timeouts, 0);
}

/// A reader that stops is gone in about `send_timeout`, with a reset; what it had read before does not help it.
#[test]
fn a_reader_that_stops_is_reset_by_the_send_clock() {
    let case = Case::start();
    let body = pattern(4 << 20);
    let config = ReactorConfig { send_timeout: Duration::from_secs(1), ..ReactorConfig::default() };
    let (server, told) = body_server(&case, config, 208 * 1024, &body);
    let mut peer = slow_peer(&server);
    let (got, cut) = read_at(&mut peer, 64 * 1024, 16 * 1024, 64 * 1024);
    assert_eq!((got.len(), cut), (64 * 1024, None));
    let stopped = Instant::now();
    let told = told.recv_timeout(SOON).expect("a stopped reader holds its connection");
    assert_eq!(told.reason, Some(CloseReason::Timeout(Clock::Send)));
    assert!(stopped.elapsed() < Duration::from_secs(4), "it took {:?}", stopped.elapsed());
    assert_eq!(peer.ending(SOON), Ending::Reset, "a cut body must not look whole");
    assert_eq!(server.stats().timeouts, 1);
}

/// A trickler makes progress all the time, so only the rate can end it; one just above the rate lives. The trickler's kernel
/// acknowledges 16 to 48 KiB at a time, every 2 to 6 s, and then it is judged.
#[test]
fn a_trickler_dies_by_the_send_rate_and_one_just_above_it_lives() {
    let case = Case::start();
    let body = pattern(512 << 10);
    let config =
        ReactorConfig { send_timeout: Duration::from_secs(8), min_send_rate: 32 * 1024, ..ReactorConfig::default() };
    let (server, told) = body_server(&case, config, 32 * 1024, &body);
    // The control reads beside the trickler, at one and a half times the rate: 10 s, two windows.
    let mut steady = slow_peer(&server);
    let control = std::thread::spawn({
        let total = body.len();
        move || (read_at(&mut steady, total, 8 * 1024, 48 * 1024), steady)
    });
    let mut trickler = slow_peer(&server);
    let (got, cut) = read_at(&mut trickler, body.len(), 4 * 1024, 8 * 1024);
    assert_eq!(cut, Some(Ending::Reset), "the trickler got {} of {} bytes", got.len(), body.len());
    assert!(got == body[..got.len()], "what came before the cut differs");
    let ((got, cut), mut steady) = control.join().unwrap();
    assert_eq!((got.len(), cut), (body.len(), None), "the control was cut");
    assert!(got == body);
    assert_eq!(steady.ending(SOON), Ending::Eof);
    let (one, other) = (told.recv_timeout(SOON).unwrap(), told.recv_timeout(SOON).unwrap());
    let (whole, cut) = if one.reason.is_none() { (one, other) } else { (other, one) };
    assert_eq!((whole.reason, cut.reason), (None, Some(CloseReason::Timeout(Clock::SendRate))));
    assert!(whole.took > Duration::from_secs(5), "vacuity: the control's flush saw no whole window");
    assert_eq!(server.stats().timeouts, 1);
}

/// A unix socket's kernel counts some 800 bytes for a message of 16: for seconds it holds more of them than it ever took
/// bytes. A reader that takes 16 KiB/s of such messages lives; once it stops it does not.
#[test]
fn a_steady_reader_of_small_messages_over_a_unix_socket_outlives_the_send_clock() {
    let case = Case::start();
    let path = std::env::temp_dir().join(format!("epoxide-send-clocks-{}", std::process::id()));
    let (tell, told) = channel();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { send_timeout: Duration::from_secs(1), ..ReactorConfig::default() });
        b.listen_unix(&path, move |mut connection: Connection| {
            let tell = tell.clone();
            async move {
                let message = [7; 16];
                let end = loop {
                    if let Err(error) = connection.send_all(&message).await {
                        break CloseReason::of(&error);
                    }
                };
                let _ = tell.send(end);
            }
        });
    });
    let mut reader = UnixStream::connect(&path).unwrap();
    let begun = Instant::now();
    let mut portion = [0; 1024];
    for n in 1..=48 {
        reader.read_exact(&mut portion).expect("the steady reader was cut");
        let due = begun + n * Duration::from_millis(62);
        // sleep: a reader with a pace is the stimulus.
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    assert!(told.try_recv().is_err() && server.stats().timeouts == 0);
    assert!(server.stats().flush_parks > 0, "vacuity: no flush ever waited");
    let stopped = Instant::now();
    assert_eq!(told.recv_timeout(SOON), Ok(Some(CloseReason::Timeout(Clock::Send))));
    assert!(stopped.elapsed() < Duration::from_secs(4), "it took {:?}", stopped.elapsed());
}
