//! Wakers of other executors that panic as they are dropped: what a reactor drops for them is user code like any other
//! (law 10), and costs the reactor nothing.

use std::io::Read;
use std::mem::ManuallyDrop;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use epoxide::{AsyncFd, Connection};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, handing_over, pattern, provoke_panic, wait_until};

const SOON: Duration = Duration::from_secs(20);

/// Wakes nobody; its last holder gets a panic.
struct DropsBadly(Arc<AtomicUsize>);

impl Wake for DropsBadly {
    fn wake(self: Arc<Self>) {
        // A wake is not what is tested: its end would be a drop, too.
        let _leaked = ManuallyDrop::new(self);
    }
}

impl Drop for DropsBadly {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
        provoke_panic("the drop of a waker");
    }
}

/// Polls once with a waker that drops badly, and leaves the clone that was kept as its only holder.
fn poll_badly<T>(drops: &Arc<AtomicUsize>, poll: impl FnOnce(&mut Context<'_>) -> Poll<T>) {
    let waker = Waker::from(Arc::new(DropsBadly(Arc::clone(drops))));
    assert!(poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    assert_eq!(drops.load(Ordering::Acquire), 0, "somebody else holds it");
}

/// The server still serves: its reactor has not ended.
fn check_alive(server: &Server, accepted: &Receiver<Connection>) {
    let peer = Peer::connect(server.addr());
    drop(accepted.recv_timeout(SOON).expect("the reactor accepts"));
    drop(peer);
}

#[test]
fn the_waker_of_a_reader_that_let_go() {
    let case = Case::start();
    let (mut server, accepted) = handing_over(&case, |_| {});
    let drops = Arc::new(AtomicUsize::new(0));
    let mut peer = Peer::connect(server.addr());
    let mut connection = accepted.recv_timeout(SOON).unwrap();
    poll_badly(&drops, |cx| connection.poll_read(cx));
    drop(connection);
    assert!(wait_until(SOON, || drops.load(Ordering::Acquire) == 1), "nobody dropped it");
    server.claim_panics(1);
    assert_eq!(peer.ending(SOON), Ending::Eof);
    drop(peer);
    check_alive(&server, &accepted);
}

#[test]
fn the_waker_of_a_writer_that_let_go() {
    let case = Case::start();
    let (mut server, accepted) = handing_over(&case, |_| {});
    let drops = Arc::new(AtomicUsize::new(0));
    let mut peer = Peer::connect_stalling(server.addr());
    let mut connection = accepted.recv_timeout(SOON).unwrap();
    let body = pattern(8 << 20);
    connection.stage(&body).unwrap();
    poll_badly(&drops, |cx| connection.poll_flush(cx));
    drop(connection);
    assert!(wait_until(SOON, || drops.load(Ordering::Acquire) == 1), "nobody dropped it");
    server.claim_panics(1);
    let (got, ending) = peer.read_to_end(SOON);
    assert_eq!((got.len(), ending), (body.len(), Ending::Eof));
    drop(peer);
    check_alive(&server, &accepted);
}

/// The reactor is told first: its duplicate of the descriptor is closed all the same.
#[test]
fn the_waker_of_a_descriptor_that_is_let_go() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let drops = Arc::new(AtomicUsize::new(0));
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    let watched = AsyncFd::new_on(&server.reactor(), ours).unwrap();
    poll_badly(&drops, |cx| watched.poll_readable(cx).map(drop));
    drop(watched);
    assert_eq!(drops.load(Ordering::Acquire), 1, "nobody dropped it");
    theirs.set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(theirs.read(&mut [0]).unwrap(), 0, "somebody has the other end");
    check_alive(&server, &accepted);
}
