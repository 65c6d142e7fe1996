//! The hub under many threads: order, joins and leaves during broadcasts, and peers that leave in the middle.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use epoxide::{SendOutcome, SharedLimits, SharedWriter};
use epoxide_pipes::hub::{BacklogLimits, Hub, HubOptions};
use epoxide_tests_e2e::broadcast::roomy;
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, rounds, sharing, wait_until};

const HANG: Duration = Duration::from_secs(60);
const PUBLISHERS: usize = 4;

/// A hub in which nothing is too much, as for a [`roomy`] connection.
fn roomy_hub(sequenced: bool) -> Hub {
    let backlog = BacklogLimits { frames: 1 << 20, bytes: 1 << 30, age: Duration::ZERO };
    Hub::new(HubOptions { sequenced, backlog, bytes: 1 << 30, ..HubOptions::default() }).unwrap()
}

/// Publisher, sequence number, and a body that depends on both.
fn frame(publisher: usize, seq: usize, len: usize) -> Bytes {
    let mut frame = Vec::with_capacity(len);
    frame.push(publisher as u8);
    frame.extend_from_slice(&(seq as u32).to_be_bytes());
    frame.extend((5..len).map(|j| (publisher * 41 + seq * 7 + j * 3) as u8));
    Bytes::from(frame)
}

/// Takes bytes apart into frames of one length: (publisher, seq) in the order of arrival. Corrupt ones end the test.
#[derive(Default)]
struct Frames {
    partial: Vec<u8>,
    found: Vec<(usize, usize)>,
}

impl Frames {
    fn feed(&mut self, bytes: &[u8], len: usize) {
        self.partial.extend_from_slice(bytes);
        let whole = self.partial.len() / len * len;
        for got in self.partial[..whole].chunks(len) {
            let (publisher, seq) = (got[0] as usize, u32::from_be_bytes([got[1], got[2], got[3], got[4]]) as usize);
            assert!(*got == frame(publisher, seq, len), "frame {seq} of {publisher} is corrupt");
            self.found.push((publisher, seq));
        }
        self.partial.drain(..whole);
    }

    /// Each publisher's in order and without a gap.
    fn check_order(&self) {
        let mut last: HashMap<usize, usize> = HashMap::new();
        for (publisher, seq) in &self.found {
            if let Some(before) = last.insert(*publisher, *seq) {
                assert_eq!(*seq, before + 1, "publisher {publisher}: a gap or another order");
            }
        }
    }
}

/// Reads frames until the end or `count` of them.
fn read_frames(peer: Peer, len: usize, count: usize) -> JoinHandle<Read> {
    read_frames_until(peer, len, Arc::new(Goal { count: AtomicUsize::new(count), got: AtomicUsize::new(0) }))
}

/// What a reader read, why it ended before it had all, and its connection: which stays, for one that ends is no member.
type Read = (Frames, Option<Ending>, Peer);

/// How many frames a reader reads, and how many it has.
struct Goal {
    count: AtomicUsize,
    got: AtomicUsize,
}

fn read_frames_until(mut peer: Peer, len: usize, goal: Arc<Goal>) -> JoinHandle<Read> {
    std::thread::spawn(move || {
        let (mut frames, mut space) = (Frames::default(), vec![0; 65_536]);
        while frames.found.len() < goal.count.load(Ordering::SeqCst) {
            match peer.read(&mut space, HANG) {
                Ok(0) => return (frames, Some(Ending::Eof), peer),
                Ok(n) => frames.feed(&space[..n], len),
                Err(ending) => return (frames, Some(ending), peer),
            }
            goal.got.store(frames.found.len(), Ordering::SeqCst);
        }
        (frames, None, peer)
    })
}

fn publish(hub: &Hub, len: usize, each: usize) {
    let start = Barrier::new(PUBLISHERS);
    std::thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let start = &start;
            scope.spawn(move || {
                for seq in 0..each {
                    if seq % (each / 4) == 0 {
                        // Now and then together: so they take turns, whatever the scheduler does.
                        start.wait();
                    }
                    let tally = hub.broadcast(frame(publisher, seq, len)).unwrap();
                    assert_eq!((tally.refused, tally.ended), (0, 0));
                }
            });
        }
    });
}

