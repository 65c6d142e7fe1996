//! How the pools end: aborts, stops that wait and stops that report, submissions that race one, a runtime that ends on
//! its own threads. Laws 12 and 13.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use epoxide::workers::{SubmitError, WorkersConfig, WorkersReport};
use epoxide::{JoinError, JoinHandle};
use epoxide_tests_e2e::{Case, Gate, Server, block_within, rounds, wait_until};

const SOON: Duration = Duration::from_secs(10);

fn server(case: &Case, max_blocking: usize, max_overflow: usize) -> Server {
    Server::start(case, |b| {
        b.workers(config(max_blocking, max_overflow));
    })
}

fn config(max_blocking: usize, max_overflow: usize) -> WorkersConfig {
    WorkersConfig { threads: 2, max_blocking, max_overflow, ..WorkersConfig::default() }
}

fn report(server: &Server) -> WorkersReport {
    server.reactor().workers().report()
}

fn result<T>(handle: JoinHandle<T>) -> Result<T, JoinError> {
    block_within(handle, SOON).expect("the handle settles")
}

/// A job that says that it runs, and runs until the gate opens.
fn endless(started: &Arc<AtomicUsize>, gate: &Gate) -> impl FnOnce() -> bool + Send + 'static {
    let (started, gate) = (started.clone(), gate.clone());
    move || {
        started.fetch_add(1, Ordering::AcqRel);
        gate.wait_blocking(Duration::from_secs(60))
    }
}

/// Says on which thread it was dropped.
struct Tell(std::sync::mpsc::Sender<String>);

impl Drop for Tell {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().unwrap_or_default().to_owned());
    }
}

/// An abort only marks; a worker drops the future. A queued job that is aborted never runs.
#[test]
fn an_abort_drops_on_the_pools_own_threads() {
    let case = Case::start();
    let server = server(&case, 1, 100);
    let pool = server.reactor().workers();
    let (dropped, drops) = channel();
    let task = pool.spawn({
        let tell = Tell(dropped.clone());
        async move {
            let _tell = tell;
            std::future::pending::<()>().await;
        }
    });
    let task = task.unwrap();
    task.abort();
    task.abort_handle().abort();
    assert!(matches!(result(task), Err(JoinError::Aborted)));
    assert!(drops.recv_timeout(SOON).unwrap().starts_with("epoxide-w"));

    let gate = Gate::new();
    let first = pool.spawn_blocking(endless(&Arc::default(), &gate)).unwrap();
    let tell = Tell(dropped);
    let second = pool.spawn_blocking(move || drop(tell)).unwrap();
    let ran = report(&server).jobs_done;
    second.abort();
    gate.open();
    assert!(matches!(result(second), Err(JoinError::Aborted)));
    assert!(drops.recv_timeout(SOON).unwrap().starts_with("epoxide-b"));
    first.abort();
    assert!(result(first).unwrap(), "a job that runs is left alone");
    assert!(wait_until(SOON, || report(&server).jobs_done == ran + 2));
}

/// Stop: parked tasks are dropped by a worker and settle; jobs have the grace; a later submission comes back.
#[test]
fn a_stop_settles_tasks_and_waits_for_jobs() {
    let case = Case::start();
    let server = server(&case, 1, 100);
    let pool = server.reactor().workers();
    let (dropped, drops) = channel();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let tell = Tell(dropped.clone());
            pool.spawn(async move {
                let _tell = tell;
                std::future::pending::<()>().await;
            })
            .unwrap()
        })
        .collect();
    let (started, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
    let running = pool.spawn_blocking(endless(&started, &gate)).unwrap();
    let queued = pool.spawn_blocking(|| 5).unwrap();
    assert!(wait_until(SOON, || started.load(Ordering::Acquire) == 1));
    let stopping = thread::spawn(move || server.stop(Duration::from_secs(60)));
    for task in tasks {
        assert!(matches!(result(task), Err(JoinError::Stopped)));
        assert!(drops.recv_timeout(SOON).unwrap().starts_with("epoxide-w"));
    }
    assert!(wait_until(SOON, || matches!(pool.spawn_blocking(|| ()), Err(SubmitError::Stopped(_)))));
    let Err(SubmitError::Stopped(future)) = pool.spawn(async { 9 }) else { panic!("a task was taken") };
    assert_eq!(block_within(future, SOON), Some(9), "it came back whole");
    gate.open();
    let report = stopping.join().unwrap().unwrap();
    assert!(report.graceful && report.jobs_running == 0, "{report:?}");
    assert!(result(running).unwrap());
    assert_eq!(result(queued).unwrap(), 5, "queued before the stop: it has the grace too");
}

