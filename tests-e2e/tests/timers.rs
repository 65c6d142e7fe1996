//! Timers as users hold them: on a reactor, in `block_on`, on a plain thread. Never early, never lost, at no cost while
//! they wait. Cites ids of the list of behaviours (TIM).

use std::future::{pending, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use epoxide::{Connection, block_on, spawn_local, time};
use epoxide_tests_e2e::{Case, Peer, Rng, Server, block_within, http_ok, loopback, wait_until};

const SOON: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// The process-wide timer thread stays once it runs: it must be part of the baseline that a case compares with.
fn case_with_timer_thread() -> Case {
    assert!(block_within(time::sleep(MS), SOON).is_some());
    Case::start()
}

/// Runs `make` on a server's reactor and gives its result back.
fn on_reactor<T: Send + 'static, F: Future<Output = T> + 'static>(
    server: &Server,
    make: impl FnOnce() -> F + Send + 'static,
) -> T {
    let task = server.reactor().spawn_with(make).expect("the reactor takes a task");
    block_within(task, SOON).expect("the task ends").expect("the task neither panics nor is aborted")
}

fn idle_server(case: &Case) -> Server {
    Server::start(case, |_| {})
}

/// The last task is gone when its result is; the gauge says so a pass later.
fn finish(server: Server) {
    assert!(wait_until(SOON, || server.stats().tasks == 0), "{} tasks are left", server.stats().tasks);
    drop(server);
}

/// TIM-01, TIM-03: waits of a handler, one after another, on one connection.
#[test]
fn a_handler_waits_at_least_as_long_as_it_asked_for() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(_) = connection.read().await? else { return Ok(()) };
            let begun = Instant::now();
            time::sleep(50 * MS).await;
            let first = begun.elapsed() >= 50 * MS;
            let mut ticks = time::interval_at(Instant::now() + 10 * MS, 10 * MS);
            let begun = Instant::now();
            for _ in 0..5 {
                ticks.tick().await;
                connection.send_all(b"10").await?;
            }
            let all = begun.elapsed() >= 50 * MS;
            connection.send_all(if first && all { b"ok" } else { b"early" }).await
        });
    });
    let mut peer = Peer::connect(server.addr());
    let begun = Instant::now();
    peer.send(b"?").unwrap();
    assert_eq!(peer.read_to_end(SOON).0, b"1010101010ok");
    assert!(begun.elapsed() >= 100 * MS);
}

/// TIM-02: what ran out says so, and is told from what was done in time.
#[test]
fn a_timeout_says_that_it_ran_out() {
    let case = Case::start();
    let server = idle_server(&case);
    let (elapsed, in_time) = on_reactor(&server, || async {
        let elapsed = time::timeout(5 * MS, pending::<()>()).await.expect_err("never ready");
        (elapsed, time::timeout(HOUR, async { 7 }).await)
    });
    assert_eq!(elapsed.after(), 5 * MS);
    let error = io::Error::from(elapsed);
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().contains("5ms"), "{error}");
    assert_eq!(in_time, Ok(7));
    finish(server);
}

/// TIM-05, TIM-06: a burst of waits armed in one pass beside a longer one, below and above any table's first size.
#[test]
fn a_burst_of_waits_in_one_pass_keeps_every_deadline() {
    let case = Case::start();
    let server = idle_server(&case);
    for burst in [1000, 1100] {
        let (first, expired, early) = on_reactor(&server, move || async move {
            let begun = Instant::now();
            let mut longer = time::sleep(20 * MS);
            // Armed first.
            let pending = poll_fn(|cx| Poll::Ready(Pin::new(&mut longer).poll(cx).is_pending())).await;
            assert!(pending);
            let waits: Vec<_> = (0..burst)
                .map(|_| {
                    spawn_local(async {
                        let wait = time::sleep(MS);
                        let deadline = wait.deadline();
                        wait.await;
                        Instant::now() < deadline
                    })
                })
                .collect();
            longer.await;
            let first = begun.elapsed();
            let (mut expired, mut early) = (0, 0);
            for wait in waits {
                expired += 1;
                early += usize::from(wait.await.expect("a wait ends"));
            }
            (first, expired, early)
        });
        assert!(first >= 20 * MS, "the longer one was early: {first:?}");
        assert_eq!((expired, early), (burst, 0));
    }
    finish(server);
}

