//! Unit tests of starts and ends that need no socket.

use crate::{PostError, Reactor, Runtime, block_on, spawn_local, time, yield_now};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn block_on_runs_local_tasks_and_timers() {
    let order = Rc::new(Cell::new(0));
    let seen = order.clone();
    let sum = block_on(async move {
        let task = spawn_local(async move {
            yield_now().await;
            time::sleep(Duration::from_millis(5)).await;
            seen.set(1);
            41
        });
        task.await.expect("nothing stops it") + 1
    });
    assert_eq!((sum, order.get()), (42, 1));
}

#[test]
fn a_reactor_that_never_runs_settles_what_it_was_handed() {
    let reactor = Reactor::builder().build().unwrap();
    let handle = reactor.handle();
    let dropped = Arc::new(AtomicUsize::new(0));
    let token = Token(dropped.clone());
    let join = handle.spawn(async move { drop(token) }).unwrap();
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    drop(reactor);
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "the future is dropped");
    assert!(matches!(block_on(join), Err(crate::JoinError::Stopped)));
    let Err(PostError::Stopped(call)) = handle.run_here(|| 7) else { panic!("a stopped reactor took a post") };
    assert_eq!(call(), 7, "the payload comes back");
}

/// So that the compiler does not see through a panic on purpose.
fn false_value() -> bool {
    std::hint::black_box(false)
}

struct Token(Arc<AtomicUsize>);

impl Drop for Token {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_panic_reaches_the_handle_and_the_reactor_goes_on() {
    let runtime = Runtime::builder().reactors(1).build().unwrap();
    let handle = runtime.handle();
    let task = handle.spawn(async { assert!(false_value(), "on purpose") }).unwrap();
    let error = runtime.block_on(task).unwrap_err();
    assert!(error.to_string().contains("on purpose"), "{error}");
    let call = handle.run_here(|| -> u8 { panic!("in a post") }).unwrap();
    assert!(runtime.block_on(call).unwrap_err().to_string().contains("in a post"));
    assert_eq!(runtime.block_on(handle.spawn(async { 5 }).unwrap()).unwrap(), 5);
    assert!(runtime.stats().panics >= 1);
}

#[test]
fn an_aborted_task_is_dropped_on_its_own_thread() {
    struct Where(Arc<std::sync::Mutex<Option<std::thread::ThreadId>>>);
    impl Drop for Where {
        fn drop(&mut self) {
            *self.0.lock().unwrap() = Some(std::thread::current().id());
        }
    }
    let runtime = Runtime::builder().reactors(1).build().unwrap();
    let handle = runtime.handle();
    let home = runtime.block_on(handle.run_here(|| std::thread::current().id()).unwrap()).unwrap();
    let place = Arc::new(std::sync::Mutex::new(None));
    let token = Where(place.clone());
    let task = handle
        .spawn_with(move || async move {
            let _not_send = Rc::new(());
            let _token = token;
            std::future::pending::<()>().await;
        })
        .unwrap();
    task.abort();
    assert!(matches!(runtime.block_on(task), Err(crate::JoinError::Aborted)));
    assert_eq!(*place.lock().unwrap(), Some(home));
}

#[test]
fn a_runtime_may_be_dropped_inside_its_own_task() {
    let runtime = Runtime::builder().reactors(1).build().unwrap();
    let handle = runtime.handle();
    let task = handle.spawn(async move { drop(runtime) }).unwrap();
    // Either the task finished before the reactor saw the stop, or it was dropped by it.
    let _ = block_on(task);
    while !handle.is_stopped() {
        std::thread::yield_now();
    }
}

#[test]
fn what_would_wait_for_itself_is_refused() {
    let runtime = Runtime::builder().reactors(1).build().unwrap();
    let handle = runtime.handle();
    let call = handle.run_here(|| block_on(async {})).unwrap();
    let error = runtime.block_on(call).unwrap_err();
    assert!(error.to_string().contains("block_on was called on a reactor thread"), "{error}");
}

#[test]
fn waking_a_task_of_a_reactor_that_is_gone_is_harmless() {
    let (send, receive) = std::sync::mpsc::channel();
    let runtime = Runtime::builder().reactors(1).build().unwrap();
    let task = runtime
        .handle()
        .spawn(std::future::poll_fn(move |cx| {
            send.send(cx.waker().clone()).unwrap();
            std::task::Poll::<()>::Pending
        }))
        .unwrap();
    let waker = receive.recv().unwrap();
    drop(runtime);
    waker.wake_by_ref();
    waker.wake();
    assert!(matches!(block_on(task), Err(crate::JoinError::Stopped)));
}

#[test]
fn stopping_a_temporary_reactor_does_not_make_it_spin() {
    let passes = block_on(async {
        let handle = crate::ReactorHandle::current().expect("block_on runs a reactor");
        handle.stop();
        let before = handle.stats().passes;
        time::sleep(Duration::from_millis(50)).await;
        handle.stats().passes - before
    });
    assert!(passes < 20, "{passes} passes in 50 ms of sleep");
}

#[test]
fn a_builder_builds_once() {
    let mut builder = Runtime::builder();
    builder.reactors(1);
    assert!(builder.build().is_ok());
    let again = builder.build().unwrap_err();
    assert!(again.to_string().contains("built already"), "{again}");
}

#[test]
fn a_drain_keeps_its_deadline_when_nobody_waits_for_it() {
    let runtime = Runtime::builder().reactors(2).build().unwrap();
    // The asking task's own reactor is drained at once; the other one is kept busy and must be cut all the same.
    let [first, second] = &runtime.handles()[..] else { panic!("two reactors") };
    let busy = second.spawn(std::future::pending::<()>()).unwrap();
    let report = runtime.shutdown(Duration::from_millis(200));
    drop(report);
    let _ = first.spawn(async {});
    assert!(matches!(runtime.block_on(busy), Err(crate::JoinError::Stopped)));
}
