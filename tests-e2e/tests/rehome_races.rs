//! Moves that are refused, dropped, or meet the end of either reactor or of the connection.

use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use epoxide::{CloseReason, ReactorConfig, RehomeError};
use epoxide_tests_e2e::{
    Case, Ending, FdLimit, Parker, Rng, Server, block_within, hold_reactor, moved, pair, ping, poll_once, rounds,
    several, wait_until,
};

const SOON: Duration = Duration::from_secs(10);

/// A move that is dropped after any number of polls has not happened.
#[test]
fn a_dropped_move_has_not_happened() {
    let case = Case::start_rounds();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    let parker = Parker::new();
    let (mut pending, mut made) = (0, 0);
    for turn in 0..rounds() {
        {
            let held = (turn % 2 == 0).then(|| hold_reactor(&reactors[1]));
            let mut rehome = pin!(connection.rehome(&reactors[1]));
            let at_once = poll_once(rehome.as_mut(), &parker).is_ready();
            pending += usize::from(!at_once);
            // Dropped before the target has seen it, or at any time after.
            if turn % 4 == 0 {
                drop(held);
                Rng::new(turn as u64).skew(20_000);
            }
            made += usize::from(at_once);
        }
        if connection.reactor() == reactors[1] {
            // The target was quicker than the first poll: a move that was made.
            moved(&mut connection, &reactors[0]).unwrap();
        }
        ping(&mut peer, &mut connection);
    }
    assert!(pending * 2 >= rounds(), "vacuity: {pending} of {} moves were under way", rounds());
    assert_eq!(server.stats().rehomed, 2 * made as u64, "a dropped move was made");
    assert!(wait_until(SOON, || reactors[1].stats().open == 0), "the target keeps what never came");
    moved(&mut connection, &reactors[1]).unwrap();
    ping(&mut peer, &mut connection);
}

/// The target refuses: stopped before, or while the move waits for it. The connection stays and works.
#[test]
fn a_target_that_stops_leaves_the_connection_where_it_was() {
    let case = Case::start();
    let (server, accepted) = several(&case, 1, |_| {});
    let other = Server::start(&case, |_| {});
    let (mut peer, mut connection, _) = pair(&server, &accepted);
    let (home, target) = (connection.reactor(), other.reactor());
    let held = hold_reactor(&target);
    {
        let mut rehome = pin!(connection.rehome(&target));
        assert!(poll_once(rehome.as_mut(), &Parker::new()).is_pending());
        target.stop();
        drop(held);
        assert!(matches!(block_within(rehome, SOON), Some(Err(RehomeError::Stopped))));
    }
    assert_eq!(connection.reactor(), home);
    ping(&mut peer, &mut connection);
    other.stop(Duration::ZERO).unwrap();
    let error = moved(&mut connection, &target).unwrap_err();
    assert!(matches!(error, RehomeError::Stopped), "{error}");
    assert_eq!(io::Error::from(error).kind(), io::ErrorKind::ConnectionAborted);
    ping(&mut peer, &mut connection);
}

/// A full target refuses too.
#[test]
fn a_full_target_leaves_the_connection_where_it_was() {
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |b| {
        b.config(ReactorConfig { max_posts: 1, ..ReactorConfig::default() });
    });
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    let held = hold_reactor(&reactors[1]);
    let waiting = reactors[1].run_here(|| ()).unwrap();
    assert!(matches!(moved(&mut connection, &reactors[1]), Err(RehomeError::Full)));
    drop(held);
    block_within(waiting, SOON).unwrap().unwrap();
    ping(&mut peer, &mut connection);
    moved(&mut connection, &reactors[1]).unwrap();
    ping(&mut peer, &mut connection);
}

/// For a moment a move takes a descriptor more.
#[test]
fn a_move_without_a_descriptor_leaves_the_connection_where_it_was() {
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    ping(&mut peer, &mut connection);
    let limit = FdLimit::lower_to_free(1);
    let last = std::fs::File::open("/dev/null").expect("one is left");
    let refused = moved(&mut connection, &reactors[1]);
    drop((last, limit));
    let Err(RehomeError::Io(error)) = refused else { panic!("{refused:?}") };
    assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
    assert!(connection.reactor() == reactors[0]);
    ping(&mut peer, &mut connection);
    // Nothing of the attempt is left in the way of the next one.
    moved(&mut connection, &reactors[1]).unwrap();
    ping(&mut peer, &mut connection);
    assert_eq!(server.stats().rehomed, 1);
}

