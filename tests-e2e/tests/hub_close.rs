//! The close of a hub: against joins and publishers, with members that end meanwhile, more members than posts, and wakers
//! that panic.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use epoxide::ReactorConfig;
use epoxide_pipes::hub::{Hub, HubOptions, Policy, Slow, Verdict};
use epoxide_tests_e2e::broadcast::{FRAME, frame, hub, join, numbers, roomy, tight, until};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, Rng, block_within, hold_reactor, rounds, sharing, sharing_with, wait_until,
};

const HANG: Duration = Duration::from_secs(60);

/// Joins race the close: who joined gets the goodbye, who did not an error, and nobody is left.
#[test]
fn joins_and_broadcasts_against_the_close() {
    let case = Case::start_rounds();
    let (server, shared) = sharing(&case, roomy());
    let (mut joined_late, mut refused) = (0, 0);
    let mut rng = Rng::new(7);
    for round in 0..rounds().min(200) {
        let goodbye = Bytes::from_static(b"bye");
        let hub = Hub::new(HubOptions { goodbye, sequenced: round % 2 == 0, ..HubOptions::default() }).unwrap();
        let mut peers: Vec<_> = (0..3).map(|_| Peer::connect(server.addr())).collect();
        let writers: Vec<_> = (0..3).map(|_| shared.recv_timeout(HANG).unwrap()).collect();
        // Accepted in any order: by the peer's own address each finds its writer's outcome below, by what it reads.
        let start = Arc::new(Barrier::new(3));
        let (early, late) = (hub.join(writers[0].clone()).unwrap(), writers[1].clone());
        let skews: Vec<_> = (0..3).map(|_| rng.below(2000)).collect();
        let (outcome, published) = std::thread::scope(|scope| {
            let joiner = scope.spawn(|| {
                start.wait();
                Rng::new(skews[0]).skew(skews[0].max(1));
                hub.join(late)
            });
            let publisher = scope.spawn(|| {
                start.wait();
                Rng::new(skews[1]).skew(skews[1].max(1));
                (0..20).filter(|_| hub.broadcast("x").is_ok()).count()
            });
            start.wait();
            Rng::new(skews[2]).skew(skews[2].max(1));
            let close = hub.close(HANG);
            let report = block_within(close, HANG).expect("the close ends");
            let outcome = joiner.join().unwrap();
            assert_eq!(report.members, 1 + usize::from(outcome.is_ok()));
            assert_eq!(report.cut, 0);
            (outcome, publisher.join().unwrap())
        });
        assert!(hub.is_empty());
        joined_late += usize::from(outcome.is_ok());
        refused += usize::from(outcome.is_err());
        let joined = 1 + usize::from(outcome.is_ok());
        drop((outcome, early, writers, hub));
        let mut goodbyes = 0;
        for peer in &mut peers {
            let (bytes, ending) = peer.read_to_end(HANG);
            assert_eq!(ending, Ending::Eof);
            if let Some(x) = bytes.strip_suffix(b"bye") {
                goodbyes += 1;
                assert!(x.iter().all(|byte| *byte == b'x') && x.len() <= published);
            } else {
                assert!(bytes.is_empty(), "{bytes:?}: no goodbye");
            }
        }
        assert_eq!(goodbyes, joined);
    }
    eprintln!("{joined_late} joined in front of the close, {refused} behind it");
    assert!(joined_late > 0 && refused > 0, "vacuity: the join and the close did not race");
}

/// Eight publishers on hubs of 32 members, of which one is stuck: the close waits for what is under way.
#[test]
fn publishers_against_the_close() {
    let case = Case::start();
    let (server, shared) = sharing(&case, roomy());
    let options = HubOptions { policy: Policy::DropOldest, ..HubOptions::websocket() };
    let hub = Hub::new(options).unwrap();
    let peers: Vec<_> = (0..32).map(|_| Peer::connect(server.addr())).collect();
    let members: Vec<_> = (0..32).map(|_| hub.join(shared.recv_timeout(HANG).unwrap()).unwrap()).collect();
    let total = AtomicUsize::new(0);
    let report = std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let Ok(tally) = hub.broadcast(vec![0x82, 0]) else { break };
                    total.fetch_add(tally.sent + tally.queued, Ordering::SeqCst);
                }
            });
        }
        assert!(wait_until(HANG, || total.load(Ordering::SeqCst) > 1000));
        block_within(hub.close(HANG), HANG).expect("the close ends")
    });
    assert_eq!((report.members, report.flushed, report.cut), (32, 32, 0));
    let mut got = 0;
    for mut peer in peers {
        let (bytes, ending) = peer.read_to_end(HANG);
        assert_eq!((ending, &bytes[bytes.len() - 4..]), (Ending::Eof, &[0x88, 2, 3, 0xE9][..]));
        got += (bytes.len() - 4) / 2;
    }
    assert_eq!(got, total.load(Ordering::SeqCst), "counted and received differ");
    drop(members);
}

