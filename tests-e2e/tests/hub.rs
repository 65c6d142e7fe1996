//! The hub as its users see it: counts, joins and leaves, slow members under every policy, limits, the close.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use epoxide::{Refusal, SendOutcome, SharedLimits, SharedWriter};
use epoxide_pipes::hub::{
    BacklogLimits, BroadcastError, Hub, HubOptions, JoinError, Member, Message, Policy, Slow, Verdict, websocket_close,
};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, loopback, sharing, wait_until};

const HANG: Duration = Duration::from_secs(30);
const LEN: usize = 8192;

/// Few bytes for a member that does not read; no age, so that nothing depends on time.
fn tight() -> SharedLimits {
    SharedLimits { bytes: 64 * 1024, age: Duration::ZERO, ..SharedLimits::default() }
}

fn hub(options: HubOptions) -> Hub {
    Hub::new(options).expect("the options are good")
}

struct Joined {
    peer: Peer,
    member: Member,
}

fn writer(server: &Server, shared: &Receiver<SharedWriter>) -> (Peer, SharedWriter) {
    let peer = Peer::connect_stalling(server.addr());
    (peer, shared.recv_timeout(HANG).expect("the connection is accepted"))
}

fn join(hub: &Hub, server: &Server, shared: &Receiver<SharedWriter>) -> Joined {
    let (peer, writer) = writer(server, shared);
    Joined { peer, member: hub.join(writer).expect("the hub is open") }
}

/// A frame that says which it is.
fn frame(seq: usize) -> Bytes {
    let mut frame = vec![seq as u8; LEN];
    frame[..4].copy_from_slice(&(seq as u32).to_be_bytes());
    Bytes::from(frame)
}

/// The numbers of whole frames in what a peer got.
fn numbers(bytes: &[u8]) -> Vec<usize> {
    assert_eq!(bytes.len() % LEN, 0, "a frame is cut");
    let number = |bytes: &[u8]| {
        let seq = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        assert!(*bytes == frame(seq), "frame {seq} is corrupt");
        seq
    };
    bytes.chunks(LEN).map(number).collect()
}

/// Broadcasts until a frame is refused somewhere, or was displaced; the tally of the last one, and how many.
fn until(hub: &Hub, from: usize, mut done: impl FnMut(&Hub) -> bool) -> usize {
    for seq in from.. {
        assert!(seq < from + 10_000, "never reached");
        hub.broadcast(frame(seq)).unwrap();
        if done(hub) {
            return seq + 1;
        }
    }
    unreachable!()
}

#[test]
fn every_member_gets_every_frame_and_the_tally_counts_them() {
    let case = Case::start();
    let (server, shared) = sharing(&case, SharedLimits::default());
    let hub = hub(HubOptions::default());
    assert_eq!(hub.broadcast("nobody").unwrap().sent, 0);
    let mut members: Vec<_> = (0..16).map(|_| join(&hub, &server, &shared)).collect();
    assert_eq!(hub.len(), 16);
    let tally = hub.broadcast("hello ").unwrap();
    assert_eq!((tally.number, tally.sent, tally.queued, tally.refused, tally.ended), (2, 16, 0, 0, 0));
    let one = members[3].member.id();
    assert_eq!(hub.broadcast(Message::new("others ").except(one)).unwrap().sent, 15);
    assert!(matches!(members[3].member.send("you "), SendOutcome::Sent));
    assert_eq!(hub.broadcast(vec![b'!'; 300]).unwrap().sent, 16);
    for (i, Joined { peer, .. }) in members.iter_mut().enumerate() {
        let expected = if i == 3 { "hello you " } else { "hello others " };
        let expected = [expected.as_bytes(), &[b'!'; 300]].concat();
        assert_eq!(peer.read_exactly(expected.len(), HANG).unwrap(), expected);
    }
    let stats = hub.stats();
    assert_eq!((stats.joined, stats.broadcasts, stats.sent, stats.members, stats.bytes), (16, 4, 47, 16, 0));
    drop(members);
    assert_eq!((hub.len(), hub.stats().left), (0, 16));
}