/// Stops and drains of both homes at any moment of a move: the connection is whole at one of them, or was cut with the
/// reactor that it was at; it is never at neither.
#[test]
fn stops_and_drains_of_either_home_race_a_move() {
    let case = Case::start_rounds();
    let (server, accepted) = several(&case, 1, |_| {});
    let home = server.reactor();
    let (mut came, mut stayed, mut cut) = (0, 0, 0);
    for turn in 0..rounds() {
        let other = Server::start(&case, |_| {});
        let (mut peer, mut connection, _) = pair(&server, &accepted);
        let target = other.reactor();
        // Odd turns: the one that stops is the old home.
        let (from, to) = if turn % 2 == 0 { (home.clone(), target.clone()) } else { (target.clone(), home.clone()) };
        if turn % 2 == 1 {
            moved(&mut connection, &target).unwrap();
        }
        let stopping = thread::spawn(move || {
            Rng::new(turn as u64).skew(30_000);
            match turn % 4 {
                0 | 1 => target.stop(),
                _ => target.drain(Duration::ZERO),
            }
        });
        Rng::new(7 * turn as u64).skew(10_000);
        let result = moved(&mut connection, &to);
        let at = connection.reactor();
        assert!(at == from || at == to);
        stopping.join().unwrap();
        other.stop(Duration::ZERO).unwrap();
        match result {
            Ok(()) => {
                assert_eq!(at, to);
                came += 1;
            }
            Err(RehomeError::Stopped) => {
                assert_eq!(at, from, "turn {turn}: refused and gone");
                stayed += 1;
            }
            Err(RehomeError::Ended(CloseReason::Aborted)) => assert_eq!(at, from, "turn {turn}: ended and gone"),
            Err(other) => panic!("turn {turn}: {other}"),
        }
        if at == home && connection.close_reason().is_none() {
            // Its reactor runs: it must work.
            ping(&mut peer, &mut connection);
        } else {
            assert_eq!(connection.close_reason(), Some(CloseReason::Aborted), "turn {turn}");
            assert_eq!(peer.ending(SOON), Ending::Reset, "turn {turn}: cut, and the peer is not told");
            cut += 1;
        }
        drop(connection);
    }
    println!("{came} came, {stayed} stayed, {cut} were cut");
    assert!(came > 0 && stayed > 0 && cut > 0, "vacuity: {came} came, {stayed} stayed, {cut} were cut");
}

/// The old home stops; what has moved away lives on.
#[test]
fn a_connection_that_moved_outlives_its_first_reactor() {
    let case = Case::start();
    let (server, accepted) = several(&case, 1, |_| {});
    let other = Server::start(&case, |_| {});
    let (mut peer, mut connection, _) = pair(&server, &accepted);
    connection.set_deadline(Some(Instant::now() + Duration::from_secs(3600)), "far");
    moved(&mut connection, &other.reactor()).unwrap();
    assert!(server.stop(Duration::ZERO).is_ok());
    ping(&mut peer, &mut connection);
    drop(connection);
    assert_eq!(peer.ending(SOON), Ending::Eof);
}

/// Close handles race moves: the close is never lost, whichever body it met.
#[test]
fn closes_race_moves() {
    let case = Case::start_rounds();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut before, mut after) = (0, 0);
    for turn in 0..rounds() {
        let (mut peer, mut connection, reactors) = pair(&server, &accepted);
        let handle = connection.close_handle();
        let hard = turn % 2 == 0;
        if turn % 3 == 0 {
            connection.set_deadline(Some(Instant::now() + Duration::from_secs(3600)), "far");
        }
        let closing = thread::spawn(move || {
            Rng::new(turn as u64).skew(40_000);
            if hard { handle.reset() } else { handle.close() }
        });
        let (mut moves, mut ended) = (0, false);
        while !ended && connection.close_reason().is_none() {
            let from = connection.reactor();
            ended = moved(&mut connection, &reactors[(moves + 1) % 2]).is_err();
            assert!(!ended || connection.reactor() == from, "turn {turn}: an error, and it has moved");
            moves += 1;
        }
        before += usize::from(ended);
        after += usize::from(!ended);
        closing.join().unwrap();
        let error = block_within(connection.read(), SOON).expect("the close is lost").unwrap_err();
        assert_eq!(CloseReason::of(&error), Some(CloseReason::Local), "turn {turn}");
        let expected = if hard { Ending::Reset } else { Ending::Eof };
        assert_eq!(peer.ending(SOON), expected, "turn {turn}, {moves} moves");
    }
    println!("{before} closes ended a move, {after} came between two");
    assert!(before > 0 && after > 0, "vacuity: {before} closes ended a move, {after} came between two");
}

