//! Unit tests of the shared writer on real sockets, without a reactor: the test itself takes its part, edge by edge.

use super::*;
use crate::config::ReactorConfig;
use crate::conn::body::Body;
use crate::conn::connection::Connection;
use crate::conn::drive::{self, Batch, Drive};
use crate::conn::flush_word::Kick;
use crate::conn::shared_limits::Refusal;
use crate::exec::home::{Home, Msg};
use crate::id::ListenerId;
use crate::stats::Stats;
use std::future::Future;
use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

pub(super) struct Setup {
    pub(super) body: Arc<Body>,
    pub(super) peer: TcpStream,
}

impl Setup {
    fn new() -> (Self, Connection) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let served = listener.accept().unwrap().0;
        served.set_nonblocking(true).unwrap();
        let home = Arc::new(Home::new(0, ReactorConfig::default()).unwrap());
        let body = Arc::new(Body::new(OwnedFd::from(served), true, home, ListenerId(0), [None, None]));
        (Self { body: body.clone(), peer }, Connection::new(body))
    }

    pub(super) fn shared(limits: SharedLimits) -> (Self, crate::conn::read_half::ReadHalf, SharedWriter) {
        let (setup, connection) = Self::new();
        let (reader, writer) = connection.into_shared(limits);
        (setup, reader, writer)
    }

    fn stats(&self) -> Stats {
        self.body.home.counts.snapshot()
    }

    /// Reads `n` bytes while taking the reactor's part: edges and owed turns.
    pub(super) fn read(&mut self, n: usize) -> Vec<u8> {
        self.peer.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (mut got, mut space) = (Vec::new(), vec![0; 65_536]);
        for _ in 0..10_000 {
            let want = (n - got.len()).min(space.len());
            if want == 0 {
                return got;
            }
            match self.peer.read(&mut space[..want]) {
                Ok(0) => panic!("the end after {} of {n} bytes", got.len()),
                Ok(read) => got.extend_from_slice(&space[..read]),
                Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}"),
            }
            self.edge();
        }
        panic!("a hang after {} of {n} bytes", got.len());
    }

    fn edge(&self) {
        while let Some(msg) = self.body.home.take_message() {
            if matches!(msg, Msg::Owed(_)) && self.body.flush.serve_owed() {
                drive::drive_as_reactor(&self.body);
            }
        }
        if self.body.flush.writable() {
            drive::drive_as_reactor(&self.body);
        }
    }

    /// Nothing but the FIN comes.
    pub(super) fn ends(&mut self) {
        self.peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        assert_eq!(self.peer.read(&mut [0; 1]).unwrap(), 0, "something comes behind the last frame");
    }
}

#[derive(Default)]
pub(super) struct Flag(pub(super) AtomicUsize);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

pub(super) fn flag() -> (Arc<Flag>, Waker) {
    let flag = Arc::new(Flag::default());
    (flag.clone(), Waker::from(flag))
}

fn no_age(limits: SharedLimits) -> SharedLimits {
    SharedLimits { age: Duration::ZERO, ..limits }
}

/// Sends 64 KiB frames until one is queued; returns all that was accepted.
pub(super) fn block(writer: &SharedWriter) -> Vec<u8> {
    let mut accepted = Vec::new();
    for i in 0..4096_u32 {
        let frame = vec![i as u8; 65_536];
        accepted.extend_from_slice(&frame);
        match writer.send(frame) {
            SendOutcome::Sent => {}
            SendOutcome::Queued => return accepted,
            SendOutcome::Refused(why, _) => panic!("{why}"),
        }
    }
    panic!("the socket takes 256 MiB");
}

