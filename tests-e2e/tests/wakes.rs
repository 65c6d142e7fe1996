//! Wakes from other threads (laws 7, 8, 9): when a pass serves them, in what order, that none is lost where many come at
//! once, and that what is left of an ended task touches no later one.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

use epoxide::{ReactorHandle, spawn_local, yield_now};
use epoxide_tests_e2e::{Case, Server, block_within};

const SOON: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce() + Send>;

/// Another thread, which does what it is told while the teller waits.
struct Elsewhere {
    jobs: Option<Sender<Job>>,
    done: Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

impl Elsewhere {
    fn start() -> Self {
        let (jobs, todo) = channel::<Job>();
        let (tell, done) = channel();
        let thread = std::thread::spawn(move || {
            for job in todo {
                job();
                let _ = tell.send(());
            }
        });
        Self { jobs: Some(jobs), done, thread: Some(thread) }
    }

    fn does(&self, job: impl FnOnce() + Send + 'static) {
        self.jobs.as_ref().expect("it runs").send(Box::new(job)).expect("it runs");
        self.done.recv().expect("it runs");
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        drop(self.jobs.take());
        self.thread.take().expect("joined once").join().expect("no job panics");
    }
}

/// Runs `main` as a task of a server's reactor.
fn on_a_reactor<F: Future<Output: Send + 'static> + 'static>(
    main: impl FnOnce(ReactorHandle) -> F + Send + 'static,
) -> F::Output {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let reactor = server.reactor();
    let task = reactor.spawn_with({
        let reactor = reactor.clone();
        move || main(reactor)
    });
    let output = block_within(task.expect("it runs"), SOON).expect("it ends").expect("it does not panic");
    server.stop(Duration::from_millis(10)).expect("it stops");
    output
}

/// A parked task's waker, for whoever wakes it; it ends with what `see` gives when it is polled again.
fn parked<T: 'static>(slot: &Rc<RefCell<Option<Waker>>>, see: impl Fn() -> T + 'static) -> epoxide::JoinHandle<T> {
    let slot = Rc::clone(slot);
    let mut is_parked = false;
    spawn_local(poll_fn(move |cx| {
        if is_parked {
            return Poll::Ready(see());
        }
        is_parked = true;
        *slot.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }))
}

async fn waker_in(slot: &RefCell<Option<Waker>>) -> Waker {
    loop {
        if let Some(waker) = slot.borrow_mut().take() {
            return waker;
        }
        yield_now().await;
    }
}

/// A wake that comes from another thread while tasks run is served before the reactor looks at epoll again.
#[test]
fn a_wake_that_comes_during_a_pass_is_served_in_it() {
    let (before, at) = on_a_reactor(|reactor| async move {
        let elsewhere = Elsewhere::start();
        let slot = Rc::default();
        let task = parked(&slot, {
            let reactor = reactor.clone();
            move || reactor.stats().passes
        });
        let waker = waker_in(&slot).await;
        let before = reactor.stats().passes;
        elsewhere.does(move || waker.wake());
        (before, task.await.expect("it ends"))
    });
    assert_eq!(at, before);
}

/// What a thread posts before it wakes a task is run before the task is polled, also during a pass.
#[test]
fn a_post_is_run_before_the_task_that_was_woken_after_it() {
    let seen = on_a_reactor(|reactor| async move {
        let elsewhere = Elsewhere::start();
        let (slot, posted) = (Rc::default(), Arc::new(AtomicBool::new(false)));
        let task = parked(&slot, {
            let posted = Arc::clone(&posted);
            move || posted.load(Ordering::Relaxed)
        });
        let waker = waker_in(&slot).await;
        elsewhere.does(move || {
            reactor.run_here(move || posted.store(true, Ordering::Relaxed)).expect("it runs").detach();
            waker.wake();
        });
        task.await.expect("it ends")
    });
    assert!(seen);
}

/// A task that another thread wakes again during each of its polls is polled many times a pass, but not for ever.
#[test]
fn wakes_without_end_do_not_hold_a_pass() {
    const POLLS: u64 = 512;
    let passes = on_a_reactor(|reactor| async move {
        let elsewhere = Elsewhere::start();
        let (before, mut polls) = (reactor.stats().passes, 0);
        poll_fn(move |cx| {
            polls += 1;
            if polls == POLLS {
                return Poll::Ready(());
            }
            let waker = cx.waker().clone();
            elsewhere.does(move || waker.wake());
            Poll::Pending
        })
        .await;
        reactor.stats().passes - before
    });
    assert!((4..POLLS / 4).contains(&passes), "{POLLS} polls in {passes} passes");
}

/// More wakes at once than there are places for: each task is polled.
#[test]
fn no_wake_of_a_flood_is_lost() {
    const TASKS: usize = 2_000;
    let ended = on_a_reactor(|_| async move {
        let elsewhere = Elsewhere::start();
        for _ in 0..3 {
            let slots: Vec<Rc<RefCell<Option<Waker>>>> = (0..TASKS).map(|_| Rc::default()).collect();
            let tasks: Vec<_> = slots.iter().map(|slot| parked(slot, || ())).collect();
            let mut wakers = Vec::new();
            for slot in &slots {
                wakers.push(waker_in(slot).await);
            }
            elsewhere.does(move || wakers.into_iter().for_each(Waker::wake));
            for task in tasks {
                task.await.expect("it ends");
            }
        }
        TASKS
    });
    assert_eq!(ended, TASKS);
}

/// Tasks follow each other in the same memory. A waker, or an abort, of one that has ended is nothing to the next.
#[test]
fn what_is_left_of_an_ended_task_touches_no_later_one() {
    const LATER: usize = 600;
    on_a_reactor(|_| async move {
        let elsewhere = Elsewhere::start();
        for drops_first in [false, true] {
            // Aborted and woken when they had ended; some let go of before the next tasks are spawned, some kept.
            let mut left = Vec::new();
            for _ in 0..8 {
                let slot = Rc::default();
                let ended = parked(&slot, || ());
                let waker = waker_in(&slot).await;
                let abort = ended.abort_handle();
                waker.wake_by_ref();
                ended.await.expect("it ends");
                left.push((waker, abort));
            }
            let touch = move || {
                for (waker, abort) in &left {
                    abort.abort();
                    waker.wake_by_ref();
                }
                left
            };
            let (give, given) = channel();
            elsewhere.does(move || give.send(touch()).expect("it is waited for"));
            let mut left = given.recv().expect("it was sent");
            if drops_first {
                left.clear();
            }
            let (polls, slots): (Rc<Cell<usize>>, Vec<_>) =
                (Rc::default(), (0..LATER).map(|_| Rc::default()).collect());
            let later: Vec<_> = slots
                .iter()
                .map(|slot| {
                    let polls = Rc::clone(&polls);
                    parked(slot, move || polls.set(polls.get() + 1))
                })
                .collect();
            let mut wakers = Vec::new();
            for slot in &slots {
                wakers.push(waker_in(slot).await);
            }
            elsewhere.does(move || left.iter().for_each(|(_, abort)| abort.abort()));
            yield_now().await;
            assert_eq!(polls.get(), 0, "woken by another task's waker");
            // A first wake that was marked as sent already would never come.
            elsewhere.does(move || wakers.into_iter().for_each(Waker::wake));
            for task in later {
                task.await.expect("aborted by another task's handle");
            }
            assert_eq!(polls.get(), LATER);
        }
    });
}
