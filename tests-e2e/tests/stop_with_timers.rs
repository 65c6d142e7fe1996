//! A stop settles what waits for a time (law 12), and starts nothing new for it. A binary of its own: nothing here may
//! use the process-wide timer thread before the stop, or the test could not see that the stop starts it.

use std::pin::Pin;
use std::sync::mpsc::channel;
use std::task::Context;
use std::time::{Duration, Instant};

use epoxide::{CloseReason, Connection, JoinError, ReactorConfig, time};
use epoxide_tests_e2e::{Case, Ending, Parker, Peer, Server, block_within, loopback, wait_until};

const SOON: Duration = Duration::from_secs(10);
const HOUR: Duration = Duration::from_secs(3600);

fn has_timer_thread() -> bool {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .flatten()
        .any(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|n| n.contains("epoxide-ti")))
}

/// One test, in this order: what needs the timer thread comes last.
#[test]
fn a_stop_with_timers_armed_settles_and_starts_no_thread() {
    armed_tasks_and_deadlines();
    assert!(!has_timer_thread(), "stopping started the timer thread");
    a_wait_outlives_its_reactor();
}

fn armed_tasks_and_deadlines() {
    let case = Case::start();
    let (connections, connection) = channel();
    let (keeps, kept) = channel();
    let mut server = Server::start(&case, |b| {
        b.config(ReactorConfig { read_timeout: Duration::ZERO, ..ReactorConfig::default() });
        // Busy with a wait, under a deadline.
        b.listen(loopback(), move |mut connection: Connection| {
            let connections = connections.clone();
            async move {
                let Some(_) = connection.read().await? else { return Ok(()) };
                connection.set_deadline(Some(Instant::now() + HOUR), "served");
                let _ = connections.send(());
                time::sleep(HOUR).await;
                connection.send_all(b"an hour later").await
            }
        });
        // Handed to another thread, under a deadline that was set on the reactor.
        b.listen(loopback(), move |connection: Connection| {
            let keeps = keeps.clone();
            async move {
                connection.set_deadline(Some(Instant::now() + HOUR), "kept");
                let _ = keeps.send(connection);
            }
        });
    });
    server.abandon_connections();
    let mut peers: Vec<Peer> = (0..10).map(|_| Peer::connect(server.addrs()[0])).collect();
    for peer in &mut peers {
        peer.send(b"?").unwrap();
        connection.recv_timeout(SOON).unwrap();
    }
    let mut foreign = Peer::connect(server.addrs()[1]);
    let held = kept.recv_timeout(SOON).unwrap();
    let tasks: Vec<_> = (0..100).map(|_| server.reactor().spawn(time::sleep(HOUR)).expect("it is taken")).collect();
    let timeout = server.reactor().spawn(time::timeout(HOUR, std::future::pending::<()>())).expect("it is taken");
    assert!(wait_until(SOON, || server.stats().tasks >= 111));
    let begun = Instant::now();
    let report = server.stop(Duration::from_millis(300)).unwrap();
    assert!(begun.elapsed() < SOON, "the stop took {:?}", begun.elapsed());
    assert_eq!(report.cut, 11, "ten handlers and the connection of another thread");
    for task in tasks {
        assert!(matches!(block_within(task, SOON), Some(Err(JoinError::Stopped))));
    }
    assert!(matches!(block_within(timeout, SOON), Some(Err(JoinError::Stopped))));
    for peer in &mut peers {
        assert_eq!(peer.ending(SOON), Ending::Reset);
    }
    assert_eq!((held.close_reason(), foreign.ending(SOON)), (Some(CloseReason::Aborted), Ending::Reset));
    drop(held);
}

/// A wait that was armed in a reactor's wheel and is held elsewhere: the stop wakes it, and it goes on elsewhere.
fn a_wait_outlives_its_reactor() {
    // The stop's own `Server` needs no timer thread; the wait does, from here on, and the thread stays.
    assert!(block_within(time::sleep(Duration::from_millis(1)), SOON).is_some());
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let mut wait = time::sleep(Duration::from_millis(300));
    let deadline = wait.deadline();
    let parker = Parker::new();
    let waker = std::task::Waker::from(parker.clone());
    let armed = server.reactor().run_here(move || {
        let pending = Pin::new(&mut wait).poll(&mut Context::from_waker(&waker)).is_pending();
        (wait, pending)
    });
    let (wait, pending) = block_within(armed.expect("it is taken"), SOON).unwrap().expect("it runs");
    assert!(pending, "vacuity: it was over at once");
    server.stop(Duration::from_secs(5)).unwrap();
    assert!(parker.wakes() > 0, "the stop left a wait in a wheel that nobody turns");
    assert!(block_within(wait, SOON).is_some(), "lost");
    assert!(Instant::now() >= deadline, "early");
}
