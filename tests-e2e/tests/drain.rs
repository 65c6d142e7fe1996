//! Stopping in good order: what is queued is served, what is idle ends at once, what is busy may finish, and what does
//! not finish is cut at the deadline and counted. Ids in the comments are of the shutdown list.

use std::io;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use epoxide::{Connection, time};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, Server, begin_drain, hold_reactor, loopback, provoke_panic, wait_until,
};

const SOON: Duration = Duration::from_secs(10);
const NEVER: Duration = Duration::from_secs(60);

/// Echoes each portion; idle between them.
async fn echo_idle(mut connection: Connection) -> io::Result<()> {
    while let Some(data) = connection.read_idle().await? {
        connection.stage(&data)?;
        connection.flush().await?;
    }
    Ok(())
}

fn echo_server(case: &Case) -> Server {
    Server::start(case, |b| {
        b.listen(loopback(), echo_idle);
    })
}

/// G1: a client that waits in the accept queue with its request when the drain begins is served.
#[test]
fn a_queued_client_is_served_by_a_drain() {
    let case = Case::start();
    let server = echo_server(&case);
    let held = hold_reactor(&server.reactor());
    let mut peer = Peer::connect(server.addr());
    peer.send(b"request").unwrap();
    let (began, begins) = channel();
    let stopping = thread::spawn(move || {
        began.send(()).unwrap();
        server.stop(SOON).unwrap()
    });
    begins.recv().unwrap();
    // sleep: the stop must be asked for while the reactor is held; nothing tells from outside that it has been.
    thread::sleep(Duration::from_millis(300));
    held.release();
    assert_eq!(peer.read_to_end(SOON), (b"request".to_vec(), Ending::Eof));
    let report = stopping.join().unwrap();
    assert!(report.graceful && report.cut == 0, "{report:?}");
}

/// G3, S5: idle connections end at once, with a FIN.
#[test]
fn idle_connections_do_not_hold_a_drain() {
    let case = Case::start();
    let server = echo_server(&case);
    let mut peers: Vec<Peer> = (0..1000).map(|_| Peer::connect(server.addr())).collect();
    for peer in &mut peers {
        peer.send(b"x").unwrap();
        assert_eq!(peer.read_exactly(1, SOON), Ok(b"x".to_vec()));
    }
    // A client that never sent anything is idle as well.
    let mut silent = Peer::connect(server.addr());
    assert!(wait_until(SOON, || server.stats().open == 1001));
    let report = server.stop(NEVER).unwrap();
    assert!(report.graceful && report.took < SOON, "{report:?}");
    for peer in peers.iter_mut().chain([&mut silent]) {
        assert_eq!(peer.read_to_end(SOON), (Vec::new(), Ending::Eof));
    }
}

/// S1, G5: a request in its handler is answered, the next one on that connection is not, and new clients are refused.
#[test]
fn requests_in_progress_are_answered() {
    let case = Case::start();
    let gate = Gate::new();
    let opens = gate.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let gate = opens.clone();
            async move {
                while let Some(data) = connection.read_idle().await? {
                    gate.wait().await;
                    connection.stage(&data)?;
                    connection.flush().await?;
                }
                Ok::<(), io::Error>(())
            }
        });
    });
    let mut peers: Vec<Peer> = (0..10).map(|_| Peer::connect(server.addr())).collect();
    for peer in &mut peers {
        peer.send(b"first").unwrap();
    }
    assert!(gate.wait_waiting(10, SOON), "every request is in its handler");
    let stopping = begin_drain(server, NEVER);
    for peer in &mut peers {
        peer.send(b"second").unwrap();
    }
    gate.open();
    for peer in &mut peers {
        let (got, _) = peer.read_to_end(SOON);
        assert_eq!(got, b"first", "the answer, and nothing to the second request");
    }
    let report = stopping.join().unwrap();
    assert!(report.graceful, "{report:?}");
}

/// S4, G7: a handler that knows no idle moment is cut at the deadline, not before, and its peer sees a reset.
#[test]
fn a_connection_without_idle_moments_is_cut_at_the_deadline() {
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            while let Some(data) = connection.read().await? {
                connection.stage(&data)?;
                connection.flush().await?;
            }
            Ok::<(), io::Error>(())
        });
    });
    server.abandon_connections();
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    assert_eq!(peer.read_exactly(1, SOON), Ok(b"x".to_vec()));
    let stopping = thread::spawn(move || server.stop(Duration::from_millis(500)).unwrap());
    // Still served while the grace lasts.
    peer.send(b"y").unwrap();
    assert_eq!(peer.read_exactly(1, SOON), Ok(b"y".to_vec()));
    let report = stopping.join().unwrap();
    assert!(!report.graceful && report.cut == 1, "{report:?}");
    assert!(report.took >= Duration::from_millis(500), "not before the deadline: {report:?}");
    assert_eq!(peer.read_to_end(SOON), (Vec::new(), Ending::Reset));
}