#[test]
fn small_and_large_frames_go_out_whole_and_in_order() {
    let (mut setup, _reader, writer) = Setup::shared(SharedLimits::default());
    let mut expected = Vec::new();
    for i in 0..200_usize {
        let frame = vec![i as u8; [1, 256, 257, 5000, 0][i % 5]];
        expected.extend_from_slice(&frame);
        assert!(matches!(writer.send(frame), SendOutcome::Sent));
        if i % 10 == 9 {
            // As much as is there: the send buffer must not fill.
            let n = expected.len();
            assert!(setup.read(n) == expected);
            expected.clear();
        }
    }
    assert_eq!(writer.queued_len(), 0);
}

#[test]
fn a_blocked_peer_costs_no_call_and_each_limit_gives_the_frame_back() {
    let limits = no_age(SharedLimits { frames: 40, bytes: 8 << 20, ..SharedLimits::default() });
    let (mut setup, _reader, writer) = Setup::shared(limits);
    let mut expected = block(&writer);
    let calls = setup.stats().sends;
    let mut queued = 0;
    let refused = loop {
        let frame = Bytes::from(vec![9; 1000]);
        let place = frame.as_ptr();
        match writer.send(frame.clone()) {
            SendOutcome::Queued => expected.extend_from_slice(&frame),
            SendOutcome::Refused(why, back) => {
                assert_eq!(back.as_ptr(), place, "another frame comes back");
                assert_eq!(back.len(), 1000);
                break why;
            }
            SendOutcome::Sent => panic!("sent to a blocked peer"),
        }
        queued += 1;
        assert!(queued < 100);
    };
    assert_eq!(refused, Refusal::Frames);
    assert!(queued >= 38, "{queued}");
    let stats = setup.stats();
    assert_eq!(stats.sends, calls, "system calls for a blocked peer");
    assert_eq!(stats.frames_refused, 1);
    let all = setup.read(expected.len());
    assert!(all == expected, "something was cut, lost or came twice");
    // Room again, and nothing of the refused one is in between.
    assert!(matches!(writer.send(&b"end"[..]), SendOutcome::Sent));
    assert_eq!(setup.read(3), b"end");
}

#[test]
fn the_byte_limit_refuses_whole_but_never_the_first() {
    let limits = no_age(SharedLimits { bytes: 1000, ..SharedLimits::default() });
    let (mut setup, _reader, writer) = Setup::shared(limits);
    // Far more than the limit and than the socket takes, with nothing queued: accepted.
    let large = Bytes::from(vec![1; 16 << 20]);
    assert!(matches!(writer.send(large.clone()), SendOutcome::Queued));
    for small in [Bytes::from_static(b"x"), Bytes::from(vec![2; 999])] {
        assert!(matches!(writer.send(small), SendOutcome::Refused(Refusal::Bytes, _)));
    }
    assert!(setup.read(large.len()) == large);
    assert!(matches!(writer.send(vec![3; 999]), SendOutcome::Sent));
}

#[test]
fn what_was_staged_before_counts_as_queued() {
    let (setup, mut connection) = Setup::new();
    connection.stage(&vec![1; 15 << 20]).unwrap();
    assert!(connection.try_flush().is_err(), "vacuity: it all went");
    let (_reader, writer) = connection.into_shared(no_age(SharedLimits::default()));
    assert!(writer.queued_len() > 1 << 20);
    assert!(matches!(writer.send(vec![2; 10]), SendOutcome::Refused(Refusal::Bytes, _)));
    drop(setup);
}

