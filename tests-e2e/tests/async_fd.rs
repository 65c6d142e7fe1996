//! `AsyncFd`: pipes, eventfds and sockets of all kinds, waited for from any thread.

use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use epoxide::AsyncFd;
use epoxide_tests_e2e::{Case, Parker, Server, block_within, hold_reactor, our_fds, poll_once, wait_until};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

const SOON: Duration = Duration::from_secs(10);

fn nonblocking_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    (reader, writer)
}

fn server(case: &Case) -> Server {
    Server::start(case, |_| {})
}

/// Every byte arrives, on the reactor, however reads and writes interleave.
#[test]
fn a_pipe_is_read_and_written_on_a_reactor() {
    let case = Case::start();
    let server = server(&case);
    let (reader, writer) = nonblocking_pipe();
    let body = epoxide_tests_e2e::pattern(1_000_000);
    let expected = body.clone();
    let writing = server.reactor().spawn(async move {
        let writer = AsyncFd::new(writer)?;
        let mut rest = &body[..];
        while !rest.is_empty() {
            let n = writer.write_with(|mut pipe| pipe.write(rest)).await?;
            rest = &rest[n..];
        }
        io::Result::Ok(())
    });
    let reading = server.reactor().spawn(async move {
        let reader = AsyncFd::new(reader)?;
        let (mut all, mut chunk) = (Vec::new(), [0; 7000]);
        loop {
            match reader.read_with(|mut pipe| pipe.read(&mut chunk)).await? {
                0 => return io::Result::Ok(all),
                n => all.extend_from_slice(&chunk[..n]),
            }
        }
    });
    block_within(writing.unwrap(), SOON).unwrap().unwrap().unwrap();
    assert!(block_within(reading.unwrap(), SOON).unwrap().unwrap().unwrap() == expected);
}

/// Two threads that are no reactor's wait for the two ends.
#[test]
fn any_thread_may_wait() {
    let case = Case::start();
    let server = server(&case);
    let (reader, writer) = nonblocking_pipe();
    let reader = AsyncFd::new_on(&server.reactor(), reader).unwrap();
    let writer = AsyncFd::new_on(&server.reactor(), writer).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..2000_u32 {
                let sent = block_within(writer.write_with(|mut pipe| pipe.write(&i.to_ne_bytes())), SOON);
                assert_eq!(sent.expect("writable").unwrap(), 4);
            }
        });
        for i in 0..2000_u32 {
            let mut got = [0; 4];
            let read = block_within(reader.read_with(|mut pipe| pipe.read(&mut got)), SOON);
            assert_eq!((read.expect("readable").unwrap(), u32::from_ne_bytes(got)), (4, i));
        }
    });
}

#[test]
fn every_waiter_of_one_descriptor_is_woken() {
    let case = Case::start();
    let server = server(&case);
    let event = AsyncFd::new_on(&server.reactor(), EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| block_within(event.readable(), SOON).expect("woken").map(drop).unwrap()))
            .collect();
        event.get_ref().write(1).unwrap();
        for thread in waiting {
            thread.join().unwrap();
        }
    });
    // Ready until somebody finds nothing.
    let mut guard = block_within(event.readable(), SOON).unwrap().unwrap();
    assert!(matches!(guard.try_io(|e| e.read().map_err(io::Error::from)), Ok(Ok(1))));
    assert!(guard.try_io(|e| e.read().map_err(io::Error::from)).is_err());
    let parker = Parker::new();
    let mut again = pin!(event.readable());
    assert!(poll_once(again.as_mut(), &parker).is_pending());
    event.get_ref().write(1).unwrap();
    assert!(block_within(again, SOON).expect("the next edge").is_ok());
}

/// The poll form remembers the last waker only; a dropped wait forgets its own.
#[test]
fn a_wait_that_is_gone_wakes_nobody() {
    let case = Case::start();
    let server = server(&case);
    let event = AsyncFd::new_on(&server.reactor(), EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap()).unwrap();
    let (gone, replaced, last) = (Parker::new(), Parker::new(), Parker::new());
    {
        let mut wait = pin!(event.readable());
        assert!(poll_once(wait.as_mut(), &gone).is_pending());
    }
    for parker in [&replaced, &last] {
        let waker = std::task::Waker::from(parker.clone());
        assert!(event.poll_readable(&mut std::task::Context::from_waker(&waker)).is_pending());
    }
    event.get_ref().write(1).unwrap();
    assert!(last.park_past(0, std::time::Instant::now() + SOON), "the last one is woken");
    assert_eq!((gone.wakes(), replaced.wakes()), (0, 0));
}

