//! A flush that is parked when its connection ends: its bytes go to nobody else.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, loopback, stage, wait_until};

const BODY: usize = 8000;
const FIRST_MARKER: u8 = 0xA1;

/// Every newline is answered with 8000 times this connection's own marker, claimed on its first
/// data. `answered` counts the flushes that came back.
fn marker_server(case: &Case, answered: &Arc<AtomicUsize>) -> Server {
    let next = Arc::new(AtomicU8::new(FIRST_MARKER));
    let answered = Arc::clone(answered);
    Server::start(case, |b| {
        let no_clocks = Duration::ZERO;
        b.config(ReactorConfig { read_timeout: no_clocks, send_timeout: no_clocks, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let (next, answered) = (Arc::clone(&next), Arc::clone(&answered));
            async move {
                let mut marker = None;
                while let Some(requests) = connection.read().await? {
                    let marker = *marker.get_or_insert_with(|| next.fetch_add(1, Ordering::SeqCst));
                    for _ in requests.iter().filter(|b| **b == b'\n') {
                        stage(&mut connection, &[marker; BODY])?;
                        connection.flush().await?;
                        answered.fetch_add(1, Ordering::SeqCst);
                    }
                }
                io::Result::Ok(())
            }
        });
    })
}

/// Waits until the stalling client's flush stands still, short of all 400.
fn wait_parked(answered: &AtomicUsize) -> usize {
    let mut last = usize::MAX;
    let still = wait_until(Duration::from_secs(10), || {
        let now = answered.load(Ordering::SeqCst);
        // sleep: standing still is seen by looking twice.
        std::thread::sleep(Duration::from_millis(100));
        let stands = now > 0 && now == last;
        last = now;
        stands
    });
    assert!(still && last < 400, "vacuity: the send never parked ({last} of 400 answered)");
    last
}

fn assert_served_with_own_bytes(server: &Server) {
    let mut other = Peer::connect(server.addr());
    other.send(b"\n\n\n").unwrap();
    let received = other.read_exactly(3 * BODY, Duration::from_secs(10)).unwrap();
    let foreign = received.iter().filter(|b| **b != received[0]).count();
    assert_eq!(foreign, 0, "bytes of another connection");
    assert!(received[0] > FIRST_MARKER, "it got the stalled connection's bytes");
}

/// SND-01, translated: the reactor's end of the stalled connection comes by a reset, several times
/// over, and what its flush had in hand must not show up at anybody else.
#[test]
fn a_parked_flush_that_is_reset_leaks_no_bytes_to_the_next_connection() {
    let case = Case::start();
    for _ in 0..5 {
        let answered = Arc::new(AtomicUsize::new(0));
        let server = marker_server(&case, &answered);
        let mut stalled = Peer::connect_stalling(server.addr());
        stalled.send(&[b'\n'; 400]).unwrap();
        wait_parked(&answered);
        assert_served_with_own_bytes(&server);
        stalled.reset();
        assert_served_with_own_bytes(&server);
        assert!(server.wait_quiet(), "the reset connection is not let go");
    }
}

/// The half-close of SND-01: it ends the peer's writing only, so every response still arrives, and
/// nothing but that connection's own bytes.
#[test]
fn a_half_close_during_a_parked_flush_loses_no_response() {
    let case = Case::start();
    let answered = Arc::new(AtomicUsize::new(0));
    let server = marker_server(&case, &answered);
    let mut stalled = Peer::connect_stalling(server.addr());
    stalled.send(&[b'\n'; 400]).unwrap();
    wait_parked(&answered);
    stalled.half_close().unwrap();
    assert_served_with_own_bytes(&server);
    let (received, ending) = stalled.read_to_end(Duration::from_secs(30));
    assert_eq!((received.len(), ending), (400 * BODY, Ending::Eof));
    assert!(received.iter().all(|b| *b == FIRST_MARKER), "bytes of another connection");
}