/// Stop with a job that does not end: what waits behind it settles, and the report says that one still runs.
#[test]
fn a_stop_reports_what_still_runs() {
    let case = Case::start();
    let server = server(&case, 1, 100);
    let pool = server.reactor().workers();
    let (started, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
    let running = pool.spawn_blocking(endless(&started, &gate)).unwrap();
    let queued: Vec<_> = (0..5).map(|_| pool.spawn_blocking(|| ()).unwrap()).collect();
    assert!(wait_until(SOON, || started.load(Ordering::Acquire) == 1));
    let report = server.stop(Duration::from_millis(50)).unwrap();
    assert_eq!((report.jobs_running, report.cut, report.graceful), (1, 0, false), "{report:?}");
    for job in queued {
        assert!(matches!(result(job), Err(JoinError::Stopped)));
    }
    assert!(!running.is_finished());
    gate.open();
    assert!(result(running).unwrap(), "it ends on its own thread");
}

/// Submissions from two threads race a stop: each comes back, or its handle settles.
#[test]
fn submissions_that_race_a_stop_come_back_or_settle() {
    let case = Case::start_rounds();
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..rounds().div_ceil(4) {
        let server = server(&case, 2, 4);
        let submitters: Vec<_> = (0..2)
            .map(|_| {
                let pool = server.reactor().workers();
                thread::spawn(move || {
                    let (mut jobs, mut tasks, mut refused) = (Vec::new(), Vec::new(), 0);
                    while refused < 20 {
                        let held = Arc::new(());
                        match pool.spawn_blocking({
                            let held = held.clone();
                            move || drop(held)
                        }) {
                            Ok(job) => jobs.push(job),
                            Err(SubmitError::Stopped(_)) => refused += 1,
                            Err(_full) => {}
                        }
                        match pool.spawn(async move {
                            let _held = held;
                            epoxide::yield_now().await;
                        }) {
                            Ok(task) => tasks.push(task),
                            Err(_stopped) => refused += 1,
                        }
                    }
                    let taken = jobs.len() + tasks.len();
                    for handle in jobs.into_iter().chain(tasks) {
                        let end = result(handle);
                        assert!(matches!(end, Ok(()) | Err(JoinError::Stopped)), "{end:?}");
                    }
                    (taken, refused)
                })
            })
            .collect();
        assert!(wait_until(SOON, || report(&server).jobs_done > 3), "vacuity: it runs before it stops");
        server.stop(Duration::ZERO).unwrap();
        for submitter in submitters {
            let (some, others) = submitter.join().unwrap();
            (taken, refused) = (taken + some, refused + others);
        }
    }
    assert!(taken > 0 && refused > 0, "vacuity: {taken} taken, {refused} refused");
}

/// A runtime that is shut down or dropped on one of its own pool threads does not wait for itself.
#[test]
fn a_runtime_may_end_on_its_own_pool() {
    let case = Case::start();
    let build = || {
        let mut builder = epoxide::Runtime::builder();
        builder.reactors(1).workers(config(2, 2));
        Arc::new(builder.build().unwrap())
    };
    let runtime = build();
    let mut kinds = Vec::new();
    let stop = |runtime: &Arc<epoxide::Runtime>| {
        let runtime = runtime.clone();
        move || runtime.shutdown_blocking(Duration::from_secs(60)).map_err(|error| error.kind())
    };
    let workers = runtime.handle().workers();
    let job = stop(&runtime);
    let task = stop(&runtime);
    kinds.push(result(workers.spawn_blocking(job).unwrap()).unwrap().unwrap_err());
    kinds.push(result(workers.spawn(async move { task() }).unwrap()).unwrap().unwrap_err());
    assert_eq!(kinds, [ErrorKind::Deadlock, ErrorKind::Deadlock]);
    let report = runtime.shutdown_blocking(SOON).unwrap();
    assert!(report.graceful, "{report:?}");
    drop(runtime);

    // The last one out is a task, and a job.
    for blocking in [false, true] {
        let runtime = build();
        let workers = runtime.handle().workers();
        let gate = Gate::new();
        let go = gate.clone();
        let handle = if blocking {
            workers
                .spawn_blocking({
                    let runtime = runtime.clone();
                    move || drop((go.wait_blocking(SOON), runtime))
                })
                .unwrap()
        } else {
            let runtime = runtime.clone();
            workers
                .spawn(async move {
                    go.wait().await;
                    drop(runtime);
                })
                .unwrap()
        };
        drop(runtime);
        gate.open();
        let end = result(handle);
        assert!(matches!(end, Ok(()) | Err(JoinError::Stopped)), "{end:?}");
    }
    drop(case);
}
