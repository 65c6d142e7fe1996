//! Members that do not keep up, under every policy of the hub.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use epoxide::{Refusal, SharedLimits};
use epoxide_pipes::hub::{BacklogLimits, Hub, HubOptions, Message, Policy, Slow, Verdict, websocket_close};
use epoxide_tests_e2e::broadcast::{FRAME, Joined, frame, hub, join, numbers, tight, until};
use epoxide_tests_e2e::{Case, Ending, block_within, sharing, wait_until};

const HANG: Duration = Duration::from_secs(30);

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
            let total = until(&hub, |hub| missed(hub) == 10);
            let stats = hub.stats();
            assert_eq!(stats.members, 1, "{name}");
            assert_eq!(stats.sent + stats.queued + stats.refused_bytes, total as u64, "{name}: frames do not add up");
            // Shared payloads, not copies, and released when taken.
            assert!(stats.bytes > 0 && stats.bytes < 2 * 1024 * 1024, "{name}: {} bytes held", stats.bytes);
            let bytes = stuck.peer.read_exactly((total - 10) * FRAME, HANG).unwrap();
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
            assert_eq!(numbers(&stuck.peer.read_exactly(FRAME, HANG).unwrap()), [total], "{name}");
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
    let bytes = stuck.peer.read_exactly((seq - 100) * FRAME, HANG).unwrap();
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
                assert_eq!(numbers(&peer.read_exactly(FRAME, HANG).unwrap()), [seq]);
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
            assert!(!hub.is_empty() && hub.stats().broadcasts > 0);
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
        let inside = bytes.len() % FRAME / "from inside".len();
        assert_eq!((bytes.len() - inside * "from inside".len()) / FRAME, total, "the healthy one missed a frame");
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
    let total = until(&hub, |hub| hub.stats().refused_bytes == 1);
    // The refusal came after the wait, and the member stays.
    let began = Instant::now();
    assert_eq!(hub.broadcast(frame(total)).unwrap().refused, 1);
    assert!(began.elapsed() >= wait, "did not wait");
    // On a runtime's thread it does not wait, but the paced form does.
    let (on_reactor, paced) = (hub.clone(), hub.clone());
    let reactor = server.reactor();
    let began = Instant::now();
    let posted = reactor.run_here(move || on_reactor.broadcast("x".repeat(FRAME)).unwrap().refused);
    assert_eq!(block_within(posted.ok().unwrap(), HANG).unwrap().unwrap(), 1);
    assert!(began.elapsed() < wait, "waited on a reactor");
    let sent = total - 1;
    let reader = std::thread::spawn(move || {
        let bytes = peer.read_exactly((sent + 2) * FRAME, HANG).unwrap();
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
