//! A thousand starts and stops: descriptors and threads come back, and a reactor that has ended leaves next to no memory.
//!
//! Memory is what the kernel says this process holds in anonymous pages, from after a warm-up on; the control shows that
//! a leak of four times the bound would be seen.

use std::fs;
use std::mem::ManuallyDrop;
use std::net::TcpStream;
use std::time::Duration;

use epoxide::{Runtime, block_on, spawn_local, time};
use epoxide_tests_e2e::{Case, Http, http_ok, loopback, wait_until};

/// The first rounds fill what stays: allocator arenas, stacks kept for the next thread, the buffer pools.
const WARM_UP: usize = 300;
const ROUNDS: usize = 1000;
/// Bytes that may stay for each reactor ever started.
const BOUND: usize = 1024;

/// Anonymous memory of this process, in bytes.
fn held() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("Linux 4.5 or newer");
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Bytes that a round leaves behind, on average over [`ROUNDS`] of them after a warm-up.
fn left_by_a_round(rounds: usize, mut round: impl FnMut(usize)) -> usize {
    (0..WARM_UP).for_each(&mut round);
    let before = held();
    (0..rounds).for_each(round);
    held().saturating_sub(before) / rounds
}

/// One life of a runtime: a listener, a served request, a task and a timer that are left behind.
fn life() {
    let mut builder = Runtime::builder();
    builder.reactors(1).listen(loopback(), http_ok);
    let runtime = builder.build().unwrap();
    assert_eq!(Http::connect(runtime.local_addrs()[0]).get().map(|r| r.status), Ok(200));
    let left = runtime.handle().spawn(time::sleep(Duration::from_secs(3600))).unwrap();
    drop(runtime);
    assert!(left.is_finished());
}

#[test]
fn a_thousand_starts_and_stops_leave_nothing() {
    let case = Case::start();
    let left = left_by_a_round(ROUNDS, |round| {
        life();
        if round % 100 == 99 {
            // A thread that was joined is listed by the kernel for a moment more.
            let nothing = wait_until(Duration::from_secs(10), || case.leaked().is_empty());
            assert!(nothing, "after {round} rounds: {:?}", case.leaked());
        }
    });
    println!("{left} bytes a reactor");
    assert!(left <= BOUND, "{left} bytes are left for each reactor ever started");
}

/// The same with the reactors of `block_on`, all on one thread.
#[test]
fn a_thousand_temporary_reactors_leave_nothing() {
    let case = Case::start();
    let left = left_by_a_round(ROUNDS, |_| {
        let value = block_on(async {
            spawn_local(time::sleep(Duration::from_secs(3600))).detach();
            spawn_local(async { 7 }).await
        });
        assert_eq!(value.ok(), Some(7));
    });
    println!("{left} bytes a reactor");
    assert!(left <= BOUND, "{left} bytes are left for each reactor ever started");
    assert!(case.leaked().is_empty(), "{:?}", case.leaked());
}

/// Control: a leak that is over the bound is seen, and so is a runtime that still runs.
#[test]
fn control_a_leak_is_seen() {
    let case = Case::start();
    let left = left_by_a_round(ROUNDS, |_| {
        life();
        let _leaked = ManuallyDrop::new(vec![1_u8; 4 * BOUND]);
    });
    assert!(left > 3 * BOUND, "4096 bytes were leaked a round, and {left} seen");
    let mut builder = Runtime::builder();
    builder.reactors(1).listen(loopback(), http_ok);
    let runtime = builder.build().unwrap();
    let open = TcpStream::connect(runtime.local_addrs()[0]).unwrap();
    let seen = case.leaked().join("; ");
    assert!(seen.contains("epoxide-0") && seen.contains("descriptor"), "{seen}");
    drop((open, runtime));
}
