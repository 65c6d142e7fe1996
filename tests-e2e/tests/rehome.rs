//! Connections that move to another reactor: under traffic, with everything that belongs to them, or not at all.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use epoxide::{
    Builder, Clock, CloseReason, Connection, ListenAddr, ListenOptions, ReactorConfig, ReactorHandle, RehomeError,
};
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, Rng, Server, block_within, echo, handing_over, hold_reactor, loopback, moved_to_workers, pattern,
    poll_once, rounds, stage, wait_until,
};

const SOON: Duration = Duration::from_secs(10);

/// Echoes, and moves on after a few answers, each time to the task of another reactor.
fn wander(
    mut connection: Connection,
    reactors: Arc<Vec<ReactorHandle>>,
    mut rng: Rng,
) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
    Box::pin(async move {
        for left in (0..rng.below(3)).rev() {
            let Some(received) = connection.read_idle().await? else { return Ok(()) };
            stage(&mut connection, &received)?;
            // The last answer may go out behind the move.
            if left > 0 || rng.below(2) == 0 {
                connection.flush().await?;
            }
        }
        let target = &reactors[rng.below(reactors.len() as u64) as usize];
        if let Err(error) = connection.rehome(target).await {
            // The peer's reset, in the middle of a move, ends it as it ends a read.
            return Err(error.into());
        }
        assert_eq!(connection.reactor(), *target);
        connection.flush().await?;
        let next = wander(connection, reactors.clone(), rng);
        target.spawn(next).map_err(|_| io::Error::other("a running reactor takes a task"))?.detach();
        Ok(())
    })
}

