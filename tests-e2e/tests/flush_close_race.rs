//! A flush that is being parked against a close from another thread: whoever comes first, the
//! flush completes. A wake-up lost here is a handler that hangs for ever.

use std::os::fd::{AsFd, AsRawFd};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::Poll;
use std::time::{Duration, Instant};

use epoxide::Connection;
use epoxide_tests_e2e::{Case, Parker, Peer, Rng, block_within, handing_over, pattern, poll_once, rounds, stage};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, send, setsockopt, sockopt};

const HANG: Duration = Duration::from_secs(5);

/// Fills the socket below the connection, so that its next flush meets EAGAIN at once.
fn fill(connection: &Connection) {
    let fd = connection.as_fd();
    setsockopt(&fd, sockopt::SndBuf, &4096).unwrap();
    let piece = [b'f'; 2048];
    loop {
        match send(fd.as_raw_fd(), &piece, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => {}
            Err(Errno::EAGAIN) => return,
            Err(e) => panic!("the socket does not fill: {e}"),
        }
    }
}

/// Spins, and lets others run when it takes long: this may be the only core.
fn spin_until(mut done: impl FnMut() -> bool) {
    let mut turns = 0_u32;
    while !done() {
        turns += 1;
        if turns.is_multiple_of(1000) { std::thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// CORE-14, translated to the public surface. The flush's head start follows the outcome of the
/// last round, so that the two stay neck and neck on a fast machine and on a busy one. Vacuity:
/// both orders really happened, close before the flush looked and close while or after it armed.
#[test]
fn a_reset_while_a_flush_parks_always_completes_the_flush() {
    let case = Case::start_rounds();
    let (server, accepted) = handing_over(&case, |_| {});
    let (mut refused, mut woken, mut delay) = (0, 0, 0_u32);
    let (mut taken_before, mut roomy) = (0, 0);
    let mut rng = Rng::new(14);
    let turn = Arc::new(AtomicUsize::new(0));
    let (handles, closers) = channel::<epoxide::CloseHandle>();
    // The closer says that it has its handle, or the flush would always be first.
    let ready = Arc::new(AtomicUsize::new(0));
    let (closer_turn, closer_ready) = (Arc::clone(&turn), Arc::clone(&ready));
    let closer = std::thread::spawn(move || {
        let mut rng = Rng::new(41);
        for (round, handle) in closers.iter().enumerate() {
            closer_ready.store(round + 1, Ordering::Release);
            spin_until(|| closer_turn.load(Ordering::Acquire) > round);
            rng.skew(100);
            handle.reset();
        }
    });
    let parker = Parker::new();
    for round in 0..rounds() {
        let _peer = Peer::connect_stalling(server.addr());
        let mut connection = accepted.recv_timeout(HANG).expect("handed over");
        fill(&connection);
        stage(&mut connection, b"the byte that waits").unwrap();
        handles.send(connection.close_handle()).unwrap();
        spin_until(|| ready.load(Ordering::Acquire) > round);
        let seen = parker.wakes();
        let mut flush = pin!(connection.flush());
        turn.store(round + 1, Ordering::Release);
        rng.skew(100);
        for _ in 0..delay {
            std::hint::spin_loop();
        }
        let first = poll_once(flush.as_mut(), &parker);
        let outcome = match first {
            Poll::Ready(outcome) => {
                refused += 1;
                delay = delay.saturating_sub(1 + delay / 8);
                outcome
            }
            Poll::Pending => {
                woken += 1;
                delay = (delay + 1 + delay / 4).min(1 << 20);
                let mut seen = seen;
                loop {
                    let in_time = parker.park_past(seen, Instant::now() + HANG);
                    assert!(in_time, "round {round}: the flush was never woken");
                    seen = parker.wakes();
                    if let Poll::Ready(outcome) = poll_once(flush.as_mut(), &parker) {
                        break outcome;
                    }
                }
            }
        };
        // On a loaded machine the kernel hands on late what fills the socket, and finds room after all: then the flush
        // was done before the reset, and there is a send that was not refused.
        let taken = server.stats().sends - server.stats().send_eagain;
        let claims = usize::from(outcome.is_ok());
        assert!(claims == 0 || taken > taken_before, "round {round}: a flush that was reset claims success");
        (taken_before, roomy) = (taken, roomy + claims);
    }
    drop(handles);
    closer.join().unwrap();
    println!("close first: {refused}, close while or after arming: {woken}, room after all: {roomy}");
    assert!(roomy * 2 < rounds(), "vacuity: the socket does not fill");
    if std::thread::available_parallelism().is_ok_and(|n| n.get() < 2) {
        println!("one core only: the two sides cannot race, so their order proves nothing");
        return;
    }
    assert!(refused > 0 && woken > 0, "vacuity: only one order happened ({refused}, {woken})");
}

/// The same for a parked read: `close` from any thread ends it.
#[test]
fn a_close_while_a_read_parks_always_completes_the_read() {
    let case = Case::start_rounds();
    let (server, accepted) = handing_over(&case, |_| {});
    let mut rng = Rng::new(15);
    for round in 0..rounds() {
        let peer = Peer::connect(server.addr());
        let mut connection = accepted.recv_timeout(HANG).expect("handed over");
        let handle = connection.close_handle();
        let reset = round % 2 == 0;
        let skew = rng.below(3000);
        let closer = std::thread::spawn(move || {
            for _ in 0..skew {
                std::hint::spin_loop();
            }
            if reset { handle.reset() } else { handle.close() }
        });
        let read = block_within(connection.read(), HANG);
        let read = read.unwrap_or_else(|| panic!("round {round}: the read was never woken"));
        assert!(!matches!(read, Ok(Some(_))), "round {round}: bytes out of nowhere");
        assert_eq!(read.is_err(), reset || read.is_err());
        closer.join().unwrap();
        drop((connection, peer));
    }
}

/// A second close, and a close after everything has gone, do nothing.
#[test]
fn closing_twice_and_too_late_is_harmless() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let mut handles = Vec::new();
    for _ in 0..50 {
        let peer = Peer::connect(server.addr());
        let connection = accepted.recv_timeout(HANG).unwrap();
        let handle = connection.close_handle();
        handle.close();
        handle.close();
        drop((connection, peer));
        handles.push(handle);
    }
    assert!(server.wait_quiet());
    // Descriptor numbers are reused by now: a late close must reach nobody else.
    let mut peer = Peer::connect(server.addr());
    let connection = accepted.recv_timeout(HANG).unwrap();
    for handle in &handles {
        handle.reset();
        handle.close();
    }
    let mut connection = connection;
    stage(&mut connection, b"alive").unwrap();
    assert!(block_within(connection.flush(), HANG).unwrap().is_ok());
    assert_eq!(peer.read_exactly(5, HANG), Ok(b"alive".to_vec()));
}

/// A stop settles a read and a flush that other threads wait in; the connection outlives its
/// reactor harmlessly.
#[test]
fn a_stop_settles_reads_and_flushes_of_other_threads() {
    let case = Case::start();
    for reading in [true, false] {
        let (server, accepted) = handing_over(&case, |_| {});
        let peer = Peer::connect_stalling(server.addr());
        let mut connection = accepted.recv_timeout(HANG).unwrap();
        let (parked, is_parked) = channel();
        let waiter = std::thread::spawn(move || {
            let parker = Parker::new();
            let outcome = if reading {
                let mut read = pin!(connection.read());
                let pending = poll_once(read.as_mut(), &parker).is_pending();
                let _ = parked.send(pending);
                block_within(read, HANG).map(|r| r.map(|_| ()))
            } else {
                stage(&mut connection, &pattern(8 << 20)).unwrap();
                let mut flush = pin!(connection.flush());
                let pending = poll_once(flush.as_mut(), &parker).is_pending();
                let _ = parked.send(pending);
                block_within(flush, HANG)
            };
            // Staging after the stop is no panic, whatever it returns; nor is letting go.
            let _ = stage(&mut connection, b"late");
            drop(connection);
            outcome
        });
        assert_eq!(is_parked.recv_timeout(HANG), Ok(true), "vacuity: it never parked");
        server.stop(Duration::from_millis(200)).unwrap();
        let outcome = waiter.join().unwrap().expect("a stop leaves it hanging");
        assert!(outcome.is_err(), "it claims success (a read: {reading})");
        drop(peer);
    }
}
