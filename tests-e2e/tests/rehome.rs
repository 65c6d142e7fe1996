//! Connections that move to another reactor: under traffic, with everything that belongs to them.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use epoxide::{Clock, CloseReason, Connection, ListenAddr, ListenOptions, ReactorConfig, ReactorHandle, RehomeError};
use epoxide_tests_e2e::{
    Case, Ending, Parker, Peer, Rng, Server, block_within, echo, hold_reactor, loopback, moved, moved_to_workers, pair,
    pattern, ping, poll_once, rounds, several, stage, wait_until,
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

/// A task of the new home parks with its id in the read word: its wakes are its own reactor's, not messages.
#[test]
fn after_a_move_the_new_reactors_task_reads_on_the_fast_path() {
    const TURNS: u64 = 100;
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    moved(&mut connection, &reactors[1]).unwrap();
    // What it has to do for the move comes before what is counted.
    assert!(wait_until(SOON, || reactors[0].stats().closed == 1), "the old home does not let go");
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

/// Sizes and limits are those of the reactor where it is.
#[test]
fn a_move_changes_the_configuration() {
    let case = Case::start();
    let (server, accepted) = several(&case, 1, |_| {});
    let other = Server::start(&case, |b| {
        b.config(ReactorConfig { recv_buffer_size: 100, max_staged: 1000, ..ReactorConfig::default() });
    });
    let (mut peer, mut connection, _) = pair(&server, &accepted);
    peer.send(&pattern(1000)).unwrap();
    stage(&mut connection, &[1; 10]).unwrap();
    moved(&mut connection, &other.reactor()).unwrap();
    assert_eq!(connection.stage(&[2; 991]).unwrap_err().limit, 1000);
    stage(&mut connection, &[2; 990]).unwrap();
    let first = block_within(connection.read(), SOON).unwrap().unwrap().expect("bytes");
    assert_eq!(&*first, &pattern(100)[..]);
}

/// A writer's share is the new reactor's from its first flush on.
#[test]
fn the_first_flush_after_a_move_yields_as_often_as_its_reactor_says() {
    let case = Case::start();
    let (server, accepted) = several(&case, 1, |_| {});
    let other = Server::start(&case, |b| {
        b.config(ReactorConfig { flush_budget: 4, ..ReactorConfig::default() });
    });
    let (mut peer, mut connection, _) = pair(&server, &accepted);
    moved(&mut connection, &other.reactor()).unwrap();
    let flushed = other.reactor().spawn(async move {
        stage(&mut connection, b"1234")?;
        let mut flush = pin!(connection.flush());
        let yields = std::future::poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx).is_pending())).await;
        flush.await.map(|()| yields)
    });
    let yields = block_within(flushed.unwrap(), SOON).unwrap().unwrap().unwrap();
    assert!(yields, "it went by the budget of the reactor that it left");
    assert_eq!(peer.read_to_end(SOON), (b"1234".to_vec(), Ending::Eof));
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
    // Over two ticks, at each of which a paused listener tries again: what does not happen has no signal.
    assert!(accepted.recv_timeout(Duration::from_millis(700)).is_err(), "a second one was accepted");
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