/// A long answer watches for the drain beside its work.
#[test]
fn a_long_answer_is_told_of_the_drain() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let _request = connection.read_idle().await?;
            connection.send_all(b"working").await?;
            connection.draining().await;
            connection.send_all(b" done").await
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"go").unwrap();
    assert_eq!(peer.read_exactly(7, SOON), Ok(b"working".to_vec()));
    let report = server.stop(NEVER).unwrap();
    assert!(report.graceful && report.took < SOON, "{report:?}");
    assert_eq!(peer.read_to_end(SOON), (b" done".to_vec(), Ending::Eof));
}

/// S14, G9: stops overlap, and come from inside a handler.
#[test]
fn a_handler_may_stop_its_own_runtime() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen(loopback(), |mut connection: Connection| async move {
            let _word = connection.read_idle().await?;
            connection.reactor().stop();
            connection.reactor().stop();
            connection.send_all(b"stopping").await
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"stop").unwrap();
    // The reactor that was stopped aborts what it still holds: the word, or a reset, but never a hang.
    let (got, ending) = peer.read_to_end(SOON);
    assert!(got == b"stopping" || got.is_empty(), "{got:?}");
    assert!(ending.is_closed(), "{ending:?}");
    let first = server.runtime().shutdown(SOON);
    let second = server.runtime().shutdown(NEVER);
    let (first, second) = server.runtime().block_on(async { (first.await, second.await) });
    assert_eq!((first.cut, second.cut), (second.cut, first.cut));
    assert!(server.stop(SOON).is_ok(), "stopping again is no error");
}

/// S19: a panic during the drain harms nobody else.
#[test]
fn a_panic_during_a_drain_lets_the_others_finish() {
    let case = Case::start();
    let gate = Gate::new();
    let opens = gate.clone();
    let mut server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let gate = opens.clone();
            async move {
                let data = connection.read_idle().await?;
                gate.wait().await;
                if data.as_deref() == Some(b"panic") {
                    provoke_panic("in a handler that drains");
                }
                connection.send_all(b"fine").await
            }
        });
    });
    server.claim_panics(1);
    let mut bad = Peer::connect(server.addr());
    bad.send(b"panic").unwrap();
    let mut good = Peer::connect(server.addr());
    good.send(b"other").unwrap();
    assert!(gate.wait_waiting(2, SOON));
    let stopping = thread::spawn(move || server.stop(NEVER).unwrap());
    gate.open();
    assert_eq!(bad.ending(SOON), Ending::Reset);
    assert_eq!(good.read_to_end(SOON), (b"fine".to_vec(), Ending::Eof));
    stopping.join().unwrap();
}

/// G6: bytes that were accepted from a handler before the drain reach a slow peer whole.
#[test]
fn what_a_handler_sent_reaches_a_slow_peer_before_the_end() {
    const SIZE: usize = 4 << 20;
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let _request = connection.read_idle().await?;
            connection.stage(&vec![7; SIZE])?;
            connection.flush().await?;
            connection.read_idle().await.map(drop)
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"go").unwrap();
    assert!(wait_until(SOON, || server.stats().send_eagain > 0), "the answer really waits for the peer");
    let stopping = thread::spawn(move || server.stop(NEVER).unwrap());
    let (got, ending) = peer.read_to_end(NEVER);
    assert_eq!((got.len(), ending), (SIZE, Ending::Eof));
    assert!(stopping.join().unwrap().graceful);
}

/// A timer that is due only long after the stop does not hold it, and its task is dropped.
#[test]
fn sleeping_tasks_do_not_hold_a_stop() {
    let case = Case::start();
    let server = echo_server(&case);
    let task = server.reactor().spawn(time::sleep(Duration::from_secs(3600))).unwrap();
    let report = server.stop(SOON).unwrap();
    assert!(report.took < SOON);
    assert!(matches!(epoxide::block_on(task), Err(epoxide::JoinError::Stopped)));
}