/// A member whose peer says FIN while frames wait for it in the hub: its connection is over, what waits with it, and so is
/// the close.
#[test]
fn a_member_that_ends_meanwhile_ends_the_close() {
    let case = Case::start();
    for policy in [Policy::DropOldest, Policy::Latest] {
        let (server, shared) = sharing(&case, tight());
        let hub = hub(HubOptions { policy, ..HubOptions::default() });
        let mut stuck = join(&hub, &server, &shared);
        until(&hub, |hub| hub.stats().dropped_oldest > 10);
        let before = server.stats().passes;
        let close = hub.close(HANG);
        stuck.peer.half_close().unwrap();
        // What is in the kernel, as far as the reset lets it.
        let (_, ending) = stuck.peer.read_to_end(HANG);
        assert!(ending.is_closed());
        let report = block_within(close, HANG / 4).expect("the close waits for what cannot go out any more");
        assert_eq!((report.members, report.flushed, report.cut), (1, 0, 1));
        let passes = server.stats().passes - before;
        assert!(passes < 1000, "the reactor went round {passes} times");
    }
}

/// More members with something queued than their reactor takes posts.
#[test]
fn a_close_is_not_cut_by_the_limit_on_posts() {
    const MEMBERS: usize = 48;
    let case = Case::start();
    for policy in [Policy::DropNewest, Policy::DropOldest] {
        let config = ReactorConfig { max_posts: 4, ..ReactorConfig::default() };
        let (server, shared) = sharing_with(&case, tight(), config);
        let goodbye = frame(0);
        let hub = hub(HubOptions { policy, goodbye, ..HubOptions::default() });
        let mut members: Vec<_> = (0..MEMBERS).map(|_| join(&hub, &server, &shared)).collect();
        let mut total = 0;
        while hub.broadcast(frame(total + 1)).unwrap().queued < MEMBERS {
            total += 1;
            assert!(total < 1000, "never blocked");
        }
        // Nobody takes a post meanwhile.
        let held = hold_reactor(&server.reactor());
        let close = hub.close(HANG);
        drop(held);
        for member in &mut members {
            let (bytes, ending) = member.peer.read_to_end(HANG);
            assert_eq!(ending, Ending::Eof);
            let mut expected: Vec<_> = (1..total + 2).collect();
            expected.push(0);
            assert_eq!(numbers(&bytes), expected);
        }
        let report = block_within(close, HANG).expect("the close ends");
        assert_eq!((report.members, report.flushed, report.cut), (MEMBERS, MEMBERS, 0));
    }
}

/// Panics, or counts.
struct Woken {
    rude: bool,
    times: AtomicUsize,
}

impl Woken {
    fn new(rude: bool) -> Arc<Self> {
        Arc::new(Self { rude, times: AtomicUsize::new(0) })
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Ordering::SeqCst);
        assert!(!self.rude, "provoked on purpose");
    }
}

/// Waits with two wakers: the first one panics.
fn wait_twice<F: Future + Unpin>(first: &mut F, second: &mut F) -> [Arc<Woken>; 2] {
    [(first, true), (second, false)].map(|(future, rude)| {
        let woken = Woken::new(rude);
        let waker = Waker::from(woken.clone());
        assert!(matches!(Pin::new(future).poll(&mut Context::from_waker(&waker)), Poll::Pending));
        woken
    })
}

#[test]
fn a_waker_that_panics_keeps_nobody_else_asleep() {
    let case = Case::start();
    let (server, shared) = sharing(&case, tight());
    let (asked, go_on) = (Gate::new(), Gate::new());
    let (of_asked, of_go_on) = (asked.clone(), go_on.clone());
    let ask = move |_: &Slow| {
        of_asked.open();
        let _ = of_go_on.wait_blocking(HANG);
        Verdict::Keep
    };
    let hub = hub(HubOptions { policy: Policy::Ask(Arc::new(ask)), ..HubOptions::default() });
    let mut stuck = join(&hub, &server, &shared);
    let leaves = join(&hub, &server, &shared);
    let mut peer = leaves.peer;
    let reader = std::thread::spawn(move || peer.read_to_end(HANG));
    std::thread::scope(|scope| {
        let publisher = scope.spawn(|| until(&hub, |hub| hub.stats().refused_bytes > 0));
        assert!(asked.wait_blocking(HANG), "nobody asked");
        // That broadcast is under way.
        let (mut first, mut second) = (leaves.member.leave(), leaves.member.leave());
        let leavers = wait_twice(&mut first, &mut second);
        let (mut first, mut second) = (hub.close(HANG), hub.close(HANG));
        let closers = wait_twice(&mut first, &mut second);
        go_on.open();
        let published = publisher.join().expect("a stranger's panic came out of a broadcast");
        let (bytes, ending) = stuck.peer.read_to_end(HANG);
        assert_eq!((bytes.len() % FRAME, ending), (0, Ending::Eof));
        assert!(bytes.len() / FRAME >= published - 1);
        for close in [first, second] {
            let report = block_within(close, HANG).expect("the close is left behind");
            assert_eq!((report.members, report.flushed), (1, 1));
        }
        for [rude, other] in [leavers, closers] {
            let times = |woken: &Woken| woken.times.load(Ordering::SeqCst);
            assert!(wait_until(HANG, || times(&rude) == 1 && times(&other) == 1), "somebody sleeps");
        }
    });
    leaves.member.writer().close_handle().close();
    assert_eq!(reader.join().unwrap().1, Ending::Eof);
}
