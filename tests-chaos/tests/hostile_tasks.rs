//! Users that are hostile without meaning to: tasks that never rest, wakers that outlive their tasks, handles awaited
//! from a runtime that goes on when theirs has gone, owners that unwind. No fault seam here.

use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use epoxide::{JoinError, Runtime, yield_now};
use epoxide_tests_e2e::{
    Case, Gate, Http, Server, block_within, http_ok, loopback, provoke_panic, resident_bytes, wait_until,
};

const SOON: Duration = Duration::from_secs(20);

/// Field bugs 57 and 59 (monoio#322, monoio#3): tasks that are always ready starve neither each other nor the sockets.
#[test]
fn tasks_that_never_rest_starve_nobody() {
    static TURNS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
    static OVER: AtomicBool = AtomicBool::new(false);
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    for turns in &TURNS {
        let busy = async move {
            while !OVER.load(Ordering::Relaxed) {
                turns.fetch_add(1, Ordering::Relaxed);
                yield_now().await;
            }
        };
        server.reactor().spawn(busy).expect("the reactor runs").detach();
    }
    // Counted from when all are under way: the first may have been alone for long.
    let counts = || TURNS.each_ref().map(|turns| turns.load(Ordering::Relaxed));
    assert!(wait_until(SOON, || counts().iter().all(|turns| *turns > 0)));
    let before = counts();
    let mut client = Http::connect(server.addr());
    for request in 0..200 {
        assert_eq!(client.get().map(|r| r.status), Ok(200), "request {request} beside tasks that never rest");
    }
    let after = counts();
    let turns: [u64; 4] = std::array::from_fn(|i| after[i] - before[i]);
    OVER.store(true, Ordering::Relaxed);
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(*least > 100 && most - least <= most / 10 + 1100, "turns of four equal tasks: {turns:?}");
}

/// Field bug 53 (glommio#404): a foreign waker that is dropped after its task has gone frees what it held. 40 bytes a
/// task would show as 8 MB.
#[test]
fn late_drops_of_foreign_wakers_leak_no_task() {
    static WAKERS: Mutex<Vec<Waker>> = Mutex::new(Vec::new());
    let case = Case::start();
    let server = Server::start(&case, |_| ());
    let batch = || {
        let made = server.reactor().spawn_with(|| async {
            for _ in 0..1000 {
                let mut polled = false;
                let task = epoxide::spawn_local(poll_fn(move |cx| {
                    if polled {
                        return Poll::Ready(());
                    }
                    polled = true;
                    WAKERS.lock().unwrap().push(cx.waker().clone());
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }));
                assert_eq!(task.await.ok(), Some(()));
            }
        });
        block_within(made.expect("the reactor runs"), SOON).expect("the tasks end").unwrap();
        let wakers = std::mem::take(&mut *WAKERS.lock().unwrap());
        assert_eq!(wakers.len(), 1000);
        // On this thread, after their tasks have gone; some wake what is no more.
        for (i, waker) in wakers.into_iter().enumerate() {
            if i % 2 == 0 {
                waker.wake();
            }
        }
    };
    (0..20).for_each(|_| batch());
    let before = resident_bytes().unwrap();
    (0..200).for_each(|_| batch());
    let grown = resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < 4 << 20, "200 000 tasks left {grown} bytes");
}

/// Field bug 50 (monoio#241): a handle that a second runtime awaits settles when its own runtime ends.
#[test]
fn a_handle_awaited_by_another_runtime_settles_when_its_own_ends() {
    let case = Case::start();
    let (dying, living) = (Server::start(&case, |_| ()), Server::start(&case, |_| ()));
    let on_reactor = dying.reactor().spawn(std::future::pending::<()>()).expect("the reactor runs");
    let on_pool = dying.reactor().workers().spawn(std::future::pending::<()>()).expect("the pool runs");
    let waits = living.reactor().spawn(async move { (on_reactor.await, on_pool.await) }).expect("the reactor runs");
    assert!(wait_until(SOON, || dying.stats().tasks == 1));
    dying.stop(Duration::ZERO).unwrap();
    let (reactor, pool) = block_within(waits, SOON).expect("both settle").unwrap();
    assert!(matches!(reactor, Err(JoinError::Stopped)), "{reactor:?}");
    assert!(matches!(pool, Err(JoinError::Stopped)), "{pool:?}");
}

/// compio#901: a runtime whose owner unwinds, with tasks whose destructors panic meanwhile. One panic comes out, and the
/// process lives.
#[test]
fn a_runtime_that_its_unwinding_owner_drops_aborts_nothing() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            provoke_panic("a drop");
        }
    }
    async fn bombed(gate: Gate) {
        let _bomb = Bomb;
        gate.wait().await;
    }
    let _case = Case::start();
    let ended = std::thread::spawn(|| {
        let runtime = Runtime::builder().reactors(2).build().unwrap();
        let gate = Gate::new();
        for handle in runtime.handles() {
            handle.spawn(bombed(gate.clone())).unwrap().detach();
            handle.workers().spawn(bombed(gate.clone())).unwrap().detach();
        }
        assert!(gate.wait_waiting(4, SOON), "vacuity: nobody holds a bomb");
        provoke_panic("the owner");
        drop(runtime);
    })
    .join();
    let panic = ended.unwrap_err();
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    assert!(text.is_some_and(|text| text.contains("the owner")), "{text:?}");
}
