//! The hub as its users see it: counts, joins and leaves, limits, ends of all kinds, the close.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use epoxide::{SendOutcome, SharedLimits};
use epoxide_pipes::hub::{BacklogLimits, BroadcastError, Hub, HubOptions, JoinError, Message, Policy, websocket_close};
use epoxide_tests_e2e::broadcast::{FRAME, Joined, frame, hub, join, numbers, tight, until, writer as writer_of};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, loopback, sharing, wait_until};

const HANG: Duration = Duration::from_secs(30);

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
    let (mut peer, writer) = writer_of(&server, &shared);
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
    let (_third_peer, third) = writer_of(&server, &shared);
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
        let total = until(&hub, |_| member.writer().queued_len() > 0);
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
            idle.iter_mut().for_each(|one| assert_eq!(numbers(&one.peer.read_exactly(FRAME, HANG).unwrap()), [total]));
            total += 1;
            assert!(total < 10_000, "never blocked");
        }
        let again = hub.clone();
        let close = hub.close(Duration::from_millis(500));
        assert!(hub.is_closed() && matches!(hub.broadcast("late"), Err(BroadcastError::Closed(_))));
        let (_peer, late) = writer_of(&server, &shared);
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
            drop(self.0.close(Duration::from_secs(5)));
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
        assert_eq!(peer.stream().read(&mut nothing).unwrap(), 0);
    }
}
