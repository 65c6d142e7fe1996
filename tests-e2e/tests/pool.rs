//! The pools by themselves: limits, overflow, credit, panics, wakes, threads. Laws 7 and 13.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use epoxide::workers::{PoolFull, WorkersConfig, WorkersReport};
use epoxide::{JoinError, JoinHandle, ReactorHandle, time, workers};
use epoxide_tests_e2e::{Case, Gate, Server, block_within, provoke_panic, rounds, wait_until};

const SOON: Duration = Duration::from_secs(10);

fn server(case: &Case, config: WorkersConfig) -> Server {
    Server::start(case, |b| {
        b.workers(config);
    })
}

fn limits(max_blocking: usize, max_overflow: usize) -> WorkersConfig {
    WorkersConfig { threads: 2, max_blocking, max_overflow, ..WorkersConfig::default() }
}

fn report(server: &Server) -> WorkersReport {
    server.reactor().workers().report()
}

fn result<T>(handle: JoinHandle<T>) -> Result<T, JoinError> {
    block_within(handle, SOON).expect("the handle settles")
}

fn thread_name() -> String {
    thread::current().name().unwrap_or_default().to_owned()
}

/// A job that says that it runs, and runs until the gate opens.
fn endless(started: &Arc<AtomicUsize>, gate: &Gate) -> impl FnOnce() -> bool + Send + 'static {
    let (started, gate) = (started.clone(), gate.clone());
    move || {
        started.fetch_add(1, Ordering::AcqRel);
        gate.wait_blocking(Duration::from_secs(60))
    }
}

/// Quiet: nothing runs or waits, and every thread that exists is parked and has its credit.
fn is_quiet(report: &WorkersReport) -> bool {
    report.jobs_running == 0 && report.overflow_len == 0 && report.blocking_parked == report.blocking_threads
}