/// Four publishers, frames that are copied and frames that are shared: every frame at every member, none corrupt, none out
/// of order; with `sequenced` all members have the same log.
#[test]
fn egress_matrix() {
    const MEMBERS: usize = 24;
    const EACH: usize = 120;
    let case = Case::start();
    for sequenced in [false, true] {
        for len in [9, 256, 8192] {
            let (server, shared) = sharing(&case, roomy());
            let hub = roomy_hub(sequenced);
            let (readers, members): (Vec<_>, Vec<_>) = (0..MEMBERS)
                .map(|_| {
                    let peer = Peer::connect_stalling(server.addr());
                    let member = hub.join(shared.recv_timeout(HANG).unwrap()).unwrap();
                    (read_frames(peer, len, PUBLISHERS * EACH), member)
                })
                .unzip();
            publish(&hub, len, EACH);
            let logs: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
            for (frames, ending, _) in &logs {
                assert!(ending.is_none(), "{ending:?} after {} frames", frames.found.len());
                frames.check_order();
                assert!(frames.partial.is_empty());
            }
            if sequenced {
                for (frames, ..) in &logs {
                    assert!(frames.found == logs[0].0.found, "two members saw two orders");
                }
                let turns = logs[0].0.found.windows(2).filter(|two| two[0].0 != two[1].0).count();
                eprintln!("{len} bytes: the publishers took {turns} turns");
                // Small ones may be out before the next thread runs.
                assert!(len < 8192 || turns > PUBLISHERS, "vacuity: the publishers took no turns");
            }
            let stats = hub.stats();
            assert_eq!(stats.sent + stats.queued, (MEMBERS * PUBLISHERS * EACH) as u64);
            assert!(wait_until(HANG, || hub.stats().bytes == 0), "a payload is left");
            if len == 8192 {
                assert!(stats.queued > 0, "vacuity: nothing ever had to wait");
            }
            drop((members, logs));
        }
    }
}

/// Members come and go while four threads publish: what each sees begins with the first broadcast after its join at the
/// latest, has no gap, and ends with the last one before its leave at the earliest.
#[test]
fn joins_and_leaves_see_no_gap() {
    const LEN: usize = 16;
    const CHURNERS: usize = 6;
    let case = Case::start_rounds();
    for sequenced in [false, true] {
        let (server, shared) = sharing(&case, roomy());
        let hub = roomy_hub(sequenced);
        // By publisher: begun (from here on), and returned (all of it is done).
        let begun: [AtomicUsize; PUBLISHERS] = Default::default();
        let returned: [AtomicUsize; PUBLISHERS] = Default::default();
        let stop = AtomicBool::new(false);
        let connections: Vec<_> =
            (0..CHURNERS).map(|_| (Peer::connect(server.addr()), shared.recv_timeout(HANG).unwrap())).collect();
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for publisher in 0..PUBLISHERS {
                let (hub, begun, returned, stop) = (&hub, &begun, &returned, &stop);
                scope.spawn(move || {
                    for seq in 0.. {
                        if stop.load(Ordering::Acquire) {
                            break;
                        }
                        begun[publisher].store(seq + 1, Ordering::SeqCst);
                        hub.broadcast(frame(publisher, seq, LEN)).unwrap();
                        returned[publisher].store(seq + 1, Ordering::SeqCst);
                        std::thread::yield_now();
                    }
                });
            }
            let churners: Vec<_> = connections
                .into_iter()
                .map(|(peer, writer)| {
                    let (hub, begun, returned, inside) = (&hub, &begun, &returned, &inside);
                    scope.spawn(move || churn(hub, peer, &writer, begun, returned, inside))
                })
                .collect();
            let failed = churners.into_iter().filter_map(|churner| churner.join().err()).count();
            stop.store(true, Ordering::Release);
            assert_eq!(failed, 0, "memberships saw what they should not, or the other way round");
        });
        let inside = inside.load(Ordering::Relaxed);
        eprintln!("sequenced {sequenced}: {inside} memberships saw broadcasts begin and end inside");
        assert!(inside > CHURNERS, "vacuity: memberships and broadcasts never met");
        assert!(hub.is_empty());
    }
}