/// A reactor that sleeps with nothing to do is woken by a wait that another thread gives it.
#[test]
fn a_wait_from_another_thread_wakes_a_sleeping_reactor() {
    let case = Case::start();
    let server = idle_server(&case);
    for i in 0..50 {
        // Asleep: no pass while we look.
        let mut passes = server.stats().passes;
        assert!(wait_until(SOON, || std::mem::replace(&mut passes, server.stats().passes) == passes));
        let begun = Instant::now();
        let task = server.reactor().spawn(time::sleep(3 * MS)).expect("the reactor takes a task");
        assert!(matches!(block_within(task, SOON), Some(Ok(()))), "wait {i} was lost");
        assert!(begun.elapsed() >= 3 * MS);
    }
    finish(server);
}

/// A wait that is armed far away and moved nearer by ANOTHER thread: the reactor sleeps until the old time and must be
/// told.
#[test]
fn moving_a_deadline_nearer_from_another_thread_wakes_the_reactor() {
    let case = Case::start();
    let server = idle_server(&case);
    for i in 0..50_u32 {
        let wait = Arc::new(Mutex::new(time::sleep(HOUR)));
        let (armed, is_armed) = channel();
        let shared = Arc::clone(&wait);
        let task = server.reactor().spawn(poll_fn(move |cx| {
            let polled = Pin::new(&mut *shared.lock().expect("no holder panics")).poll(cx);
            let _ = armed.send(());
            polled
        }));
        is_armed.recv_timeout(SOON).unwrap();
        if i % 2 == 0 {
            let mut passes = server.stats().passes;
            assert!(wait_until(SOON, || std::mem::replace(&mut passes, server.stats().passes) == passes));
        }
        let near = Instant::now() + 2 * MS;
        wait.lock().unwrap().reset(near);
        let joined = block_within(task.expect("the reactor takes a task"), SOON);
        assert!(matches!(joined, Some(Ok(()))), "move {i} was lost");
        assert!(Instant::now() >= near);
    }
    finish(server);
}

/// The acceptance figure, end to end: 100 000 tasks whose deadlines fall within one second.
#[test]
fn of_100_000_waits_within_a_second_none_is_early_and_none_is_lost() {
    const WAITS: usize = 100_000;
    let case = Case::start();
    let server = idle_server(&case);
    let (done, early, late) = (counter(), counter(), Arc::new(Mutex::new(Duration::ZERO)));
    let counted = (Arc::clone(&done), Arc::clone(&early), Arc::clone(&late));
    on_reactor(&server, move || async move {
        let mut rng = Rng::new(11);
        let begun = Instant::now() + 500 * MS;
        for _ in 0..WAITS {
            let deadline = begun + Duration::from_micros(rng.below(1_000_000));
            let (done, early, late) = counted.clone();
            drop(spawn_local(async move {
                time::sleep_until(deadline).await;
                let now = Instant::now();
                early.fetch_add(usize::from(now < deadline), Ordering::Relaxed);
                let mut late = late.lock().expect("no holder panics");
                *late = (*late).max(now.saturating_duration_since(deadline));
                done.fetch_add(1, Ordering::Relaxed);
            }));
        }
    });
    assert!(wait_until(Duration::from_secs(60), || done.load(Ordering::Relaxed) == WAITS), "{done:?} of {WAITS}");
    assert_eq!(early.load(Ordering::Relaxed), 0, "early");
    println!("the latest of {WAITS} was {:?} late", late.lock().unwrap());
    finish(server);
}

fn counter() -> Arc<AtomicUsize> {
    Arc::new(AtomicUsize::new(0))
}