#[test]
fn the_other_end_s_close_is_readiness() {
    let case = Case::start();
    let server = server(&case);
    let (reader, writer) = nonblocking_pipe();
    let reader = AsyncFd::new_on(&server.reactor(), reader).unwrap();
    let parker = Parker::new();
    let mut wait = pin!(reader.readable());
    assert!(poll_once(wait.as_mut(), &parker).is_pending());
    drop(writer);
    assert!(block_within(wait, SOON).expect("woken").is_ok());
    assert_eq!(block_within(reader.read_with(|mut pipe| pipe.read(&mut [0; 8])), SOON).unwrap().unwrap(), 0);
}

/// epoll(7) takes no regular files: EPERM, at the first wait.
#[test]
fn a_descriptor_that_cannot_be_watched_is_an_error() {
    let case = Case::start();
    let server = server(&case);
    let file = AsyncFd::new_on(&server.reactor(), std::fs::File::open("/proc/self/exe").unwrap()).unwrap();
    for _ in 0..2 {
        let error = block_within(file.readable(), SOON).expect("settles").expect_err("a regular file");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    }
    assert!(AsyncFd::new(file.into_inner()).is_err_and(|e| e.kind() == ErrorKind::NotConnected));
}

#[test]
fn a_stop_settles_waits_and_later_ones() {
    let case = Case::start();
    let server = server(&case);
    let reactor = server.reactor();
    let (reader, _writer) = nonblocking_pipe();
    let reader = AsyncFd::new_on(&reactor, reader).unwrap();
    let parker = Parker::new();
    let mut wait = pin!(reader.readable());
    assert!(poll_once(wait.as_mut(), &parker).is_pending());
    server.stop(SOON).unwrap();
    for error in [block_within(wait, SOON), block_within(reader.writable(), SOON)] {
        let error = error.expect("settles").expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    }
    let (late, _end) = nonblocking_pipe();
    assert_eq!(AsyncFd::new_on(&reactor, late).expect_err("stopped").kind(), ErrorKind::ConnectionAborted);
}

/// Dropped before the reactor has heard of it: its duplicate closes all the same.
#[test]
fn a_watch_that_ends_before_it_began_leaves_nothing() {
    let case = Case::start();
    let server = server(&case);
    let count = || our_fds("self").unwrap().len();
    let before = count();
    let held = hold_reactor(&server.reactor());
    for _ in 0..10 {
        drop(AsyncFd::new_on(&server.reactor(), EventFd::new().unwrap()).unwrap());
    }
    assert_eq!(count(), before + 10, "vacuity: the reactor still has to see them");
    held.release();
    assert!(wait_until(SOON, || count() == before), "{} descriptors, {before} before", count());
}

/// Watched and given back a thousand times: the descriptor stays open, its number is the user's, and no event of an
/// earlier watch reaches a later one.
#[test]
fn a_watch_ends_without_touching_the_descriptor() {
    let case = Case::start();
    let server = server(&case);
    let mut event = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
    let number = std::os::fd::AsFd::as_fd(&event).as_raw_fd();
    for round in 0..1000_u64 {
        let watched = AsyncFd::new_on(&server.reactor(), event).unwrap();
        if round % 3 == 0 {
            watched.get_ref().write(1).unwrap();
            let value = block_within(watched.read_with(|e| e.read().map_err(io::Error::from)), SOON);
            assert_eq!(value.expect("readable").unwrap(), 1);
        }
        event = watched.into_inner();
    }
    assert_eq!(std::os::fd::AsFd::as_fd(&event).as_raw_fd(), number);
    event.write(5).unwrap();
    assert_eq!(event.read().unwrap(), 5);
}

/// The poll forms, one for each side: a full pipe is not writable until the other end reads.
#[test]
fn a_full_pipe_waits_in_the_poll_form() {
    let case = Case::start();
    let server = server(&case);
    let (mut reader, writer) = nonblocking_pipe();
    let mut writer = AsyncFd::new_on(&server.reactor(), writer).unwrap();
    let number = writer.get_mut().as_raw_fd();
    assert_eq!(std::os::fd::AsFd::as_fd(&writer).as_raw_fd(), number);
    let parker = Parker::new();
    let waker = std::task::Waker::from(parker.clone());
    let mut cx = Context::from_waker(&waker);
    let mut filled = 0;
    let seen = loop {
        let seen = parker.wakes();
        match writer.poll_writable(&mut cx) {
            Poll::Ready(guard) => match guard.unwrap().try_io(|mut pipe| pipe.write(&[7; 4096])) {
                Ok(n) => filled += n.unwrap(),
                Err(over) => assert_eq!(over.to_string(), "the descriptor is not ready any more"),
            },
            // Before its reactor has looked, or full.
            Poll::Pending if filled == 0 => assert!(parker.park_past(seen, Instant::now() + SOON), "it is writable"),
            Poll::Pending => break seen,
        }
    };
    assert_eq!(reader.read(&mut vec![0; filled]).unwrap(), filled);
    assert!(parker.park_past(seen, Instant::now() + SOON), "room is an edge");
    assert!(writer.poll_writable(&mut cx).is_ready());
}
