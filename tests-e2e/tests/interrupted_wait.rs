//! A wait that a signal interrupts (EINTR) is no event, no error and no end.
//!
//! A process that is stopped and continued sees EINTR from epoll_wait(2) without any handler
//! (signal(7), "Interruption of system calls and library functions by stop signals").

use std::process::Command;
use std::thread;
use std::time::Duration;

use epoxide_tests_e2e::{Case, Http, Server, http_ok, loopback};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};

/// Stops and continues this process from outside.
fn stop_and_continue() {
    let us = std::process::id();
    let script = format!("kill -STOP {us}; sleep 0.05; kill -CONT {us}");
    let done = Command::new("sh").arg("-c").arg(script).status();
    assert!(done.is_ok_and(|s| s.success()), "kill(1) works");
}

/// 3a-12. The control is a bare epoll_wait beside it, which must really see EINTR.
#[test]
fn a_reactor_survives_interrupted_waits() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen(loopback(), http_ok);
    });
    let mut client = Http::connect(server.addr());
    let mut interrupted = 0;
    for _ in 0..10 {
        assert_eq!(client.get().map(|r| r.status), Ok(200));
        let control = thread::spawn(|| {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
            epoll.wait(&mut [EpollEvent::empty()], EpollTimeout::from(1000_u16))
        });
        // sleep: the control has to be inside its wait; one that is not just counts nothing.
        thread::sleep(Duration::from_millis(20));
        stop_and_continue();
        interrupted += usize::from(control.join().unwrap() == Err(Errno::EINTR));
    }
    assert!(interrupted > 0, "vacuity: no wait was ever interrupted");
    assert_eq!(client.get().map(|r| r.status), Ok(200));
    assert_eq!(Http::connect(server.addr()).get().map(|r| r.status), Ok(200));
}
