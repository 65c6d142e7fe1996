//! A connection used away from the task it was born in: on another reactor, in another task after a
//! cancelled read, in a task that is aborted.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::Duration;

use epoxide::{Connection, ReactorHandle};
use epoxide_tests_e2e::{Case, Ending, Peer, Rng, Server, echo, loopback, pattern, rounds, several, stage};

const HANG: Duration = Duration::from_secs(5);

/// A task of another reactor is not a task of the home reactor, whatever its number: its wakes go
/// to where it lives.
#[test]
fn a_connection_served_by_another_reactors_task_is_answered() {
    let case = Case::start_rounds();
    let (server, accepted) = several(&case, 2, |_| {});
    let reactors = server.runtime().handles();
    let mut peers = Vec::new();
    let mut away = 0;
    for i in 0..16 {
        peers.push(Peer::connect(server.addr()));
        let connection = accepted.recv_timeout(HANG).expect("handed over");
        let target: &ReactorHandle = &reactors[i % 2];
        away += usize::from(connection.reactor() != *target);
        // Detached: it ends with its connection.
        drop(target.spawn(async move { echo(connection).await }).expect("it runs"));
    }
    assert!(away > 0, "vacuity: every connection stayed at home");
    for turn in 0..rounds() {
        let byte = [(turn % 251) as u8];
        for peer in &mut peers {
            peer.send(&byte).unwrap();
        }
        for (i, peer) in peers.iter_mut().enumerate() {
            assert_eq!(peer.read_exactly(1, HANG), Ok(byte.to_vec()), "turn {turn}, connection {i}");
        }
    }
}

/// Reads that are polled once and dropped, and then read by ANOTHER task, lose nothing: the waiter
/// that was left behind is replaced.
#[test]
fn a_read_cancelled_in_one_task_loses_nothing_in_the_next() {
    let case = Case::start_rounds();
    let total = rounds() * 16;
    let (done, dones) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let done = done.clone();
            async move {
                let (mut all, mut cancelled) = (Vec::new(), 0);
                loop {
                    let first = {
                        let mut read = pin!(connection.read());
                        poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await
                    };
                    let outcome = match first {
                        Poll::Ready(outcome) => outcome,
                        Poll::Pending => {
                            cancelled += 1;
                            let other = epoxide::spawn_local(async move {
                                let outcome = connection.read().await;
                                (connection, outcome)
                            });
                            let (back, outcome) = other.await.map_err(|e| io::Error::other(e.to_string()))?;
                            connection = back;
                            outcome
                        }
                    };
                    let Some(received) = outcome? else { break };
                    all.extend_from_slice(&received);
                }
                let _ = done.send((all, cancelled));
                io::Result::Ok(())
            }
        });
    });
    let sent = pattern(total);
    let mut peer = Peer::connect(server.addr());
    let mut rng = Rng::new(5);
    for byte in &sent {
        peer.send(std::slice::from_ref(byte)).unwrap();
        rng.skew(2000);
    }
    peer.half_close().unwrap();
    let (received, cancelled) = dones.recv_timeout(HANG).expect("the reader hangs");
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    assert!(cancelled > 0, "vacuity: no read was ever pending");
}

/// A task that is aborted while it holds a connection: its peer sees a reset, not a clean end.
#[test]
fn aborting_the_task_that_holds_a_connection_resets_it() {
    let case = Case::start();
    let (aborts, abort) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let aborts = aborts.clone();
            async move {
                let task = epoxide::spawn_local(async move {
                    stage(&mut connection, b"half an ans")?;
                    connection.flush().await?;
                    connection.read().await.map(|_| ())
                });
                let _ = aborts.send(task.abort_handle());
                let _ = task.await;
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    assert_eq!(peer.read_exactly(11, HANG), Ok(b"half an ans".to_vec()));
    abort.recv_timeout(HANG).expect("the task runs").abort();
    assert_eq!(peer.ending(HANG), Ending::Reset);
}

/// A thread that panics while it holds a connection counts like a task that does.
#[test]
fn a_panic_on_another_thread_resets_the_connection_it_holds() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |connection: Connection| async move {
            let thread = std::thread::spawn(move || {
                let _held = connection;
                epoxide_tests_e2e::provoke_panic("on a thread of its own");
            });
            let _ = thread.join();
        });
    });
    let mut peer = Peer::connect(server.addr());
    assert_eq!(peer.ending(HANG), Ending::Reset);
}
