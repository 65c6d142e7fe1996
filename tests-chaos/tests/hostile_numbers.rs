//! Late uses of a runtime that has ended, while its descriptors' numbers belong to somebody else: nothing is written to them.

use std::future::poll_fn;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::mpsc::channel;
use std::task::{Poll, Waker};
use std::time::Duration;

use epoxide::{Connection, Runtime, block_on};
use epoxide_tests_e2e::{Case, our_fds, tcp_pair};

const SOON: Duration = Duration::from_secs(20);

fn numbers() -> Vec<RawFd> {
    our_fds("self").unwrap().into_iter().map(|(fd, _)| fd).collect()
}

/// Pipes until every number of `wanted` is the writing or the reading end of one.
fn occupy(wanted: &[RawFd]) -> Vec<(PipeReader, PipeWriter)> {
    let mut pipes = Vec::new();
    while !wanted
        .iter()
        .all(|fd| pipes.iter().any(|(r, w): &(PipeReader, PipeWriter)| r.as_raw_fd() == *fd || w.as_raw_fd() == *fd))
    {
        assert!(pipes.len() < 200, "vacuity: {wanted:?} were not had");
        pipes.push(io::pipe().unwrap());
    }
    pipes
}

/// Wakers, handles, close handles, sleeps and joins that outlive their runtime touch no number that it had.
#[test]
fn late_uses_write_to_no_stranger() {
    let _case = Case::start();
    let before = numbers();
    let runtime = Runtime::builder().reactors(2).build().unwrap();
    let own: Vec<RawFd> = numbers().into_iter().filter(|fd| !before.contains(fd)).collect();
    assert!(own.len() >= 4, "vacuity: an epoll and an eventfd of each reactor: {own:?}");
    let handles = runtime.handles();
    let (tell, wakers) = channel::<Waker>();
    let tasks: Vec<_> = handles
        .iter()
        .flat_map(|handle| {
            let (here, there) = (tell.clone(), tell.clone());
            let told = |tell: std::sync::mpsc::Sender<Waker>| {
                poll_fn(move |cx| {
                    tell.send(cx.waker().clone()).unwrap();
                    Poll::<()>::Pending
                })
            };
            [handle.spawn(told(here)).unwrap(), handle.workers().spawn(told(there)).unwrap()]
        })
        .collect();
    let wakers: Vec<Waker> = tasks.iter().map(|_| wakers.recv_timeout(SOON).unwrap()).collect();
    let aborts: Vec<_> = tasks.iter().map(|task| task.abort_handle()).collect();
    let (near, far) = tcp_pair(SOON);
    let connection = Connection::from_std_on(&handles[0], near).unwrap();
    let close = connection.close_handle();
    drop(runtime);
    drop((connection, far));

    // What a handle keeps open is nobody else's; of a runtime that has ended that is less than it had.
    let open = numbers();
    let free: Vec<RawFd> = own.into_iter().filter(|fd| !open.contains(fd)).collect();
    assert!(!free.is_empty(), "vacuity: everything is open still");
    let strangers = occupy(&free);
    for waker in &wakers {
        waker.wake_by_ref();
    }
    aborts.iter().for_each(|abort| abort.abort());
    for handle in &handles {
        assert!(handle.run_here(|| ()).is_err());
        assert!(handle.spawn(async {}).is_err());
        assert!(block_on(handle.connect("127.0.0.1:9")).is_err());
        handle.drain(Duration::ZERO);
        handle.stop();
    }
    close.close();
    close.reset();
    drop(wakers);
    for task in tasks {
        assert!(block_on(task).is_err());
    }
    for (mut reader, writer) in strangers {
        drop(writer);
        let mut found = Vec::new();
        reader.read_to_end(&mut found).unwrap();
        assert!(found.is_empty(), "somebody wrote {found:?} to a stranger");
    }
}