/// The longest waits are legal everywhere, and order is kept: they never end before a shorter one.
#[test]
fn the_longest_wait_is_legal_everywhere() {
    let case = case_with_timer_thread();
    let server = idle_server(&case);
    let outcome = on_reactor(&server, || async {
        let forever = spawn_local(time::sleep(Duration::MAX));
        let long = time::timeout(Duration::MAX, time::sleep(5 * MS)).await;
        let mut ticks = time::interval_at(Instant::now(), Duration::MAX);
        ticks.tick().await;
        let second = time::timeout(5 * MS, ticks.tick()).await;
        (long.is_ok(), second.is_err(), forever.is_finished())
    });
    assert_eq!(outcome, (true, true, false));
    assert!(block_within(time::sleep(Duration::MAX), 20 * MS).is_none());
    assert!(block_on(time::timeout(5 * MS, time::sleep(Duration::MAX))).is_err());
    server.stop(Duration::from_secs(5)).unwrap();
}

/// The same future works inside `block_on`, on a thread with no runtime at all, and on a reactor.
#[test]
fn a_sleep_works_wherever_it_is_polled() {
    let case = case_with_timer_thread();
    let server = idle_server(&case);
    let wait = 15 * MS;
    let begun = Instant::now();
    block_on(time::sleep(wait));
    assert!(begun.elapsed() >= wait, "block_on: early");
    let begun = Instant::now();
    assert!(block_within(time::sleep(wait), SOON).is_some(), "a plain thread: lost");
    assert!(begun.elapsed() >= wait, "a plain thread: early");
    let taken = on_reactor(&server, move || async move {
        let begun = Instant::now();
        time::sleep(wait).await;
        begun.elapsed()
    });
    assert!(taken >= wait, "a reactor: early");
    // Begun on the reactor, and ended by a thread that polls it on.
    let mut sleep = time::sleep(50 * MS);
    let deadline = sleep.deadline();
    let moved = server.reactor().run_here(move || {
        let pending = Pin::new(&mut sleep).poll(&mut Context::from_waker(Waker::noop())).is_pending();
        (sleep, pending)
    });
    let (sleep, pending) = block_within(moved.expect("it is taken"), SOON).unwrap().expect("it runs");
    assert!(pending, "vacuity: it was over before it moved");
    assert!(block_within(sleep, SOON).is_some(), "moved to a plain thread: lost");
    assert!(Instant::now() >= deadline);
    finish(server);
}

/// Dropping a wait forgets it: nobody is woken, and the reactor does not wake for it.
#[test]
fn a_cancelled_wait_wakes_nobody() {
    let case = Case::start();
    let server = idle_server(&case);
    let polls = counter();
    let counted = Arc::clone(&polls);
    on_reactor(&server, move || async move {
        let mut waits: Vec<_> = (0..1000).map(|i| time::sleep(50 * MS + i * MS / 4)).collect();
        let mut dropped = false;
        let watch = poll_fn(move |cx| {
            counted.fetch_add(1, Ordering::Relaxed);
            if !dropped {
                dropped = true;
                waits.iter_mut().for_each(|wait| assert!(Pin::new(wait).poll(cx).is_pending()));
                waits.clear();
            }
            Poll::<()>::Pending
        });
        drop(spawn_local(time::timeout(HOUR, watch)));
    });
    let settled = server.stats();
    // sleep: the time at which they would have fired.
    std::thread::sleep(400 * MS);
    assert_eq!(polls.load(Ordering::Relaxed), 1, "a cancelled wait woke its task");
    assert!(server.stats().passes - settled.passes < 5, "the reactor woke for cancelled waits");
    server.stop(Duration::from_secs(5)).unwrap();
}