#[test]
fn the_age_limit_refuses_once_the_oldest_is_too_old() {
    let limits = SharedLimits { age: Duration::from_millis(30), ..SharedLimits::default() };
    let (_setup, _reader, writer) = Setup::shared(limits);
    block(&writer);
    let began = std::time::Instant::now();
    loop {
        match writer.send(&b"x"[..]) {
            SendOutcome::Refused(Refusal::Age, frame) => break assert_eq!(frame, &b"x"[..]),
            SendOutcome::Refused(Refusal::Frames, _) | SendOutcome::Queued => {}
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(30), "never too old");
        // sleep: age is time.
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(began.elapsed() >= Duration::from_millis(20), "too early");
}

#[test]
fn an_empty_frame_is_nothing_to_send() {
    let limits = SharedLimits { frames: 1, ..SharedLimits::default() };
    let (mut setup, _reader, writer) = Setup::shared(limits);
    assert!(matches!(writer.send(Bytes::new()), SendOutcome::Sent));
    assert_eq!(setup.stats().sends, 0);
    let accepted = block(&writer);
    for _ in 0..10 {
        // Not held back by what is: it takes no place.
        assert!(matches!(writer.send(Bytes::new()), SendOutcome::Sent));
    }
    assert!(setup.read(accepted.len()) == accepted);
    drop(writer);
    setup.ends();
}

/// Knows when the last reference to its bytes has gone.
struct Owner(Vec<u8>, Arc<Flag>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn frames_above_256_bytes_are_not_copied_and_smaller_ones_are() {
    let (mut setup, _reader, writer) = Setup::shared(no_age(SharedLimits { bytes: 64 << 20, ..Default::default() }));
    let accepted = block(&writer);
    for (len, copied) in [(256, 1), (257, 0)] {
        let gone = Arc::new(Flag::default());
        let frame = Bytes::from_owner(Owner(vec![7; len], gone.clone()));
        assert!(matches!(writer.send(frame), SendOutcome::Queued));
        assert_eq!(gone.0.load(SeqCst), copied, "{len} bytes");
    }
    assert!(setup.read(accepted.len()) == accepted);
    assert_eq!(setup.read(513), [7; 513]);
}

#[test]
fn a_ticket_is_for_what_was_accepted_before_it() {
    let (mut setup, _reader, writer) = Setup::shared(no_age(SharedLimits { bytes: 64 << 20, ..Default::default() }));
    let mut flush = pin!(writer.flush());
    assert!(matches!(flush.as_mut().poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(()))));
    let before = block(&writer);
    let (woken, waker) = flag();
    let mut cx = Context::from_waker(&waker);
    let mut first = pin!(writer.flush());
    assert!(first.as_mut().poll(&mut cx).is_pending());
    assert!(matches!(writer.send(vec![1; 20 << 20]), SendOutcome::Queued));
    let mut second = pin!(writer.flush());
    assert!(second.as_mut().poll(&mut cx).is_pending());
    // The first ticket is out long before the second.
    let got = setup.read(before.len());
    assert!(got == before);
    assert!(woken.0.load(SeqCst) >= 1, "left behind");
    assert!(matches!(first.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
    assert!(second.as_mut().poll(&mut cx).is_pending(), "vacuity: all is out");
    setup.read(20 << 20);
    assert!(matches!(second.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
}

#[test]
fn cancelled_waits_leave_nothing_behind() {
    let (setup, _reader, writer) = Setup::shared(SharedLimits::default());
    block(&writer);
    let waiting = || lock(&setup.body.slow).frames.as_ref().unwrap().waiting();
    for _ in 0..1000 {
        // Each from another task: no two wakers are alike.
        let (_, waker) = flag();
        let mut cx = Context::from_waker(&waker);
        assert!(pin!(writer.flush()).poll(&mut cx).is_pending());
        let mut closed = pin!(writer.closed());
        assert!(closed.as_mut().poll(&mut cx).is_pending());
        let (_, other) = flag();
        assert!(closed.as_mut().poll(&mut Context::from_waker(&other)).is_pending());
        assert_eq!(waiting(), 1);
    }
    assert_eq!(waiting(), 0);
}

/// Sharing while the reactor is between two of its notes (bytes out, bytes no longer queued): the ticket is exact.
#[test]
fn tickets_after_sharing_a_parked_flush_are_exact() {
    let (mut setup, mut connection) = Setup::new();
    connection.stage(&vec![5; 8 << 20]).unwrap();
    assert!(connection.try_flush().is_err(), "vacuity: it all went");
    let accepted = setup.body.accepted.load(Ordering::Relaxed) as usize;
    // The owner has noted 1000 bytes as out and not yet taken them off the count.
    setup.body.add_accepted(1000);
    let (_reader, writer) = connection.into_shared(SharedLimits::default());
    assert_eq!(lock(&setup.body.slow).end, 8 << 20);
    setup.body.accepted.store(accepted as u64, Ordering::Relaxed);
    let mut flush = pin!(writer.flush());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(flush.as_mut().poll(&mut cx).is_pending());
    setup.read(8 << 20);
    assert!(matches!(flush.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
}

/// Each frame, once out, appends the next: without a bound one send would never end.
#[test]
fn one_owner_looks_a_bounded_number_of_times() {
    struct Chain(Vec<u8>, SharedWriter, Arc<Flag>);
    impl AsRef<[u8]> for Chain {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl Drop for Chain {
        fn drop(&mut self) {
            if self.2.0.fetch_add(1, SeqCst) < 1000 {
                let next = Self(vec![1; 300], self.1.clone(), self.2.clone());
                let _ = self.1.send(Bytes::from_owner(next));
            }
        }
    }
    let (mut setup, _reader, writer) = Setup::shared(SharedLimits::default());
    let sent = Arc::new(Flag::default());
    assert_eq!(setup.body.flush.kick(), Kick::Own);
    let first = Bytes::from_owner(Chain(vec![1; 300], writer.clone(), sent.clone()));
    assert!(matches!(writer.send(first), SendOutcome::Queued));
    let mut batch = lock(&setup.body.slow).out.take();
    let end = drive::drive(&setup.body, Batch { bytes: &mut batch, counted: true }, usize::MAX - 1, None);
    assert_eq!(end, Drive::Parked);
    let by_one = sent.0.load(SeqCst);
    assert!((2..100).contains(&by_one), "{by_one} frames by one owner");
    assert!(matches!(setup.body.home.take_message(), Some(Msg::Owed(_))));
    assert!(setup.body.flush.serve_owed());
    drive::drive_as_reactor(&setup.body);
    setup.read(300 * 1001);
    assert_eq!(sent.0.load(SeqCst), 1001);
}

#[test]
fn one_send_hands_over_to_the_reactor_past_its_budget() {
    let (mut setup, _reader, writer) = Setup::shared(no_age(SharedLimits::default()));
    let large = vec![3; 1 << 20];
    assert!(matches!(writer.send(large.clone()), SendOutcome::Queued));
    assert_eq!(setup.body.accepted.load(Ordering::Relaxed), 256 * 1024);
    assert!(matches!(setup.body.home.take_message(), Some(Msg::Owed(_))));
    assert!(setup.body.flush.serve_owed());
    drive::drive_as_reactor(&setup.body);
    assert!(setup.read(large.len()) == large);
}

/// User code, a frame's drop, never runs under the queue's mutex: it may use the same writer.
#[test]
fn dropping_a_frame_may_send_another() {
    struct Resend(SharedWriter, Arc<Mutex<Vec<String>>>);
    impl AsRef<[u8]> for Resend {
        fn as_ref(&self) -> &[u8] {
            &[1; 300]
        }
    }
    impl Drop for Resend {
        fn drop(&mut self) {
            let outcome = self.0.send(&b"from a drop"[..]);
            self.1.lock().unwrap().push(format!("{outcome:?}"));
        }
    }
    let (_setup, _reader, writer) = Setup::shared(SharedLimits::default());
    block(&writer);
    let outcomes = Arc::new(Mutex::new(Vec::new()));
    let frame = Bytes::from_owner(Resend(writer.clone(), outcomes.clone()));
    assert!(matches!(writer.send(frame), SendOutcome::Queued));
    writer.close_handle().reset();
    let outcomes = outcomes.lock().unwrap();
    assert!(outcomes.len() == 1 && outcomes[0].contains("Closed"), "{outcomes:?}");
}
