//! `set_deadline`: fires once, can be moved and cleared, from any thread, and says its own name.

use std::io::{self, ErrorKind};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epoxide::{Clock, CloseReason, Connection, ReactorConfig, ReadHalf, WriteHalf, time};
use epoxide_tests_e2e::{Case, Ending, Peer, block_within, hold_reactor, pattern, telling, wait_until};

const SOON: Duration = Duration::from_secs(10);
const SHORT: Duration = Duration::from_millis(300);

/// The process-wide timer thread stays once it runs: it must be part of the baseline that a case compares with.
fn case_with_timer_thread() -> Case {
    assert!(block_within(time::sleep(Duration::from_millis(1)), SOON).is_some());
    Case::start()
}

fn no_clocks() -> ReactorConfig {
    ReactorConfig { read_timeout: Duration::ZERO, send_timeout: Duration::ZERO, ..ReactorConfig::default() }
}

fn reason<T>(result: io::Result<T>) -> Option<CloseReason> {
    result.err().and_then(|error| CloseReason::of(&error))
}

const fn named(what: &'static str) -> Option<CloseReason> {
    Some(CloseReason::Timeout(Clock::Deadline(what)))
}

#[test]
fn a_deadline_ends_a_parked_read_once_and_by_its_name() {
    let case = Case::start();
    let (server, told) = telling(&case, no_clocks(), |mut connection, tell| async move {
        let Some(_) = connection.read().await? else { return Ok(()) };
        let at = Instant::now() + SHORT;
        connection.set_deadline(Some(at), "the second line");
        let first = connection.read().await;
        let early = Instant::now() < at;
        let text = first.as_ref().map_or_else(ToString::to_string, |_| String::new());
        let kind = first.as_ref().map_or_else(|error| Some(error.kind()), |_| None);
        let again = reason(connection.read().await);
        let _ = tell.send((early, kind, text, reason(first), again));
        Ok(())
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    let (early, kind, text, first, again) = told.recv_timeout(SOON).unwrap();
    assert!(!early, "before its time");
    assert_eq!((kind, first, again), (Some(ErrorKind::TimedOut), named("the second line"), named("the second line")));
    assert!(text.contains("the second line"), "the error does not say which deadline: {text}");
    assert_eq!(peer.ending(SOON), Ending::Eof, "nothing was under way: a clean end");
    assert_eq!(server.stats().timeouts, 1, "it fires once");
}

/// Activity does not move a deadline: that is what makes it the right clock against a client that drips.
#[test]
fn activity_does_not_move_a_deadline() {
    let case = Case::start();
    let (server, told) = telling(&case, no_clocks(), |mut connection, tell| async move {
        connection.set_deadline(Some(Instant::now() + SHORT), "drip");
        let mut reads = 0;
        let end = loop {
            match connection.read().await {
                Ok(Some(_)) => reads += 1,
                Ok(None) => break None,
                Err(error) => break CloseReason::of(&error),
            }
        };
        let _ = tell.send((reads, end));
        Ok(())
    });
    let mut peer = Peer::connect(server.addr());
    // One byte every 20 ms until the server has had enough.
    let cut = wait_until(SOON, || peer.drip(b".", 1, Duration::from_millis(20)).is_err());
    assert!(cut, "the drip goes on");
    let (reads, end) = told.recv_timeout(SOON).unwrap();
    assert_eq!(end, named("drip"));
    assert!(reads > 1, "vacuity: nothing was read before the deadline");
}

#[test]
fn a_deadline_can_be_moved_both_ways_and_cleared() {
    let case = Case::start();
    let (server, told) = telling(&case, no_clocks(), |mut connection, tell| async move {
        // Later, then cleared: silence of three times the first deadline is survived.
        connection.set_deadline(Some(Instant::now() + SHORT), "first");
        connection.set_deadline(Some(Instant::now() + 100 * SHORT), "moved away");
        time::sleep(3 * SHORT).await;
        connection.set_deadline(None, "");
        let _ = tell.send(connection.close_reason());
        let Some(_) = connection.read().await? else { return Ok(()) };
        // Earlier.
        connection.set_deadline(Some(Instant::now() + 1000 * SHORT), "far");
        connection.set_deadline(Some(Instant::now() + SHORT), "near");
        let _ = tell.send(reason(connection.read().await));
        Ok(())
    });
    let mut peer = Peer::connect(server.addr());
    assert_eq!(told.recv_timeout(SOON), Ok(None), "a deadline that was moved and cleared has fired");
    peer.send(b"?").unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(named("near")));
    assert_eq!(server.stats().timeouts, 1);
}

/// One that has passed already, and the farthest one.
#[test]
fn a_deadline_in_the_past_ends_the_connection_at_once() {
    let case = Case::start();
    let (server, told) = telling(&case, no_clocks(), |mut connection, tell| async move {
        let far = Instant::now().checked_add(Duration::from_secs(1 << 40));
        connection.set_deadline(far, "far");
        let Some(_) = connection.read().await? else { return Ok(()) };
        connection.set_deadline(Some(Instant::now()), "now");
        let _ = tell.send((connection.close_reason(), reason(connection.send_all(b"late").await)));
        Ok(())
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok((named("now"), named("now"))));
    assert_eq!(peer.read_to_end(SOON), (Vec::new(), Ending::Eof));
}

/// With output under way the peer sees a reset: what it did not get must not look whole.
#[test]
fn a_deadline_cuts_a_flush_with_a_reset() {
    let case = Case::start();
    let (server, told) = telling(&case, no_clocks(), |mut connection, tell| async move {
        let Some(_) = connection.read().await? else { return Ok(()) };
        connection.stage_bytes(Bytes::from(pattern(8 << 20)))?;
        connection.set_deadline(Some(Instant::now() + SHORT), "answer");
        let _ = tell.send(reason(connection.flush().await));
        Ok(())
    });
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"?").unwrap();
    assert_eq!(told.recv_timeout(SOON), Ok(named("answer")));
    assert_eq!(peer.ending(SOON), Ending::Reset);
}

/// Set, moved and cleared by a thread that is no reactor's, on a connection whose reader is parked on its reactor.
#[test]
fn another_thread_sets_moves_and_clears_a_deadline() {
    let case = case_with_timer_thread();
    let (halves, half) = channel::<WriteHalf>();
    let (server, told) = telling(&case, no_clocks(), move |mut connection, tell| {
        let halves = halves.clone();
        async move {
            let Some(_) = connection.read().await? else { return Ok(()) };
            let (mut read, write): (ReadHalf, WriteHalf) = connection.into_split();
            let _ = halves.send(write);
            let _ = tell.send(reason(read.read().await));
            Ok(())
        }
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"?").unwrap();
    let write = half.recv_timeout(SOON).unwrap();
    write.set_deadline(Some(Instant::now() + SHORT), "cleared in time");
    write.set_deadline(None, "");
    write.set_deadline(Some(Instant::now() + 1000 * SHORT), "moved");
    // Cleared by a thread other than the one that set it.
    let write = std::thread::spawn(move || {
        write.set_deadline(None, "");
        write
    })
    .join()
    .unwrap();
    assert!(told.recv_timeout(3 * SHORT).is_err(), "a cleared deadline has fired");
    let at = Instant::now() + SHORT;
    write.set_deadline(Some(at), "from outside");
    assert_eq!(told.recv_timeout(SOON), Ok(named("from outside")));
    assert!(Instant::now() >= at, "before its time");
    assert_eq!(write.close_reason(), named("from outside"));
    assert_eq!(peer.ending(SOON), Ending::Eof);
    drop(write);
}

/// The same while the reactor stands still: the deadline of another thread does not need it to fire.
#[test]
fn a_deadline_of_another_thread_fires_while_the_reactor_stands_still() {
    let case = case_with_timer_thread();
    let (server, connection) = telling::<Connection, _>(&case, no_clocks(), |connection, connections| async move {
        let _ = connections.send(connection);
        Ok(())
    });
    let mut peer = Peer::connect(server.addr());
    let mut connection = connection.recv_timeout(SOON).unwrap();
    let held = hold_reactor(&server.reactor());
    connection.set_deadline(Some(Instant::now() + SHORT), "no reactor");
    let end = block_within(connection.read(), SOON).expect("the read ends");
    assert_eq!(reason(end), named("no reactor"));
    assert_eq!(peer.ending(SOON), Ending::Eof);
    held.release();
    drop(connection);
}

/// A deadline keeps nothing open, and one that is armed when its connection ends never fires.
#[test]
fn a_deadline_ends_with_its_connection() {
    let case = Case::start();
    let (server, _) = telling::<(), _>(&case, no_clocks(), |mut connection, _| async move {
        connection.set_deadline(Some(Instant::now() + SHORT), "never");
        let Some(_) = connection.read().await? else { return Ok(()) };
        connection.send_all(b"ok").await
    });
    for _ in 0..20 {
        let mut peer = Peer::connect(server.addr());
        peer.send(b"?").unwrap();
        assert_eq!(peer.read_to_end(SOON), (b"ok".to_vec(), Ending::Eof));
    }
    assert!(server.wait_quiet());
    // sleep: the time at which they would have fired.
    std::thread::sleep(2 * SHORT);
    assert_eq!(server.stats().timeouts, 0);
}
