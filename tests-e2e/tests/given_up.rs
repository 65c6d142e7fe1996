//! What was begun and given up: lent space, peeks, drained loops, posts that never ran.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, JoinError, Reactor, ReactorHandle, time};
use epoxide_tests_e2e::*;

const SOON: Duration = Duration::from_secs(10);

/// What `spare` lent and nobody advanced over is not staged.
#[test]
fn lent_bytes_are_not_staged() {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let (tcp, _client) = tcp_pair(SOON);
    let mut conn = Connection::from_std_on(&server.reactor(), tcp).unwrap();
    assert!(wait_until(SOON, || conn.try_flush().is_ok()));
    let _ = conn.spare(100).unwrap();
    let len = conn.staged_len();
    let taken = conn.into_std();
    assert!(len == 0 && taken.is_ok(), "staged_len {len}, into_std {:?}", taken.err().map(|e| e.0));
}

/// A handler that asked for space, had nothing to write, and waits idly, is idle for a drain.
#[test]
fn lent_bytes_do_not_make_an_idle_read_busy() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut c: Connection| async move {
            while let Some(data) = c.read_idle().await? {
                c.send_all(&data).await?;
                let _ = c.spare(100)?;
            }
            Ok::<(), std::io::Error>(())
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    assert_eq!(peer.read_exactly(1, SOON), Ok(b"x".to_vec()));
    let report = server.stop(Duration::from_secs(2)).unwrap();
    assert!(report.cut == 0 && report.took < Duration::from_secs(2), "{report:?}");
}

/// How often the reactor of a `block_on` turns in 300 ms in which nothing happens, after it was told to end.
fn passes_after(end: impl FnOnce(&ReactorHandle)) -> u64 {
    epoxide::block_on(async {
        let here = ReactorHandle::current().unwrap();
        end(&here);
        time::sleep(Duration::from_millis(100)).await;
        let before = here.stats().passes;
        time::sleep(Duration::from_millis(300)).await;
        here.stats().passes - before
    })
}

/// A reactor of `block_on` that was asked to drain does not spin until its future is done.
#[test]
fn a_drained_block_on_does_not_spin() {
    let _case = Case::start();
    let passes = passes_after(|here| here.drain(Duration::ZERO));
    assert!(passes < 100, "{passes} passes while nothing happened");
}

/// The same for stop.
#[test]
fn a_stopped_block_on_does_not_spin() {
    let _case = Case::start();
    let passes = passes_after(ReactorHandle::stop);
    assert!(passes < 100, "{passes} passes while nothing happened");
}

/// "Ready once the reactor has begun to drain (or has ended)": also one that never ran.
#[test]
fn a_reactor_that_never_runs_ends_waits_for_its_drain() {
    let _case = Case::start();
    let reactor = Reactor::builder().build().unwrap();
    let (tcp, _client) = tcp_pair(SOON);
    let conn = Connection::from_std_on(&reactor.handle(), tcp).unwrap();
    let mut draining = Box::pin(conn.draining());
    let parker = Parker::new();
    assert!(poll_once(draining.as_mut(), &parker).is_pending());
    drop(reactor);
    assert!(block_within_woken(draining, &parker), "draining() is never woken");
}

fn block_within_woken<F: Future>(_future: F, parker: &std::sync::Arc<Parker>) -> bool {
    parker.park_past(0, Instant::now() + Duration::from_secs(3))
}

/// A socket that was taken out is not ended by the deadline of the connection that it was.
#[test]
fn a_deadline_does_not_touch_a_socket_that_was_taken_out() {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let (tcp, mut client) = tcp_pair(SOON);
    let conn = Connection::from_std_on(&server.reactor(), tcp).unwrap();
    assert!(wait_until(SOON, || server.stats().open == 1));
    // sleep: the span in which nothing may happen, or is measured.
    thread::sleep(Duration::from_millis(50));
    let held = hold_reactor(&server.reactor());
    conn.set_deadline(Some(Instant::now() + Duration::from_millis(100)), "mine");
    let mut taken = conn.into_std().unwrap();
    // sleep: the span in which nothing may happen, or is measured.
    thread::sleep(Duration::from_millis(300));
    let wrote = taken.write_all(b"ping");
    held.release();
    wrote.expect("the socket is ours");
    let mut got = [0; 4];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"ping");
}

/// A connection of the first of two reactors that has sent the first half of an answer, and its client.
fn half_sent(case: &Case) -> (Server, Vec<ReactorHandle>, Connection, TcpStream) {
    let mut server = Server::start(case, |b| {
        b.reactors(2);
    });
    server.abandon_connections();
    let handles = server.runtime().handles();
    let (tcp, client) = tcp_pair(SOON);
    let mut conn = Connection::from_std_on(&handles[0], tcp).unwrap();
    conn.stage(b"half of a bo").unwrap();
    assert!(wait_until(SOON, || conn.try_flush().is_ok()));
    (server, handles, conn, client)
}

/// A connection in a task that its new reactor never began is reset like one in a task that it had begun.
#[test]
fn a_connection_in_a_post_that_never_ran_is_reset() {
    let case = Case::start();
    let (_server, handles, mut conn, mut client) = half_sent(&case);
    // Held inside a task, not in a post: the stop is followed before the inbox is read again.
    let (here, arrived) = channel();
    let (release, released) = channel::<()>();
    handles[1]
        .spawn(async move {
            let _ = here.send(());
            let _ = released.recv_timeout(SOON);
        })
        .unwrap()
        .detach();
    arrived.recv_timeout(SOON).unwrap();
    let handle = handles[1]
        .spawn(async move {
            conn.send_all(b"dy").await.unwrap();
        })
        .unwrap();
    handles[1].stop();
    drop(release);
    assert!(block_within(handle, SOON).expect("settles").is_err());
    let mut got = Vec::new();
    let end = client.read_to_end(&mut got);
    assert!(end.is_err(), "a cut body looks whole: {:?}", String::from_utf8_lossy(&got));
}