/// Random bytes in random pieces, while the connection goes round three reactors: every byte comes back, in order.
#[test]
fn an_echo_that_moves_between_reactors_loses_nothing() {
    const CLIENTS: usize = 4;
    let case = Case::start_rounds();
    let (server, connections) = several(&case, 3, |_| {});
    let reactors = Arc::new(server.runtime().handles());
    let pieces = rounds() * 4;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|client| {
            let mut peer = Peer::connect(server.addr());
            let connection = connections.recv_timeout(SOON).expect("handed over");
            let home = connection.reactor();
            let serve = wander(connection, reactors.clone(), Rng::new(client as u64));
            home.spawn(serve).expect("it runs").detach();
            thread::spawn(move || {
                let mut rng = Rng::new(1000 + client as u64);
                for piece in 0..pieces {
                    let len = 1 + if piece % 16 == 0 { rng.below(200_000) } else { rng.below(400) };
                    let bytes = rng.bytes(len as usize);
                    let (mut sender, sent) = (peer.stream().try_clone().unwrap(), bytes.clone());
                    let whole = if len > 10_000 {
                        let sending = thread::spawn(move || io::Write::write_all(&mut sender, &sent));
                        let whole = peer.read_exactly(bytes.len(), SOON);
                        sending.join().unwrap().unwrap();
                        whole
                    } else {
                        peer.send(&bytes).unwrap();
                        peer.read_exactly(bytes.len(), SOON)
                    };
                    assert!(whole.as_ref() == Ok(&bytes), "client {client}, piece {piece} of {len} bytes");
                }
                assert_eq!(peer.half_close().map(|()| peer.ending(SOON)).unwrap(), Ending::Eof);
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert!(server.wait_quiet());
    let stats = server.stats();
    println!("{} moves", stats.rehomed);
    assert!(stats.rehomed as usize >= rounds(), "vacuity: {} moves", stats.rehomed);
    assert_eq!((stats.handler_errors, stats.adopted), (0, stats.rehomed));
    assert_eq!(stats.accepted + stats.adopted, stats.closed);
}

/// Several reactors whose handlers give their connections to the test.
fn several(case: &Case, reactors: usize, set_up: impl FnOnce(&mut Builder)) -> (Server, Receiver<Connection>) {
    handing_over(case, |b| {
        b.reactors(reactors);
        set_up(b);
    })
}

/// A connected pair, and the reactors: its own first.
fn pair(server: &Server, accepted: &Receiver<Connection>) -> (Peer, Connection, Vec<ReactorHandle>) {
    let peer = Peer::connect(server.addr());
    let connection = accepted.recv_timeout(SOON).expect("handed over");
    let mut reactors = server.runtime().handles();
    reactors.sort_by_key(|reactor| *reactor != connection.reactor());
    (peer, connection, reactors)
}

fn moved(connection: &mut Connection, target: &ReactorHandle) -> Result<(), RehomeError> {
    block_within(connection.rehome(target), SOON).expect("a move ends")
}

fn answer(connection: &mut Connection) -> io::Result<()> {
    block_within(
        async {
            let received = connection.read().await?;
            stage(connection, &received.ok_or_else(|| io::Error::other("the peer's end"))?)?;
            connection.flush().await
        },
        SOON,
    )
    .expect("an answer is given")
}

fn ping(peer: &mut Peer, connection: &mut Connection) {
    peer.send(b"ping").unwrap();
    answer(connection).unwrap();
    assert_eq!(peer.read_exactly(4, SOON), Ok(b"ping".to_vec()));
}

/// A task of the new home parks with its id in the read word: its wakes are its own reactor's, not messages.
#[test]
fn after_a_move_the_new_reactors_task_reads_on_the_fast_path() {
    const TURNS: u64 = 100;
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    moved(&mut connection, &reactors[1]).unwrap();
    reactors[1].spawn(echo(connection)).unwrap().detach();
    let (mut parks, mut before) = (0, [reactors[0].stats(), reactors[1].stats()]);
    for turn in 0..=TURNS {
        if turn == 1 {
            // From here on: the task has come to where it lives.
            before = [reactors[0].stats(), reactors[1].stats()];
        }
        assert!(wait_until(SOON, || reactors[1].stats().parks > parks), "turn {turn} does not park");
        parks = reactors[1].stats().parks;
        peer.send(b"x").unwrap();
        assert_eq!(peer.read_exactly(1, SOON), Ok(b"x".to_vec()));
    }
    let now = [reactors[0].stats(), reactors[1].stats()];
    assert!(now[1].wakes_local - before[1].wakes_local >= TURNS);
    assert_eq!(now[1].wakes_remote - before[1].wakes_remote, 0, "wakes that went through the inbox");
    assert!(now[1].reads - before[1].reads >= TURNS && now[1].sends - before[1].sends >= TURNS);
    assert_eq!((now[0].reads, now[0].events), (before[0].reads, before[0].events), "the old home still sees traffic");
}

/// Reader's state, facts and staged bytes go along; the new body has a new id.
#[test]
fn a_move_keeps_what_the_connection_is() {
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    let facts = |c: &Connection| (c.listener(), c.peer_addr().unwrap(), c.local_addr().unwrap());
    let before = facts(&connection);
    moved(&mut connection, &reactors[0]).unwrap();
    assert_eq!(server.stats().rehomed, 0, "a move to where it is");
    stage(&mut connection, b"staged before").unwrap();
    // There before the move, and read after it: more than one buffer, and the FIN behind it.
    let sent = pattern(100_000);
    peer.send(&sent).unwrap();
    peer.half_close().unwrap();
    moved(&mut connection, &reactors[1]).unwrap();
    assert_eq!(facts(&connection), before);
    assert_eq!((connection.reactor(), connection.staged_len()), (reactors[1].clone(), 13));
    assert!(wait_until(SOON, || reactors[0].stats().open == 0 && reactors[1].stats().open == 1));
    let received = block_within(epoxide_tests_e2e::read_to_end(&mut connection), SOON).unwrap().unwrap();
    assert!(received == sent);
    // The end was told; it is told again after another move.
    moved(&mut connection, &reactors[0]).unwrap();
    assert!(block_within(connection.read(), SOON).unwrap().unwrap().is_none());
    block_within(connection.flush(), SOON).unwrap().unwrap();
    drop(connection);
    assert_eq!(peer.read_to_end(SOON), (b"staged before".to_vec(), Ending::Eof));
}

/// A flush that the peer does not take holds the move until it is out; then the move is made, by any kind of thread.
#[test]
fn a_move_waits_for_the_flush_in_flight() {
    const SIZE: usize = 4 << 20;
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let mut peer = Peer::connect_stalling(server.addr());
    let mut connection = accepted.recv_timeout(SOON).unwrap();
    let target = server.runtime().handles().into_iter().find(|r| *r != connection.reactor()).unwrap();
    connection.stage(&pattern(SIZE)).unwrap();
    let parker = Parker::new();
    {
        let mut flush = pin!(connection.flush());
        assert!(poll_once(flush.as_mut(), &parker).is_pending(), "vacuity: the kernel took everything");
    }
    let reading = {
        let mut rehome = pin!(connection.rehome(&target));
        assert!(poll_once(rehome.as_mut(), &parker).is_pending(), "it moved before the flush was out");
        let reading = thread::spawn(move || (peer.read_exactly(SIZE, SOON), peer));
        block_within(rehome, SOON).expect("the flush ends").unwrap();
        reading
    };
    let (received, peer) = reading.join().unwrap();
    assert!(received.as_ref() == Ok(&pattern(SIZE)));
    assert_eq!(connection.reactor(), target);
    drop((peer, connection));
}

#[test]
fn a_connection_moves_between_polls_of_a_worker() {
    let case = Case::start();
    let server = moved_to_workers(&case, |mut connection| async move {
        let other = epoxide::Runtime::builder().reactors(1).build()?;
        let (home, there) = (connection.reactor(), other.handle());
        for turn in 0_u8..50 {
            connection.rehome(if turn % 2 == 0 { &there } else { &home }).await?;
            let Some(received) = connection.read().await? else { return Ok(()) };
            stage(&mut connection, &received)?;
            connection.flush().await?;
        }
        assert_eq!(connection.reactor(), home);
        drop(connection);
        // A runtime ends by blocking: not here.
        thread::spawn(move || drop(other));
        Ok(())
    });
    let mut peer = Peer::connect(server.addr());
    for turn in 0_u8..50 {
        peer.send(&[turn]).unwrap();
        assert_eq!(peer.read_exactly(1, SOON), Ok(vec![turn]));
    }
    assert_eq!(peer.ending(SOON), Ending::Eof);
    assert_eq!(server.reactor().workers().report().panics, 0);
}

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
            Err(RehomeError::Ended(CloseReason::Aborted)) => {}
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

/// Close handles, deadlines and suspensions of before a move act on the connection where it is.
#[test]
fn what_was_taken_before_a_move_follows_it() {
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |b| {
        b.config(ReactorConfig { read_timeout: Duration::from_millis(300), ..ReactorConfig::default() });
    });
    for how in ["close", "reset", "deadline", "a deadline in the past", "read clock"] {
        let (mut peer, mut connection, reactors) = pair(&server, &accepted);
        let handle = connection.close_handle();
        let suspended = connection.suspend_read_timeout();
        match how {
            "deadline" => connection.set_deadline(Some(Instant::now() + Duration::from_millis(200)), "moving"),
            "a deadline in the past" => connection.set_deadline(Some(Instant::now()), "moving"),
            _ => {}
        }
        if let Err(error) = moved(&mut connection, &reactors[1]) {
            assert!(how == "a deadline in the past" && matches!(error, RehomeError::Ended(_)), "{how}: {error}");
        }
        if how == "read clock" {
            let parker = Parker::new();
            let mut read = pin!(connection.read());
            assert!(poll_once(read.as_mut(), &parker).is_pending());
            // sleep: the absence of a timeout has no signal.
            thread::sleep(Duration::from_millis(900));
            assert_eq!(parker.wakes(), 0, "timed out though the clock was held");
            drop(suspended);
            let error = block_within(read, SOON).expect("the clock runs at the new home").unwrap_err();
            assert_eq!(CloseReason::of(&error), Some(CloseReason::Timeout(Clock::Read)));
            assert_eq!(peer.ending(SOON), Ending::Eof);
            continue;
        }
        match how {
            "close" => handle.close(),
            "reset" => handle.reset(),
            _ => {}
        }
        let error = block_within(connection.read(), SOON).expect("it ends").unwrap_err();
        let (reason, ending) = match how {
            "close" => (CloseReason::Local, Ending::Eof),
            "reset" => (CloseReason::Local, Ending::Reset),
            _ => (CloseReason::Timeout(Clock::Deadline("moving")), Ending::Eof),
        };
        assert_eq!(CloseReason::of(&error), Some(reason), "{how}");
        assert_eq!(peer.ending(SOON), ending, "{how}");
        drop(suspended);
    }
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
            ended = moved(&mut connection, &reactors[(moves + 1) % 2]).is_err();
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

/// The place within `max_connections` goes along, and is free when the connection has gone from its last home.
#[test]
fn a_connection_that_moved_holds_its_place() {
    let case = Case::start();
    let (connections, accepted) = channel();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        let one = ListenOptions { max_connections: Some(1), ..ListenOptions::default() };
        b.listen(ListenAddr::new(loopback()).options(one), move |connection: Connection| {
            let connections = connections.clone();
            async move {
                let _ = connections.send(connection);
            }
        });
    });
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    moved(&mut connection, &reactors[1]).unwrap();
    assert!(wait_until(SOON, || reactors[0].stats().open == 0));
    let _second = Peer::connect(server.addr());
    assert!(wait_until(SOON, || server.stats().accept_limited > 0), "a second one was accepted");
    ping(&mut peer, &mut connection);
    drop((peer, connection));
    drop(accepted.recv_timeout(SOON).expect("the place is free again"));
}

/// One future, polled by hand between other things: the waker it wakes is the one of its last poll.
#[test]
fn a_move_wakes_whoever_polled_it_last() {
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let (_peer, mut connection, reactors) = pair(&server, &accepted);
    let held = hold_reactor(&reactors[1]);
    let (first, last) = (Parker::new(), Parker::new());
    let mut rehome = pin!(connection.rehome(&reactors[1]));
    assert!(poll_once(rehome.as_mut(), &first).is_pending());
    assert!(poll_once(rehome.as_mut(), &last).is_pending());
    drop(held);
    assert!(last.park_past(0, Instant::now() + SOON), "the last waker was never woken");
    let waker = std::task::Waker::noop();
    assert!(matches!(rehome.as_mut().poll(&mut Context::from_waker(waker)), Poll::Ready(Ok(()))));
    assert_eq!(first.wakes(), 0);
}
