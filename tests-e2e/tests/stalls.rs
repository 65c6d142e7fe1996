//! The stall detector: whoever holds a loop too long is counted and named, and nobody else is.

use std::panic::Location;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use epoxide::{Connection, ReactorConfig, Stall, StalledBy, spawn_local};
use epoxide_tests_e2e::{Case, Http, Server, block_within, echo, hold_reactor, http_ok, loopback, wait_until};

const SOON: Duration = Duration::from_secs(20);
/// More than a thread waits for its CPU on a crowded machine: wall time is what is measured.
const THRESHOLD: Duration = Duration::from_millis(300);
/// Well over the threshold, whatever the steps of the coarse clock.
const LONG: Duration = Duration::from_millis(700);

fn server(case: &Case, threshold: Duration) -> (Server, Receiver<Stall>) {
    let (tell, told) = channel();
    let server = Server::start(case, |b| {
        b.config(ReactorConfig { stall_threshold: threshold, ..ReactorConfig::default() });
        b.on_stall(move |reactor, stall| {
            assert!(reactor.is_current_thread());
            let _ = tell.send(*stall);
        });
        b.listen(loopback(), echo);
    });
    (server, told)
}

/// Holds the thread that it runs on.
fn hold() {
    // sleep: holding the loop is the stimulus.
    std::thread::sleep(LONG);
}

#[track_caller]
fn assert_here(stall: Stall, line: u32) {
    assert!(stall.took > THRESHOLD, "{stall}");
    match stall.by {
        StalledBy::Task(at) => assert_eq!((at.file(), at.line()), (file!(), line), "{stall}"),
        other => panic!("{other:?}"),
    }
    assert!(stall.to_string().contains(file!()), "{stall}");
}

#[test]
fn a_task_that_holds_the_loop_is_counted_and_named_by_where_it_was_spawned() {
    let case = Case::start();
    let (server, told) = server(&case, THRESHOLD);
    let line = Location::caller().line() + 1;
    let task = server.reactor().spawn(async { hold() }).unwrap();
    assert!(block_within(task, SOON).is_some());
    assert_here(told.recv_timeout(SOON).unwrap(), line);

    // One that goes on after its stall, spawned by another one on the reactor itself.
    let (lines, line) = channel();
    let task = server.reactor().spawn_with(move || async move {
        let _ = lines.send(Location::caller().line() + 1);
        let inner = spawn_local(async {
            hold();
            epoxide::yield_now().await;
        });
        inner.await
    });
    assert!(block_within(task.unwrap(), SOON).is_some());
    assert_here(told.recv_timeout(SOON).unwrap(), line.recv_timeout(SOON).unwrap());
    assert!(told.try_recv().is_err(), "told once each");
    assert_eq!(server.stats().stalls, 2);
}

#[test]
fn the_handler_of_a_connection_is_named_by_its_listener() {
    let case = Case::start();
    let (tell, told) = channel();
    let mut line = 0;
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { stall_threshold: THRESHOLD, ..ReactorConfig::default() });
        b.on_stall(move |_, stall| {
            let _ = tell.send(*stall);
        });
        line = Location::caller().line() + 1;
        b.listen(loopback(), |connection: Connection| async move {
            hold();
            http_ok(connection).await
        });
    });
    assert_eq!(Http::connect(server.addr()).get().map(|r| r.status), Ok(200));
    assert_here(told.recv_timeout(SOON).unwrap(), line);
    assert_eq!(server.stats().stalls, 1);
}

/// A post is no task: it is told apart, and no task that ran in its pass is blamed.
#[test]
fn what_runs_outside_of_tasks_is_told_apart() {
    let case = Case::start();
    let (server, told) = server(&case, THRESHOLD);
    let beside = server.reactor().spawn(async {});
    let posted = server.reactor().run_here(hold).unwrap();
    assert!(block_within(posted, SOON).is_some());
    let stall = told.recv_timeout(SOON).unwrap();
    assert!(stall.by == StalledBy::Outside && stall.took > THRESHOLD, "{stall}");
    assert!(block_within(beside.unwrap(), SOON).is_some());
    assert!(wait_until(SOON, || server.stats().tasks == 0));
    assert_eq!(server.stats().stalls, 1);
}