/// Joins and leaves with one connection; each membership's bytes end with a mark of their own, sent after the leave. By
/// the member: what is sent on its writer goes out before frames that wait in a sequenced hub.
fn churn(
    hub: &Hub,
    mut peer: Peer,
    writer: &SharedWriter,
    begun: &[AtomicUsize; PUBLISHERS],
    returned: &[AtomicUsize; PUBLISHERS],
    inside: &AtomicUsize,
) {
    const LEN: usize = 16;
    let load = |all: &[AtomicUsize; PUBLISHERS]| all.each_ref().map(|one| one.load(Ordering::SeqCst));
    let (mut frames, mut space) = (Frames::default(), vec![0; 65_536]);
    let mark = frame(200, 0, LEN);
    for _ in 0..(rounds() / 25) {
        let before = load(returned);
        let member = hub.join(writer.clone()).unwrap();
        let first = load(begun);
        // A few broadcasts happen inside.
        let until = load(returned)[0] + 2;
        assert!(wait_until(HANG, || returned[0].load(Ordering::SeqCst) >= until), "the publishers stand still");
        let last = load(returned);
        assert!(block_within(member.leave(), HANG).is_some(), "a leave is left behind");
        // None is under way any more, and none begins: so nothing comes behind the mark.
        let after = load(begun);
        assert!(!matches!(member.send(mark.clone()), SendOutcome::Refused(..)));
        while !frames.found.contains(&(200, 0)) {
            let n = peer.read(&mut space, HANG).expect("frames come");
            frames.feed(&space[..n], LEN);
        }
        assert_eq!(frames.found.pop(), Some((200, 0)), "a frame came behind the mark");
        frames.check_order();
        for publisher in 0..PUBLISHERS {
            let seen: Vec<_> = frames.found.iter().filter(|(p, _)| *p == publisher).map(|(_, seq)| *seq).collect();
            // Begun after the join returned, returned before the leave: certainly seen. (There is no gap.)
            let sure = first[publisher]..last[publisher];
            assert!(
                sure.is_empty() || seen.contains(&sure.start) && seen.contains(&(sure.end - 1)),
                "{sure:?}: {seen:?}"
            );
            // Returned before the join, begun after the leave: certainly not.
            let bounds = before[publisher]..after[publisher];
            assert!(seen.iter().all(|seq| bounds.contains(seq)), "{seen:?} outside of {bounds:?}");
        }
        inside.fetch_add(usize::from(!frames.found.is_empty()), Ordering::Relaxed);
        frames.found.clear();
    }
}

/// Peers reset while broadcasts reach them: the others get everything, and the hub forgets the dead.
#[test]
fn resets_in_mid_broadcast() {
    const LEN: usize = 4096;
    const AHEAD: usize = 32;
    let case = Case::start_rounds();
    for sequenced in [false, true] {
        let (server, shared) = sharing(&case, roomy());
        let hub = roomy_hub(sequenced);
        let healthy = Peer::connect(server.addr());
        let goal = Arc::new(Goal { count: AtomicUsize::new(usize::MAX), got: AtomicUsize::new(0) });
        let reader = read_frames_until(healthy, LEN, goal.clone());
        let stays = hub.join(shared.recv_timeout(HANG).unwrap()).unwrap();
        let begun = Instant::now();
        let stop = AtomicBool::new(false);
        let (count, met) = std::thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                let mut met = 0;
                for seq in 0.. {
                    // Not far ahead: with little room in its socket the healthy one reads slowly.
                    let near = || stop.load(Ordering::Acquire) || seq < goal.got.load(Ordering::SeqCst) + AHEAD;
                    assert!(wait_until(HANG, near), "the healthy one gets nothing");
                    if stop.load(Ordering::Acquire) {
                        return (seq, met);
                    }
                    let tally = hub.broadcast(frame(1, seq, LEN)).unwrap();
                    met += usize::from(tally.sent + tally.queued > 1);
                }
                unreachable!()
            });
            for round in 0..rounds().min(60) {
                let peers: Vec<_> = (0..4).map(|_| Peer::connect_stalling(server.addr())).collect();
                let members: Vec<_> = (0..4).map(|_| hub.join(shared.recv_timeout(HANG).unwrap()).unwrap()).collect();
                let before = hub.stats().broadcasts;
                assert!(wait_until(HANG, || hub.stats().broadcasts > before + round as u64 % 3));
                peers.into_iter().for_each(Peer::reset);
                // With their handles alive: the end itself removes them.
                assert!(wait_until(HANG, || members.iter().all(|member| !member.is_member())), "not removed");
                assert!(begun.elapsed() < 4 * HANG);
            }
            stop.store(true, Ordering::Release);
            publisher.join().unwrap()
        });
        assert!(met > 10, "vacuity: no broadcast met those who reset");
        assert_eq!((hub.len(), hub.stats().left), (1, hub.stats().joined - 1));
        goal.count.store(count + 1, Ordering::SeqCst);
        hub.broadcast(frame(1, count, LEN)).unwrap();
        let (frames, ending, _peer) = reader.join().unwrap();
        assert!(ending.is_none(), "{ending:?}");
        assert_eq!(frames.found.len(), count + 1, "the healthy one missed a frame");
        frames.check_order();
        assert!(wait_until(HANG, || hub.stats().bytes == 0), "a payload is left: {}", hub.stats().bytes);
        drop(stays);
        let _: &Server = &server;
    }
}

