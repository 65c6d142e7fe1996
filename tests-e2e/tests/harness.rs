//! The harness against itself: every check that guards the other tests must be able to fail.

use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epoxide::Connection;
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, Server, Watchdog, echo, hold_reactor, loopback, pending, provoke_panic,
};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;

/// These tests leak on purpose, also past the end of their case, so they run one by one.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `test` panicked with; empty when it passed.
fn failure(test: impl FnOnce()) -> String {
    let Err(panic) = catch_unwind(AssertUnwindSafe(test)) else { return String::new() };
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic without a text".into())
}

#[test]
fn a_leaked_descriptor_fails_the_case_and_is_named() {
    let _alone = alone();
    let mut leaked = None;
    let text = failure(|| {
        let _case = Case::start();
        leaked = File::open("/dev/null").ok();
    });
    assert!(leaked.is_some() && text.contains("-> /dev/null"), "{text:?}");
}

#[test]
fn a_leaked_thread_fails_the_case_and_is_named() {
    let _alone = alone();
    let gate = Gate::new();
    let thread_gate = gate.clone();
    let mut leaked = None;
    let text = failure(|| {
        let _case = Case::start();
        let body = move || thread_gate.wait_blocking(Duration::from_secs(60));
        leaked = std::thread::Builder::new().name("left-behind".into()).spawn(body).ok();
    });
    gate.open();
    assert!(text.contains("'left-behind'"), "{text:?}");
    assert!(leaked.is_some_and(|thread| thread.join().unwrap()));
}

#[test]
fn an_unclaimed_panic_in_a_handler_fails_the_test() {
    let _alone = alone();
    let text = failure(|| {
        let case = Case::start();
        let server = Server::start(&case, |b| {
            b.listen(loopback(), |connection: Connection| async move {
                provoke_panic("for the harness");
                drop(connection);
            });
        });
        assert_eq!(Peer::connect(server.addr()).ending(Duration::from_secs(4)), Ending::Reset);
    });
    assert!(text.contains("panics in handlers"), "{text:?}");
}

#[test]
fn a_buffer_that_is_kept_fails_the_case() {
    let _alone = alone();
    let (buffers, kept) = std::sync::mpsc::channel();
    let text = failure(|| {
        let case = Case::start();
        let server = Server::start(&case, |b| {
            b.listen(loopback(), move |mut connection: Connection| {
                let buffers = buffers.clone();
                async move {
                    let _ = buffers.send(connection.read().await?);
                    std::io::Result::Ok(())
                }
            });
        });
        let mut peer = Peer::connect(server.addr());
        peer.send(b"keep me").unwrap();
        assert_eq!(peer.ending(Duration::from_secs(4)), Ending::Eof);
    });
    let buffer = kept.recv().unwrap().expect("a buffer, not the end");
    assert_eq!(&buffer[..], b"keep me", "it outlives its reactor");
    assert!(text.contains("pooled buffers"), "{text:?}");
}

#[test]
fn a_held_reactor_stands_still_until_it_is_released() {
    let _alone = alone();
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let mut peer = Peer::connect(server.addr());
    let held = hold_reactor(&server.reactor());
    peer.send(b"x").unwrap();
    assert_eq!(peer.read_exactly(1, Duration::from_millis(200)), Err(Ending::Timeout));
    held.release();
    assert_eq!(peer.read_exactly(1, Duration::from_secs(4)), Ok(b"x".to_vec()));
}

#[test]
fn a_pending_mark_fails_once_its_defect_is_gone() {
    let _alone = alone();
    assert_eq!(failure(|| pending!("still there", || provoke_panic("a known defect"))), "");
    let text = failure(|| pending!("long repaired", || ()));
    assert!(text.contains("remove its pending mark (long repaired)"), "{text:?}");
}

/// The child of the next test: does nothing unless it is told to hang.
#[test]
fn watchdog_child() {
    if std::env::var_os("EPOXIDE_HANG").is_none() {
        return;
    }
    setrlimit(Resource::RLIMIT_CORE, 0, 0).unwrap();
    let _watchdog = Watchdog::start("the test that hangs", Duration::from_millis(100));
    let _ = Gate::new().wait_blocking(Duration::from_secs(60));
}

#[test]
fn a_test_that_hangs_is_named_and_aborted() {
    let _alone = alone();
    let hung = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "watchdog_child", "--nocapture"])
        .env("EPOXIDE_HANG", "1")
        .output()
        .unwrap();
    assert_eq!(hung.status.signal(), Some(Signal::SIGABRT as i32), "{:?}", hung.status);
    let text = String::from_utf8_lossy(&hung.stderr);
    assert!(text.contains("'the test that hangs'"), "{text:?}");
}