/// A reset in the middle of the step from one body to the other: the connection has moved, which is no error, and both
/// reactors still count right.
#[test]
fn a_reset_within_a_move_does_not_take_its_body_away() {
    let case = Case::start_rounds();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut came, mut stayed) = (0, 0);
    for turn in 0..rounds() {
        let (_peer, mut connection, reactors) = pair(&server, &accepted);
        let target = &reactors[1];
        let handle = connection.close_handle();
        let (go, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                while !go.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
                Rng::new(turn as u64).skew(3_000);
                handle.reset();
                gone.store(true, Ordering::Release);
            });
            // Polled once the target is known to have the new body: the next poll is the step.
            let mut rehome = pin!(connection.rehome(target));
            let parker = Parker::new();
            let first = poll_once(rehome.as_mut(), &parker);
            if first.is_pending() {
                parker.park_past(0, Instant::now() + SOON);
            }
            go.store(true, Ordering::Release);
            while turn % 4 == 0 && !gone.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            Rng::new(!(turn as u64)).skew(3_000);
            match first {
                Poll::Ready(result) => result,
                Poll::Pending => block_within(rehome, SOON).expect("a move ends"),
            }
        });
        assert!(gone.load(Ordering::Acquire));
        let moved = result.is_ok();
        assert_eq!(connection.reactor() == *target, moved, "turn {turn}: {result:?}");
        let error = block_within(connection.read(), SOON).expect("the reset is lost").unwrap_err();
        assert_eq!(CloseReason::of(&error), Some(CloseReason::Local), "turn {turn}");
        let at = &reactors[usize::from(moved)];
        assert!(wait_until(SOON, || reactors.iter().map(|r| r.stats().open).sum::<u64>() == 1), "turn {turn}");
        assert_eq!(at.stats().open, 1, "turn {turn}: the body of a connection in use was let go");
        came += usize::from(moved);
        stayed += usize::from(!moved);
        drop(connection);
        assert!(wait_until(SOON, || reactors.iter().all(|reactor| reactor.stats().open == 0)), "turn {turn}");
    }
    println!("{came} came, {stayed} stayed");
    assert!(came > 0 && stayed > 0, "vacuity: {came} came, {stayed} stayed");
}

/// A move that is under way and not polled holds no drain of its target, and is refused by it.
#[test]
fn a_drain_does_not_wait_for_a_connection_that_is_on_its_way() {
    let case = Case::start();
    let (server, accepted) = several(&case, 1, |_| {});
    let other = Server::start(&case, |_| {});
    let (mut peer, mut connection, _) = pair(&server, &accepted);
    let (home, target) = (connection.reactor(), other.reactor());
    let held = hold_reactor(&target);
    let mut rehome = Box::pin(connection.rehome(&target));
    assert!(poll_once(rehome.as_mut(), &Parker::new()).is_pending());
    drop(held);
    assert!(wait_until(SOON, || target.stats().open == 1), "the target has taken note of it");
    let (told, drained) = channel();
    let draining = thread::spawn(move || told.send(other.stop(Duration::from_secs(3600)).unwrap()));
    let report = drained.recv_timeout(SOON).expect("the drain waits for it");
    draining.join().unwrap().unwrap();
    assert!(report.graceful, "{report:?}");
    assert!(matches!(block_within(rehome, SOON), Some(Err(RehomeError::Stopped))));
    assert_eq!(connection.reactor(), home);
    ping(&mut peer, &mut connection);
}

/// A reactor that drains takes no connection in, however long it still has to.
#[test]
fn a_target_that_drains_leaves_the_connection_where_it_was() {
    let case = Case::start();
    let (server, accepted) = several(&case, 1, |_| {});
    let (other, accepted_there) = several(&case, 1, |_| {});
    let (mut peer, mut connection, _) = pair(&server, &accepted);
    // In use: it holds the drain.
    let (mut peer_there, mut connection_there, _) = pair(&other, &accepted_there);
    let (home, target) = (connection.reactor(), other.reactor());
    target.drain(Duration::from_secs(3600));
    let error = moved(&mut connection, &target).unwrap_err();
    assert!(matches!(error, RehomeError::Stopped), "{error}");
    assert_eq!(connection.reactor(), home);
    ping(&mut peer, &mut connection);
    ping(&mut peer_there, &mut connection_there);
    drop(connection_there);
    assert!(other.stop(SOON).unwrap().graceful);
}