/// 1024 members; one never reads, one takes a byte now and then, one resets in the middle. The others get every byte in
/// order, and nothing stays behind.
#[test]
fn a_thousand_members_and_three_bad_ones() {
    const MEMBERS: usize = 1024;
    const LEN: usize = 8192;
    const FRAMES: usize = 40;
    let case = Case::start();
    let limits = SharedLimits { bytes: 128 * 1024, age: Duration::ZERO, ..SharedLimits::default() };
    for sequenced in [false, true] {
        let (server, shared) = sharing(&case, limits);
        let backlog = BacklogLimits { bytes: 128 * 1024, age: Duration::ZERO, ..BacklogLimits::default() };
        let grace = Duration::from_millis(50);
        let hub = Hub::new(HubOptions { sequenced, backlog, grace, ..HubOptions::websocket() }).unwrap();
        let join = |peer| (peer, hub.join(shared.recv_timeout(HANG).unwrap()).unwrap());
        let (mut good, members): (Vec<_>, Vec<_>) =
            (0..MEMBERS - 3).map(|_| join(Peer::connect(server.addr()))).unzip();
        let mut bad: Vec<_> = (0..3).map(|_| join(Peer::connect_stalling(server.addr()))).collect();
        let (resetting, of_reset) = bad.pop().unwrap();
        let (mut trickling, of_trickle) = bad.pop().unwrap();
        let mut resetting = Some(resetting);
        assert_eq!(hub.len(), MEMBERS);
        for seq in 0..FRAMES {
            std::thread::scope(|scope| {
                let publisher = scope.spawn(|| {
                    let tally = block_within(hub.broadcast_paced(frame(0, seq, LEN)), HANG).unwrap().unwrap();
                    assert!(tally.sent + tally.queued >= MEMBERS - 3);
                });
                if seq == FRAMES / 4 {
                    // In the middle of a broadcast, or next to it.
                    resetting.take().into_iter().for_each(Peer::reset);
                }
                publisher.join().unwrap();
            });
            let _ = trickling.read(&mut [0], Duration::from_millis(1));
            let expected = frame(0, seq, LEN);
            for peer in &mut good {
                assert!(peer.read_exactly(LEN, HANG).unwrap() == expected, "frame {seq} is not what was sent");
            }
        }
        assert!(wait_until(HANG, || !of_reset.is_member()), "the reset one is a member still");
        // Both took next to nothing: more than their limit has come for them since.
        let stats = hub.stats();
        assert_eq!((stats.disconnected, hub.len()), (2, MEMBERS - 3), "{stats}");
        assert_eq!(stats.refused_bytes, 2, "{stats}");
        assert!(!of_trickle.is_member());
        drop((members, good, trickling, of_trickle, of_reset));
        drop(bad);
        assert!(wait_until(HANG, || hub.stats().bytes == 0 && hub.is_empty()), "{}", hub.stats());
    }
}