/// A thousand waits that are an hour away, and one interval of a second, cost nothing.
#[test]
fn far_waits_cost_no_cpu() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    on_reactor(&server, || async {
        for i in 0..1000 {
            drop(spawn_local(time::sleep(HOUR + i * MS)));
        }
    });
    let (mut cpu, before) = (server.reactor_cpu(), server.stats().passes);
    let share = cpu.share_over(Duration::from_secs(2)).unwrap();
    let passes = server.stats().passes - before;
    assert!(share <= 0.03, "{share:.3} of a core while everything waits");
    // The reading of the clock itself posts once; the wheel may look when a deadline moves down a level.
    assert!(passes < 20, "{passes} passes in two idle seconds");
    server.stop(Duration::from_secs(5)).unwrap();
}

/// An interval keeps its schedule however late its ticks are taken, and its policy says what becomes of missed ones.
#[test]
fn an_interval_keeps_its_schedule() {
    let case = Case::start();
    let server = idle_server(&case);
    let (ticks, begun) = on_reactor(&server, || async {
        let begun = Instant::now();
        let mut interval = time::interval_at(begun, 10 * MS);
        let mut ticks = vec![interval.tick().await];
        time::sleep(35 * MS).await;
        for _ in 0..4 {
            ticks.push(interval.tick().await);
        }
        interval.set_missed_tick(time::MissedTick::Skip);
        time::sleep(35 * MS).await;
        for _ in 0..2 {
            ticks.push(interval.tick().await);
        }
        (ticks, begun)
    });
    for (i, tick) in ticks[..5].iter().enumerate() {
        assert_eq!(*tick, begun + 10 * MS * i as u32, "tick {i}");
    }
    // Skipped ones are left out: the last two are multiples of the period all the same, and not next to tick 5.
    let of = |tick: Instant| (tick - begun).as_millis();
    assert_eq!((of(ticks[5]) % 10, of(ticks[6]) % 10), (0, 0));
    assert!(of(ticks[6]) > of(ticks[5]) + 10, "no tick was skipped: {:?}", (of(ticks[5]), of(ticks[6])));
    finish(server);
}

/// What is done at each tick takes longer than the period, so that a tick is always due: other tasks get their turns all
/// the same, whatever becomes of missed ticks.
#[test]
fn an_interval_that_cannot_catch_up_starves_nobody() {
    let case = Case::start();
    let server = idle_server(&case);
    for missed in [time::MissedTick::Burst, time::MissedTick::Delay, time::MissedTick::Skip] {
        let (ticks, over) = on_reactor(&server, move || async move {
            let over = Arc::new(AtomicBool::new(false));
            let told = over.clone();
            let busy = spawn_local(async move {
                let mut interval = time::interval(Duration::from_nanos(1));
                interval.set_missed_tick(missed);
                let (mut ticks, begun) = (0_u64, Instant::now());
                while !told.load(Ordering::Relaxed) && begun.elapsed() < SOON {
                    interval.tick().await;
                    ticks += 1;
                }
                (ticks, told.load(Ordering::Relaxed))
            });
            epoxide::yield_now().await;
            over.store(true, Ordering::Relaxed);
            busy.await.expect("it ends")
        });
        assert!(over, "nobody else ran for {SOON:?} and {ticks} ticks");
        assert!(ticks <= 1000, "{ticks} ticks before another task had its turn");
    }
    finish(server);
}

/// A reactor that had no timer has not looked at the clock for as long as it likes. A deadline that has passed is ready at
/// the first poll all the same, also beside one that is far away.
#[test]
fn a_deadline_in_the_past_is_ready_at_once_after_an_idle_time() {
    let case = Case::start();
    let server = idle_server(&case);
    // sleep: a second is what a sleep takes for far ahead.
    std::thread::sleep(1500 * MS);
    let ready = on_reactor(&server, || {
        poll_fn(|cx| {
            let mut far = time::sleep(HOUR);
            let armed = Pin::new(&mut far).poll(cx).is_pending();
            Poll::Ready(armed && Pin::new(&mut time::sleep(Duration::ZERO)).poll(cx).is_ready())
        })
    });
    assert!(ready, "a sleep of no time waited");
    finish(server);
}