/// With several tasks in a pass the first stall has no name; then they are timed one by one, and the next one has.
#[test]
fn among_several_tasks_the_second_stall_has_a_name() {
    const TASKS: usize = 5;
    let case = Case::start();
    let (server, told) = server(&case, THRESHOLD);
    let mut line = 0;
    for round in 0..2 {
        // All in one pass.
        let held = hold_reactor(&server.reactor());
        let mut tasks = Vec::new();
        for i in 0..TASKS {
            if i == 2 {
                line = Location::caller().line() + 1;
                tasks.push(server.reactor().spawn(async { hold() }).unwrap());
            } else {
                tasks.push(server.reactor().spawn(async {}).unwrap());
            }
        }
        held.release();
        for task in tasks {
            assert!(block_within(task, SOON).is_some());
        }
        let stall = loop {
            let stall = told.recv_timeout(SOON).unwrap();
            // Holding the reactor may itself have taken long.
            if stall.by != StalledBy::Outside {
                break stall;
            }
        };
        if round == 0 {
            assert_eq!(stall.by, StalledBy::OneOf(TASKS), "{stall}");
        } else {
            assert_here(stall, line);
        }
    }
}

/// Controls: work below the threshold is no stall, and zero switches the detector off.
#[test]
fn short_work_and_a_threshold_of_zero_report_nothing() {
    let case = Case::start();
    for (threshold, work) in [(Duration::from_secs(5), LONG), (Duration::ZERO, LONG)] {
        let (server, told) = server(&case, threshold);
        let task = server.reactor().spawn(async move { hold() }).unwrap();
        assert!(block_within(task, SOON).is_some());
        let posted = server.reactor().run_here(hold).unwrap();
        assert!(block_within(posted, SOON).is_some());
        // The pass after it has ended the one that is judged.
        assert!(block_within(server.reactor().spawn(async {}).unwrap(), SOON).is_some());
        assert_eq!((server.stats().stalls, told.try_recv().is_err()), (0, true), "{threshold:?} and {work:?}");
    }
}

/// The hook is user code: its panic ends nothing.
#[test]
fn a_hook_that_panics_is_caught() {
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        b.config(ReactorConfig { stall_threshold: THRESHOLD, ..ReactorConfig::default() });
        b.on_stall(|_, stall| panic!("{stall}"));
        b.listen(loopback(), echo);
    });
    server.claim_panics(1);
    assert!(block_within(server.reactor().spawn(async { hold() }).unwrap(), SOON).is_some());
    assert!(wait_until(SOON, || server.stats().panics == 1));
    assert!(block_within(server.reactor().spawn(async {}).unwrap(), SOON).is_some());
    assert_eq!(server.stats().stalls, 1);
}

#[test]
fn a_threshold_that_the_clock_cannot_tell_is_refused_by_name() {
    let case = Case::start();
    let refused = Server::try_start(&case, |b| {
        b.config(ReactorConfig { stall_threshold: Duration::from_millis(1), ..ReactorConfig::default() });
    });
    let error = refused.map(drop).unwrap_err().to_string();
    assert!(error.contains("stall_threshold"), "{error}");
}

/// An aborted task is dropped and not polled: what its destructor takes is its own, not that of who was polled before.
#[test]
fn the_destructor_of_an_aborted_task_is_named_and_nobody_polled_before() {
    struct Slow;
    impl Drop for Slow {
        fn drop(&mut self) {
            hold();
        }
    }
    let case = Case::start();
    let (server, told) = server(&case, THRESHOLD);
    let before = server.reactor().spawn(async {}).unwrap();
    assert!(block_within(before, SOON).is_some());
    let slow = Slow;
    let line = Location::caller().line() + 1;
    let task = server.reactor().spawn(async move {
        let _slow = slow;
        std::future::pending::<()>().await;
    });
    let task = task.unwrap();
    task.abort();
    assert!(block_within(task, SOON).is_some_and(|end| end.is_err()));
    assert_here(told.recv_timeout(SOON).unwrap(), line);
}