#[test]
fn bad_options_are_refused_by_name() {
    let refused = |name: &str, options: HubOptions| {
        let error = Hub::new(options).expect_err(name);
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
        assert!(error.to_string().contains(name), "{error} does not name {name}");
    };
    let backlog = BacklogLimits::default();
    refused("backlog.frames", HubOptions { backlog: BacklogLimits { frames: 0, ..backlog }, ..HubOptions::default() });
    refused("backlog.bytes", HubOptions { backlog: BacklogLimits { bytes: 0, ..backlog }, ..HubOptions::default() });
    refused("HubOptions::bytes", HubOptions { bytes: 0, ..HubOptions::default() });
    refused("members", HubOptions { members: 0, ..HubOptions::default() });
    refused("policy", HubOptions { policy: Policy::Block(Duration::ZERO), ..HubOptions::default() });
    let block = Policy::Block(Duration::from_secs(1));
    refused("sequenced", HubOptions { sequenced: true, policy: block, ..HubOptions::default() });
}

#[test]
fn one_writer_is_one_membership_however_often_it_joins() {
    let case = Case::start();
    let (server, shared) = sharing(&case, SharedLimits::default());
    let hub = hub(HubOptions { members: 2, ..HubOptions::default() });
    let (mut peer, writer) = writer(&server, &shared);
    let first = hub.join(writer.clone()).unwrap();
    let second = hub.join(writer.clone()).unwrap();
    assert_eq!((first.id(), hub.len()), (second.id(), 1));
    drop(first);
    assert_eq!(hub.broadcast("a").unwrap().sent, 1);
    let third = second.clone();
    drop(second);
    assert!(third.is_member());
    third.leave();
    assert!(!third.is_member() && hub.is_empty());
    // Joined anew: the old handle has no say in it.
    let again = hub.join(writer.clone()).unwrap();
    assert_ne!(again.id(), third.id());
    third.leave();
    drop(third);
    assert_eq!(hub.broadcast("b").unwrap().sent, 1);
    again.detach();
    assert_eq!(hub.broadcast("c").unwrap().sent, 1);
    let other = join(&hub, &server, &shared);
    let (_third_peer, third) = self::writer(&server, &shared);
    assert_eq!(hub.join(third).unwrap_err(), JoinError::Full);
    drop((other, writer));
    assert_eq!(peer.read_exactly(3, HANG).unwrap(), b"abc");
    // The hub holds the last writer of the detached one.
    drop(hub);
    assert_eq!(peer.ending(HANG), Ending::Eof);
}

#[test]
fn an_end_of_any_kind_is_the_end_of_the_membership() {
    let case = Case::start();
    for how in ["peer resets", "peer leaves", "close", "reset"] {
        let (server, shared) = sharing(&case, SharedLimits::default());
        let hub = hub(HubOptions::default());
        let Joined { peer, member } = join(&hub, &server, &shared);
        let (keeps, id) = (join(&hub, &server, &shared), member.id());
        let writer = member.writer().clone();
        let mut peer = Some(peer);
        match how {
            "peer resets" => peer.take().unwrap().reset(),
            "peer leaves" => drop(peer.take()),
            "close" => writer.close_handle().close(),
            _ => writer.close_handle().reset(),
        }
        assert!(wait_until(HANG, || hub.len() == 1), "{how}: still a member");
        assert!(!member.is_member(), "{how}");
        // No write is tried: not even counted as ended.
        let sends = server.stats().sends;
        let tally = hub.broadcast("x").unwrap();
        assert_eq!((tally.sent, tally.ended), (1, 0), "{how}");
        assert_eq!(server.stats().sends, sends + 1, "{how}: a write for {id:?}");
        assert!(matches!(hub.join(writer.clone()), Err(JoinError::Ended(_))), "{how}");
        assert_eq!(hub.len(), 1);
        drop((keeps, member, writer));
    }
}

