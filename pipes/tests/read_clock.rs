//! The read clock under pipes and streams: whichever way one waits, a peer that stays silent ends the connection; a wait
//! that was given up does not count.

mod common;

use common::{SOON, everywhere};
use epoxide::{Clock, CloseReason, Connection, ReactorConfig, time};
use epoxide_pipes::{ByteStream, Duplex};
use epoxide_tests_e2e::{Case, Peer};
use std::io;
use std::sync::mpsc::channel;
use std::time::Duration;

const LIMIT: Duration = Duration::from_millis(400);

fn config() -> ReactorConfig {
    ReactorConfig { read_timeout: LIMIT, ..ReactorConfig::default() }
}

/// Every way to wait, with nothing held and behind a byte that is held.
async fn waits(connection: Connection, way: u8) -> io::Result<()> {
    let mut pipe = Duplex::new(connection);
    if way % 2 == 1 {
        let held = pipe.input.read().await?.buffer.len();
        pipe.input.advance_to(0, held);
    }
    match way / 2 {
        0 => drop(pipe.input.read().await?),
        1 => drop(pipe.input.read_idle().await?),
        2 => drop(pipe.input.read_at_least(10).await?),
        3 => drop(pipe.input.read_until(b"\n", 100, 10 * SOON).await?),
        _ => drop(ByteStream::from(pipe).read(&mut [0; 4096]).await?),
    }
    Ok(())
}

#[test]
fn a_silent_peer_is_timed_out_however_one_waits() {
    let case = Case::start();
    let (tell, told) = channel();
    let server = everywhere(&case, config(), move |mut connection: Connection| {
        let tell = tell.clone();
        async move {
            let way = connection.read().await?.map_or(0, |data| data[0]);
            connection.send_all(b"!").await?;
            let _ = tell.send((way, waits(connection, way).await));
            Ok(())
        }
    });
    for addr in server.addrs() {
        // A stream with a byte held reads it: no wait.
        for way in 0..9 {
            let mut peer = Peer::connect(*addr);
            peer.send(&[way]).unwrap();
            assert_eq!(peer.read_exactly(1, SOON).as_deref(), Ok(&b"!"[..]));
            if way % 2 == 1 {
                peer.send(b"x").unwrap();
            }
            let (heard, result) = told.recv_timeout(SOON).expect("it ends");
            assert_eq!(heard, way);
            let reason = result.err().and_then(|error| CloseReason::of(&error));
            assert_eq!(reason, Some(CloseReason::Timeout(Clock::Read)), "way {way}");
        }
    }
}

#[test]
fn a_wait_that_was_given_up_does_not_count() {
    let case = Case::start();
    let server = everywhere(&case, config(), |connection: Connection| async move {
        let mut pipe = Duplex::new(connection);
        for _ in 0..2 {
            assert!(time::timeout(LIMIT / 8, pipe.input.read()).await.is_err());
            // sleep: the work of a busy handler, longer than the limit.
            time::sleep(2 * LIMIT).await;
        }
        pipe.output.stage(b"ready")?;
        let _ = pipe.output.flush().await?;
        let n = pipe.input.read().await?.buffer.len();
        pipe.input.advance(n);
        pipe.output.stage(b"done")?;
        let _ = pipe.output.flush().await?;
        Ok(())
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        assert_eq!(peer.read_exactly(5, SOON).as_deref(), Ok(&b"ready"[..]));
        peer.send(b"go").unwrap();
        assert_eq!(peer.read_exactly(4, SOON).as_deref(), Ok(&b"done"[..]));
    }
}