/// Positive control of the one above: the task had begun.
#[test]
fn a_connection_in_a_task_that_was_stopped_is_reset() {
    let case = Case::start();
    let (_server, handles, mut conn, mut client) = half_sent(&case);
    let gate = Gate::new();
    let waits = gate.clone();
    let handle = handles[1]
        .spawn(async move {
            waits.wait().await;
            conn.send_all(b"dy").await.unwrap();
        })
        .unwrap();
    assert!(gate.wait_waiting(1, SOON));
    handles[1].stop();
    assert!(block_within(handle, SOON).expect("settles").is_err());
    let mut got = Vec::new();
    assert!(client.read_to_end(&mut got).is_err());
}

/// A peek takes nothing: the first request is still answered by a drain.
#[test]
fn a_peek_before_the_first_idle_read_does_not_lose_the_first_request() {
    let case = Case::start();
    let here = Gate::new();
    let h = here.clone();
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |mut c: Connection| {
            let h = h.clone();
            async move {
                let mut first = [0; 1];
                assert_eq!(c.peek(&mut first).await?, 1);
                h.open();
                c.draining().await;
                while let Some(data) = c.read_idle().await? {
                    c.send_all(&data).await?;
                }
                Ok::<(), std::io::Error>(())
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"request").unwrap();
    assert!(here.wait_blocking(SOON));
    let stopping = thread::spawn(move || server.stop(SOON).unwrap());
    let got = peer.read_to_end(SOON);
    stopping.join().unwrap();
    assert_eq!(got, (b"request".to_vec(), Ending::Eof));
}

/// A pool that takes nothing more drops what it was given through `spawn`, as nobody gets it back: what it holds must not
/// look whole to its peer.
#[test]
fn a_connection_that_a_pool_refuses_is_reset() {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let stopped = Server::start(&case, |b| {
        b.workers(WorkersConfig { max_blocking: 1, max_overflow: 0, ..WorkersConfig::default() });
    });
    let reactor = stopped.reactor();
    let half_sent = || {
        let (tcp, client) = tcp_pair(SOON);
        let mut conn = Connection::from_std_on(&server.reactor(), tcp).unwrap();
        conn.stage(b"half of a bo").unwrap();
        assert!(wait_until(SOON, || conn.try_flush().is_ok()));
        (conn, client)
    };
    let is_reset = |mut client: std::net::TcpStream| {
        let error = client.read_to_end(&mut Vec::new()).expect_err("a cut body looks whole");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    };
    let entered = reactor.enter();
    // Full: one job runs, none may wait.
    let (release, released) = channel::<()>();
    let busy = workers::spawn_blocking(move || {
        let _ = released.recv_timeout(SOON);
    });
    let (conn, client) = half_sent();
    let refused = block_within(workers::spawn_blocking(move || drop(conn)), SOON).unwrap();
    assert!(matches!(refused, Err(JoinError::PoolFull)), "{refused:?}");
    is_reset(client);
    drop(release);
    assert!(block_within(busy, SOON).unwrap().is_ok());
    // Stopped.
    stopped.stop(Duration::ZERO).unwrap();
    let (conn, client) = half_sent();
    let refused = block_within(workers::spawn(async move { drop(conn) }), SOON).unwrap();
    assert!(matches!(refused, Err(JoinError::Stopped)), "{refused:?}");
    is_reset(client);
    drop(entered);
}

/// What a task gives to somebody who was cut meanwhile is cut as well, whichever of the two ends first.
#[test]
fn a_connection_that_comes_back_to_nobody_is_reset() {
    let case = Case::start();
    for by_stop in [false, true] {
        for is_done_before in [false, true] {
            let (_server, handles, conn, mut client) = half_sent(&case);
            let (gate, held) = (Gate::new(), Gate::new());
            let waits = gate.clone();
            let step = async move {
                waits.wait().await;
                conn
            };
            let step = handles[0].workers().spawn(step).expect("the pool runs");
            if is_done_before {
                gate.open();
                assert!(wait_until(SOON, || step.is_finished()));
            }
            let waits = held.clone();
            let waiting = async move {
                waits.wait().await;
                drop(step);
            };
            let waiting = handles[1].spawn(waiting).unwrap();
            assert!(held.wait_waiting(1, SOON));
            if by_stop {
                handles[1].stop();
            } else {
                waiting.abort();
            }
            assert!(block_within(waiting, SOON).expect("settles").is_err());
            gate.open();
            let mut got = Vec::new();
            let end = client.read_to_end(&mut got);
            let got = String::from_utf8_lossy(&got).into_owned();
            assert!(end.is_err(), "a cut body looks whole: {got:?}, stop: {by_stop}, before: {is_done_before}");
        }
    }
}

/// The control: a handle that is let go lets the task go on, and what it gives back end in good order.
#[test]
fn a_connection_that_comes_back_to_a_handle_that_was_let_go_ends_in_good_order() {
    let case = Case::start();
    let (_server, handles, conn, mut client) = half_sent(&case);
    let gate = Gate::new();
    let waits = gate.clone();
    let step = async move {
        waits.wait().await;
        conn
    };
    handles[0].workers().spawn(step).expect("the pool runs").detach();
    gate.open();
    let mut got = Vec::new();
    client.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"half of a bo");
}