/// With none reading, one stuck member misses whole frames and gets the rest, under each policy that keeps it.
#[test]
fn a_stuck_member_under_the_policies_that_keep_it() {
    let case = Case::start();
    let policies: [(&str, Policy); 3] = [
        ("newest", Policy::DropNewest),
        ("ask", Policy::Ask(Arc::new(|_: &Slow| Verdict::Keep))),
        ("oldest", Policy::DropOldest),
    ];
    for sequenced in [false, true] {
        for (name, policy) in &policies {
            let (server, shared) = sharing(&case, tight());
            let backlog = BacklogLimits { bytes: 20 * 1024, age: Duration::ZERO, ..BacklogLimits::default() };
            let hub = hub(HubOptions { policy: policy.clone(), sequenced, backlog, ..HubOptions::default() });
            let mut stuck = join(&hub, &server, &shared);
            let missed = |hub: &Hub| hub.stats().refused_bytes + hub.stats().dropped_oldest;
            let total = until(&hub, 0, |hub| missed(hub) == 10);
            let stats = hub.stats();
            assert_eq!(stats.members, 1, "{name}");
            assert_eq!(stats.sent + stats.queued + stats.refused_bytes, total as u64, "{name}: frames do not add up");
            // Shared payloads, not copies, and released when taken.
            assert!(stats.bytes > 0 && stats.bytes < 2 * 1024 * 1024, "{name}: {} bytes held", stats.bytes);
            let bytes = stuck.peer.read_exactly((total - 10) * LEN, HANG).unwrap();
            let mut expected: Vec<_> = (0..total).collect();
            if *name == "oldest" {
                // A gap of ten in front of the last two that waited.
                expected.drain(total - 12..total - 2);
            } else {
                expected.truncate(total - 10);
            }
            assert_eq!(numbers(&bytes), expected, "{name} {sequenced}");
            assert!(wait_until(HANG, || hub.stats().bytes == 0), "{name}: a payload is left");
            // It goes on.
            hub.broadcast(frame(total)).unwrap();
            assert_eq!(numbers(&stuck.peer.read_exactly(LEN, HANG).unwrap()), [total], "{name}");
            assert_eq!(stuck.peer.read(&mut [0], Duration::from_millis(1)), Err(Ending::Timeout));
        }
    }
}

#[test]
fn the_latest_of_each_key_waits() {
    let case = Case::start();
    let (server, shared) = sharing(&case, tight());
    let hub = hub(HubOptions { policy: Policy::Latest, ..HubOptions::default() });
    let mut stuck = join(&hub, &server, &shared);
    let keyed = |seq: usize| hub.broadcast(Message::new(frame(seq)).key(seq as u64 % 3)).unwrap();
    let mut seq = 0;
    while hub.stats().conflated < 100 {
        keyed(seq);
        seq += 1;
        assert!(seq < 10_000, "never blocked");
    }
    assert!(hub.stats().dropped_oldest == 0);
    let bytes = stuck.peer.read_exactly((seq - 100) * LEN, HANG).unwrap();
    let got = numbers(&bytes);
    assert!(got.is_sorted());
    // The last three are the latest of the three keys.
    assert_eq!(got[got.len() - 3..], [seq - 3, seq - 2, seq - 1]);
    drop(stuck);
}

#[test]
fn a_slow_member_is_disconnected_with_its_code_and_the_others_notice_nothing() {
    let case = Case::start();
    for sequenced in [false, true] {
        let (server, shared) = sharing(&case, tight());
        let grace = Duration::from_millis(200);
        let backlog = BacklogLimits { bytes: 64 * 1024, age: Duration::ZERO, ..BacklogLimits::default() };
        let hub = hub(HubOptions { sequenced, grace, backlog, ..HubOptions::websocket() });
        let (mut reads_late, never_reads) = (join(&hub, &server, &shared), join(&hub, &server, &shared));
        let mut healthy: Vec<_> = (0..8).map(|_| join(&hub, &server, &shared)).collect();
        let (mut seq, mut disconnected) = (0, 0);
        while disconnected < 2 {
            hub.broadcast(frame(seq)).unwrap();
            for Joined { peer, .. } in &mut healthy {
                assert_eq!(numbers(&peer.read_exactly(LEN, HANG).unwrap()), [seq]);
            }
            disconnected = hub.stats().disconnected;
            seq += 1;
            assert!(seq < 10_000, "never disconnected");
        }
        assert_eq!(hub.len(), 8);
        assert!(!never_reads.member.is_member() && !reads_late.member.is_member());
        // Who reads now gets whole frames, the close frame, and the end.
        let (bytes, ending) = reads_late.peer.read_to_end(HANG);
        assert_eq!(ending, Ending::Eof, "sequenced: {sequenced}");
        let (frames, close) = bytes.split_at(bytes.len() - 4);
        assert_eq!(close, &websocket_close(1013)[..]);
        let got = numbers(frames);
        assert_eq!(got, (0..got.len()).collect::<Vec<_>>());
        // Who does not is reset when its grace is over.
        assert!(wait_until(HANG, || never_reads.member.writer().close_reason().is_some()), "not cut");
        let tally = hub.broadcast(frame(seq)).unwrap();
        assert_eq!((tally.sent + tally.queued, tally.refused, tally.ended), (8, 0, 0));
        drop((healthy, reads_late, never_reads));
    }
}