/// engine-tests, pool: with room for them, jobs that never return all start; none waits behind another.
#[test]
fn endless_jobs_below_the_limit_all_start_and_a_later_one_runs() {
    let case = Case::start();
    let server = server(&case, limits(16, 10_000));
    let (started, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
    let pool = server.reactor().workers();
    let jobs: Vec<_> = (0..8).map(|_| pool.spawn_blocking(endless(&started, &gate)).expect("taken")).collect();
    assert!(wait_until(SOON, || started.load(Ordering::Acquire) == 8), "{started:?} of 8 started");
    assert_eq!(result(pool.spawn_blocking(|| 7).expect("taken")).unwrap(), 7);
    assert_eq!(report(&server).overflow_len, 0);
    gate.open();
    for job in jobs {
        assert!(result(job).unwrap(), "released by the gate");
    }
    assert!(wait_until(SOON, || is_quiet(&report(&server))), "{:?}", report(&server));
}

/// At the limit the rest is counted, with the age of the oldest, and runs as threads finish, in order.
#[test]
fn endless_jobs_past_the_limit_wait_counted_and_run_later() {
    let case = Case::start();
    let server = server(&case, limits(2, 10_000));
    let (started, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
    let pool = server.reactor().workers();
    let jobs: Vec<_> = (0..8).map(|_| pool.spawn_blocking(endless(&started, &gate)).expect("taken")).collect();
    assert!(wait_until(SOON, || started.load(Ordering::Acquire) == 2));
    let now = report(&server);
    assert_eq!((now.jobs_running, now.overflow_len, now.blocking_threads), (2, 6, 2), "{now:?}");
    assert!(wait_until(SOON, || report(&server).oldest_overflow_age > now.oldest_overflow_age), "the age grows");
    assert_eq!(started.load(Ordering::Acquire), 2, "a third one started past the limit");
    gate.open();
    for job in jobs {
        assert!(result(job).unwrap());
    }
    assert!(wait_until(SOON, || is_quiet(&report(&server))), "{:?}", report(&server));
    assert_eq!(report(&server).oldest_overflow_age, None);
}

/// A full overflow gives the job back; nothing of it ran.
#[test]
fn a_full_pool_gives_the_job_back() {
    let case = Case::start();
    let server = server(&case, limits(1, 2));
    let (started, gate) = (Arc::new(AtomicUsize::new(0)), Gate::new());
    let pool = server.reactor().workers();
    let jobs: Vec<_> = (0..3).map(|_| pool.spawn_blocking(endless(&started, &gate)).expect("taken")).collect();
    let payload = String::from("mine");
    let Err(PoolFull(job)) = pool.spawn_blocking(move || payload) else { panic!("a fourth job was taken") };
    assert_eq!(job(), "mine", "it still works");
    let entered = server.reactor();
    let entered = entered.enter();
    assert!(matches!(result(workers::spawn_blocking(|| ())), Err(JoinError::PoolFull)));
    drop(entered);
    assert_eq!(report(&server).jobs_refused, 2);
    gate.open();
    for job in jobs {
        assert!(result(job).unwrap());
    }
}

/// engine-tests, pool: bursts from two threads, with panics and, in the second form, with threads that retire all the
/// time: every job runs or panics, and the credit is back at the number of parked threads.
#[test]
fn bursts_return_the_credit() {
    for idle in [Duration::from_secs(10), Duration::from_micros(50)] {
        let case = Case::start_rounds();
        let server = server(&case, WorkersConfig { idle, ..limits(4, 10_000) });
        let ran = Arc::new(AtomicUsize::new(0));
        let (mut panicked, mut most) = (0, 0);
        for round in 1..=rounds() {
            let burst = |pool: workers::Workers, ran: Arc<AtomicUsize>| {
                let jobs: Vec<_> = (0..32)
                    .map(|i| {
                        let ran = ran.clone();
                        let job = move || {
                            ran.fetch_add(1, Ordering::AcqRel);
                            if i == 7 {
                                // Without the panic hook: its noise says nothing here.
                                std::panic::resume_unwind(Box::new("on purpose"));
                            }
                        };
                        pool.spawn_blocking(job).expect("taken")
                    })
                    .collect();
                jobs.into_iter().map(result).filter(|r| matches!(r, Err(JoinError::Panic(_)))).count()
            };
            let other = thread::spawn({
                let (pool, ran) = (server.reactor().workers(), ran.clone());
                move || burst(pool, ran)
            });
            panicked += burst(server.reactor().workers(), ran.clone());
            panicked += other.join().unwrap();
            let quiet = wait_until(SOON, || is_quiet(&report(&server)));
            let now = report(&server);
            assert!(quiet, "round {round}: {now:?}");
            most = most.max(now.blocking_threads);
            assert!(now.blocking_threads <= 4, "{now:?}");
            assert_eq!(ran.load(Ordering::Acquire), 64 * round);
        }
        assert_eq!(panicked, 2 * rounds());
        assert_eq!(report(&server).panics, 2 * rounds() as u64);
        if idle < Duration::from_secs(1) {
            assert!(wait_until(SOON, || report(&server).blocking_threads == 0), "idle threads retire");
        } else {
            assert!(most > 0, "vacuity: no thread was parked");
        }
    }
}

/// A panic goes to the handle; the thread and the worker go on.
#[test]
fn panics_go_to_the_handle_and_cost_no_thread() {
    let case = Case::start();
    let server = server(&case, limits(1, 100));
    let pool = server.reactor().workers();
    for _ in 0..10 {
        let job = result(pool.spawn_blocking(|| provoke_panic("a job")).unwrap());
        let task = result(pool.spawn(async { provoke_panic("a task") }).unwrap());
        for end in [job, task] {
            let Err(JoinError::Panic(payload)) = end else { panic!("{end:?}") };
            assert!(payload.text().starts_with("provoked on purpose"), "{payload:?}");
        }
    }
    assert_eq!(result(pool.spawn_blocking(|| 1).unwrap()).unwrap(), 1);
    assert_eq!(result(pool.spawn(async { 2 }).unwrap()).unwrap(), 2);
    // The slot of a task is freed right after its handle has settled.
    assert!(wait_until(SOON, || report(&server).tasks == 0));
    let now = report(&server);
    assert_eq!((now.blocking_threads, now.workers, now.panics), (1, 2, 20), "{now:?}");
}

/// No push is slept through: one task is woken again and again while the workers park.
#[test]
fn a_task_that_is_woken_while_workers_park_always_runs() {
    let case = Case::start_rounds();
    let server = server(&case, limits(1, 1));
    let pool = server.reactor().workers();
    let (asks, answers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (waker, wakers) = channel();
    let task = pool.spawn({
        let (asks, answers) = (asks.clone(), answers.clone());
        std::future::poll_fn(move |cx| {
            let asked = asks.load(Ordering::Acquire);
            answers.store(asked, Ordering::Release);
            if asked == 0 {
                let _ = waker.send(cx.waker().clone());
            }
            if asked == usize::MAX { Poll::Ready(()) } else { Poll::Pending }
        })
    });
    let waker = wakers.recv_timeout(SOON).expect("the first poll");
    for ask in 1..=rounds() * 100 {
        asks.store(ask, Ordering::Release);
        waker.wake_by_ref();
        assert!(wait_until(SOON, || answers.load(Ordering::Acquire) == ask), "wake {ask} was lost");
    }
    asks.store(usize::MAX, Ordering::Release);
    waker.wake();
    result(task.unwrap()).unwrap();
    // Many at once, each to the back of the queue after every step.
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            pool.spawn(async {
                for _ in 0..100 {
                    epoxide::yield_now().await;
                }
            })
            .unwrap()
        })
        .collect();
    for task in tasks {
        result(task).unwrap();
    }
    assert!(wait_until(SOON, || report(&server).workers_parked == 2), "{:?}", report(&server));
}

/// Pool threads may run wherever the process may, however pinned the thread is that made the pool grow; and the
/// signals that tell a process something are blocked there.
#[test]
fn threads_inherit_neither_the_pin_nor_the_signals_of_a_reactor() {
    use nix::sched::{CpuSet, sched_getaffinity};
    use nix::sys::signal::{SigSet, Signal};
    use nix::unistd::Pid;
    fn allowed() -> Vec<usize> {
        let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
        (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).collect()
    }
    let case = Case::start();
    let all = allowed();
    let last = *all.last().unwrap();
    let server = Server::start(&case, |b| {
        b.pin(&[last]);
    });
    let (sent, looks) = channel();
    let on_reactor = server.reactor().spawn(async move {
        let look = || (allowed(), SigSet::thread_get_mask().unwrap().contains(Signal::SIGTERM));
        let here = look();
        let job = workers::spawn_blocking(look).await.unwrap();
        let task = workers::spawn(async move { look() }).await.unwrap();
        let _ = sent.send([here, job, task]);
    });
    drop(on_reactor.unwrap());
    let [here, job, task] = looks.recv_timeout(SOON).unwrap();
    assert_eq!(here, (vec![last], false), "control: the reactor is pinned and takes signals");
    assert_eq!(job, (all.clone(), true));
    assert_eq!(task, (all, true));
    assert!(wait_until(SOON, || server.stats().tasks == 0));
}

/// Where one may block, and which runtime is the current one.
#[test]
fn every_kind_of_thread_knows_its_runtime_and_whether_it_may_block() {
    let case = Case::start();
    let server = server(&case, limits(4, 100));
    let reactor = server.reactor();
    assert!(workers::Workers::current().is_none() && ReactorHandle::current().is_none());
    let lost = thread::spawn(|| workers::spawn(async {}).detach()).join().unwrap_err();
    assert!(lost.downcast_ref::<String>().is_some_and(|text| text.contains("without a current runtime")));

    let tried = reactor.workers().spawn(async { epoxide::block_on(async {}) }).unwrap();
    let Err(JoinError::Panic(why)) = result(tried) else { panic!("a worker blocked") };
    assert!(why.text().contains("block_on was called on an async worker"), "{why:?}");

    // From a job: blocking on a task, whose own job blocks on a timer.
    let job = reactor.workers().spawn_blocking(|| {
        let here = thread_name();
        let task = workers::spawn(async {
            time::sleep(Duration::from_millis(1)).await;
            let inner = workers::spawn_blocking(|| epoxide::block_on(async { thread_name() })).await.unwrap();
            (thread_name(), inner)
        });
        (here, ReactorHandle::current().is_some(), epoxide::block_on(task).unwrap())
    });
    let (outer, known, (task, inner)) = result(job.unwrap()).unwrap();
    assert!(outer.starts_with("epoxide-b") && inner.starts_with("epoxide-b"), "{outer} {inner}");
    assert!(task.starts_with("epoxide-w") && known, "{task}");

    let entered = reactor.enter();
    assert_eq!(ReactorHandle::current().as_ref(), Some(&reactor));
    assert!(!reactor.is_current_thread());
    let slept = workers::spawn(async { time::sleep(Duration::from_millis(1)).await });
    result(slept).unwrap();
    block_within(time::sleep(Duration::from_millis(1)), SOON).expect("the reactor's wheel wakes this thread");
    drop(entered);
    assert!(ReactorHandle::current().is_none());

    // The temporary reactor of `block_on` has workers of its own, which end with it.
    let name = epoxide::block_on(async { workers::spawn(async { thread_name() }).await.unwrap() });
    assert!(name.starts_with("epoxide-w"));
}