/// It takes a byte now and then, so that something always moves; the age of what waits gives it away.
#[test]
fn a_trickling_member_is_found_by_age() {
    let case = Case::start();
    for sequenced in [false, true] {
        let age = Duration::from_millis(50);
        let (server, shared) = sharing(&case, SharedLimits { bytes: 1 << 30, age, ..SharedLimits::default() });
        let backlog = BacklogLimits { bytes: 1 << 30, age, ..BacklogLimits::default() };
        let grace = Duration::from_millis(50);
        let hub = hub(HubOptions { sequenced, backlog, grace, ..HubOptions::websocket() });
        let Joined { mut peer, member } = join(&hub, &server, &shared);
        let began = Instant::now();
        let mut trickled = 0;
        while member.is_member() {
            hub.broadcast(frame(0)).unwrap();
            trickled += peer.read(&mut [0], HANG).unwrap();
            assert!(began.elapsed() < HANG, "never found");
            // sleep: age is time.
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(trickled > 1, "vacuity: it did not trickle");
        let stats = hub.stats();
        assert_eq!((stats.refused_age, stats.disconnected), (1, 1));
        assert!(stats.behind_most >= age, "{:?}", stats.behind_most);
        let (_, ending) = peer.read_to_end(HANG);
        assert!(ending.is_closed());
    }
}

#[test]
fn who_asks_decides_and_a_panic_decides_for_the_disconnect() {
    let case = Case::start();
    for verdict in [Some(Verdict::Remove), Some(Verdict::Disconnect), None] {
        let (server, shared) = sharing(&case, tight());
        let seen: Arc<Mutex<Vec<Slow>>> = Arc::default();
        let (asked, inside): (_, Arc<Mutex<Option<Hub>>>) = (seen.clone(), Arc::default());
        let of_ask = inside.clone();
        let ask = move |slow: &Slow| {
            asked.lock().unwrap().push(*slow);
            // Without any lock of the hub: all of this is legal here.
            let hub = of_ask.lock().unwrap().clone().unwrap();
            assert!(hub.len() > 0 && hub.stats().broadcasts > 0);
            hub.broadcast("from inside").unwrap();
            verdict.expect("provoked on purpose")
        };
        let hub = hub(HubOptions { policy: Policy::Ask(Arc::new(ask)), ..HubOptions::default() });
        *inside.lock().unwrap() = Some(hub.clone());
        let stuck = join(&hub, &server, &shared);
        let healthy = join(&hub, &server, &shared);
        let (mut peer, healthy) = (healthy.peer, healthy.member);
        let reader = std::thread::spawn(move || peer.read_to_end(HANG));
        let mut total = 0;
        while stuck.member.is_member() {
            hub.broadcast(Message::new(frame(total)).key(1)).unwrap();
            total += 1;
            assert!(total < 10_000, "never asked");
            // The healthy one keeps up.
            assert!(block_within(healthy.writer().flush(), HANG).unwrap().is_ok());
        }
        let seen = std::mem::take(&mut *seen.lock().unwrap());
        // Inside, it was refused or not by its size: the asked one is always the stuck one.
        assert!(seen.iter().all(|slow| slow.member == stuck.member.id() && slow.queued > 0), "{seen:?}");
        assert!(seen.iter().all(|slow| slow.why == Refusal::Bytes));
        let stats = hub.stats();
        let expected = match verdict {
            Some(Verdict::Remove) => (1, 0, 0),
            Some(_) => (0, 1, 0),
            None => (0, 1, 1),
        };
        assert_eq!((stats.removed, stats.disconnected, stats.panics.min(1)), expected);
        *inside.lock().unwrap() = None;
        healthy.writer().close_handle().close();
        let (bytes, ending) = reader.join().unwrap();
        assert_eq!(ending, Ending::Eof);
        let inside = bytes.len() % LEN / "from inside".len();
        assert_eq!((bytes.len() - inside * "from inside".len()) / LEN, total, "the healthy one missed a frame");
        drop(stuck);
    }
}

#[test]
fn block_waits_for_room_off_the_runtime_and_in_paced_form() {
    let case = Case::start();
    let (server, shared) = sharing(&case, tight());
    let wait = Duration::from_millis(200);
    let hub = hub(HubOptions { policy: Policy::Block(wait), ..HubOptions::default() });
    let Joined { mut peer, member } = join(&hub, &server, &shared);
    let total = until(&hub, 0, |hub| hub.stats().refused_bytes == 1);
    // The refusal came after the wait, and the member stays.
    let began = Instant::now();
    assert_eq!(hub.broadcast(frame(total)).unwrap().refused, 1);
    assert!(began.elapsed() >= wait, "did not wait");
    // On a runtime's thread it does not wait, but the paced form does.
    let (on_reactor, paced) = (hub.clone(), hub.clone());
    let reactor = server.reactor();
    let began = Instant::now();
    let posted = reactor.run_here(move || on_reactor.broadcast("x".repeat(LEN)).unwrap().refused);
    assert_eq!(block_within(posted.ok().unwrap(), HANG).unwrap().unwrap(), 1);
    assert!(began.elapsed() < wait, "waited on a reactor");
    let sent = total - 1;
    let reader = std::thread::spawn(move || {
        let bytes = peer.read_exactly((sent + 2) * LEN, HANG).unwrap();
        (peer, bytes)
    });
    let tally = block_within(paced.broadcast_paced(frame(sent)), HANG).unwrap().unwrap();
    assert_eq!((tally.sent + tally.queued, tally.refused), (1, 0), "no room although the peer reads");
    let tally = hub.broadcast(frame(sent + 1)).unwrap();
    assert_eq!((tally.sent + tally.queued, tally.refused), (1, 0));
    let (_peer, bytes) = reader.join().unwrap();
    assert_eq!(numbers(&bytes), (0..sent + 2).collect::<Vec<_>>());
    drop(member);
}

#[test]
fn the_hub_holds_a_bounded_number_of_bytes_each_counted_once() {
    let case = Case::start();
    let (server, shared) =
        sharing(&case, SharedLimits { bytes: 1 << 30, age: Duration::ZERO, ..SharedLimits::default() });
    let hub = hub(HubOptions { bytes: 100_000, ..HubOptions::default() });
    let mut stuck: Vec<_> = (0..4).map(|_| join(&hub, &server, &shared)).collect();
    // One alone may be larger: and it fills every socket.
    let large = Bytes::from(vec![7; 8 << 20]);
    assert_eq!(hub.broadcast(large.clone()).unwrap().queued, 4);
    assert_eq!(hub.stats().bytes, large.len() as u64, "not once");
    match hub.broadcast(frame(0)) {
        Err(BroadcastError::Full(back)) => assert_eq!(back, frame(0)),
        other => panic!("{other:?}"),
    }
    assert_eq!(hub.stats().broadcasts_refused, 1);
    for Joined { peer, .. } in &mut stuck {
        assert!(peer.read_exactly(large.len(), HANG).unwrap() == large);
    }
    assert!(wait_until(HANG, || hub.stats().bytes == 0), "a payload is left");
    assert_eq!(hub.broadcast(frame(0)).unwrap().sent, 4);
    assert_eq!(hub.stats().bytes_most, large.len() as u64);
}

#[test]
fn a_member_that_has_left_gets_what_was_accepted_and_no_more() {
    let case = Case::start();
    for sequenced in [false, true] {
        let (server, shared) = sharing(&case, tight());
        let hub = hub(HubOptions { sequenced, ..HubOptions::default() });
        let Joined { mut peer, member } = join(&hub, &server, &shared);
        let total = until(&hub, 0, |_| member.writer().queued_len() > 0);
        let extra = usize::from(hub.broadcast(frame(total)).unwrap().queued == 1);
        assert!(block_within(member.leave(), HANG).is_some());
        assert_eq!(hub.broadcast(frame(99)).unwrap().queued, 0);
        drop((member, hub));
        let (bytes, ending) = peer.read_to_end(HANG);
        assert_eq!(numbers(&bytes), (0..total + extra).collect::<Vec<_>>(), "sequenced: {sequenced}");
        assert_eq!(ending, Ending::Eof);
    }
}

#[test]
fn a_close_says_goodbye_to_all_and_cuts_who_does_not_listen() {
    let case = Case::start();
    for sequenced in [false, true] {
        let (server, shared) = sharing(&case, tight());
        let hub = hub(HubOptions { sequenced, policy: Policy::DropNewest, ..HubOptions::websocket() });
        let mut idle: Vec<_> = (0..5).map(|_| join(&hub, &server, &shared)).collect();
        let mut behind = join(&hub, &server, &shared);
        let stuck = join(&hub, &server, &shared);
        // `behind` and `stuck` have something that waits; the idle ones read.
        let mut total = 0;
        while behind.member.writer().queued_len() == 0 || stuck.member.writer().queued_len() == 0 {
            hub.broadcast(frame(total)).unwrap();
            idle.iter_mut().for_each(|one| assert_eq!(numbers(&one.peer.read_exactly(LEN, HANG).unwrap()), [total]));
            total += 1;
            assert!(total < 10_000, "never blocked");
        }
        let again = hub.clone();
        let close = hub.close(Duration::from_millis(500));
        assert!(hub.is_closed() && matches!(hub.broadcast("late"), Err(BroadcastError::Closed(_))));
        let (_peer, late) = writer(&server, &shared);
        assert_eq!(hub.join(late).unwrap_err(), JoinError::Closed);
        for Joined { peer, .. } in &mut idle {
            let (bytes, ending) = peer.read_to_end(HANG);
            assert_eq!((&bytes[..], ending), (&websocket_close(1001)[..], Ending::Eof));
        }
        let (bytes, ending) = behind.peer.read_to_end(HANG);
        assert_eq!(ending, Ending::Eof);
        assert_eq!(bytes[bytes.len() - 4..], websocket_close(1001)[..]);
        assert_eq!(numbers(&bytes[..bytes.len() - 4]), (0..total).collect::<Vec<_>>());
        let report = block_within(close, HANG).expect("the close ends");
        assert_eq!((report.members, report.flushed, report.cut), (7, 6, 1));
        // Idempotent.
        assert_eq!(block_within(again.close(Duration::ZERO), HANG).unwrap(), report);
        assert_eq!((hub.len(), hub.stats().left), (0, 7));
        drop((idle, behind, stuck));
    }
}

/// From the task of a member, from a reactor's closure and from a frame's own drop: nothing deadlocks.
#[test]
fn everything_is_legal_inside_a_handler_and_a_broadcast() {
    struct Inside(Hub, Arc<AtomicUsize>);
    impl AsRef<[u8]> for Inside {
        fn as_ref(&self) -> &[u8] {
            &[b'x'; 300]
        }
    }
    impl Drop for Inside {
        fn drop(&mut self) {
            let _ = self
                .0
                .broadcast("from a drop")
                .map(|tally| self.1.fetch_add(tally.sent + tally.queued, Ordering::SeqCst));
            let _ = self.0.close(Duration::from_secs(5));
        }
    }
    let case = Case::start();
    for sequenced in [false, true] {
        let hub = hub(HubOptions { sequenced, goodbye: Bytes::from_static(b"bye"), ..HubOptions::default() });
        let of_handler = hub.clone();
        let server = Server::start(&case, |b| {
            b.listen(loopback(), move |connection: epoxide::Connection| {
                let hub = of_handler.clone();
                async move {
                    let (mut reader, writer) = connection.into_shared(SharedLimits::default());
                    let member = hub.join(writer)?;
                    hub.broadcast("in ").map_err(BroadcastError::into_inner).unwrap();
                    member.leave().await;
                    let member = hub.join(member.writer().clone())?;
                    hub.broadcast_paced("again ").await.unwrap();
                    while reader.read().await?.is_some() {}
                    drop(member);
                    std::io::Result::Ok(())
                }
            });
        });
        let mut peer = Peer::connect(server.addr());
        assert_eq!(peer.read_exactly(9, HANG).unwrap(), b"in again ");
        let dropped = Arc::new(AtomicUsize::new(0));
        let last = Bytes::from_owner(Inside(hub.clone(), dropped.clone()));
        // The handler's own send may not have returned yet: then its thread sends this one too.
        let tally = hub.broadcast(last).unwrap();
        assert_eq!(tally.sent + tally.queued, 1);
        let (rest, ending) = peer.read_to_end(HANG);
        assert_eq!(ending, Ending::Eof);
        let expected = [&[b'x'; 300][..], b"from a drop", b"bye"].concat();
        assert_eq!(rest, expected);
        assert!(wait_until(HANG, || dropped.load(Ordering::SeqCst) == 1));
        let mut nothing = [0];
        assert_eq!((&*peer.stream()).read(&mut nothing).unwrap(), 0);
    }
}
