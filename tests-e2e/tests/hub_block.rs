//! `Policy::Block`: a broadcast that waits for members without room, on a thread of the user's own and as a future.

use std::pin::pin;
use std::thread;
use std::time::Duration;

use epoxide::{Refusal, SendOutcome};
use epoxide_pipes::hub::{HubOptions, Member, Policy, Tally};
use epoxide_tests_e2e::broadcast::{FRAME, Joined, frame, hub, join, numbers, tight};
use epoxide_tests_e2e::{Case, Parker, Peer, block_within, poll_once, sharing};

const HANG: Duration = Duration::from_secs(30);

/// Sends to one member, past the hub, until it has no room; returns how many frames it took.
fn fill(member: &Member) -> usize {
    for seq in 0.. {
        match member.writer().send(frame(seq)) {
            SendOutcome::Refused(why, _) => {
                assert_eq!(why, Refusal::Bytes);
                return seq;
            }
            _ => assert!(seq < 1000, "there is always room"),
        }
    }
    unreachable!("it returns")
}

/// Broadcasts to a member without room and to another one, for as long as it takes; `then` gets the first one's peer once
/// the other one has the frame, when only the first is waited for. Returns the frames that were there before.
fn blocked<T: Send + 'static>(then: impl FnOnce(Peer, usize) -> T + Send + 'static) -> (Tally, T) {
    let case = Case::start();
    let (server, shared) = sharing(&case, tight());
    let hub = hub(HubOptions { policy: Policy::Block(Duration::MAX), ..HubOptions::default() });
    let Joined { peer: slow, member } = join(&hub, &server, &shared);
    let Joined { peer: mut quick, member: other } = join(&hub, &server, &shared);
    let before = fill(&member);
    let told = thread::spawn(move || {
        assert_eq!(numbers(&quick.read_exactly(FRAME, HANG).unwrap()), [before]);
        then(slow, before)
    });
    let tally = hub.broadcast(frame(before)).unwrap();
    let out = told.join().unwrap();
    drop((member, other));
    (tally, out)
}

#[test]
fn a_thread_waits_until_there_is_room() {
    let (tally, received) = blocked(|mut slow, before| slow.read_exactly((before + 1) * FRAME, HANG).unwrap());
    assert_eq!((tally.sent + tally.queued, tally.refused, tally.ended), (2, 0, 0), "{tally:?}");
    assert_eq!(numbers(&received), (0..received.len() / FRAME).collect::<Vec<_>>());
}

#[test]
fn a_connection_that_ends_is_not_waited_for() {
    let (tally, ()) = blocked(|slow, _| slow.reset());
    assert_eq!((tally.sent + tally.queued, tally.refused, tally.ended), (1, 0, 1), "{tally:?}");
}

/// Given up while it waits: whoever had no room has missed the frame, and everybody else has it.
#[test]
fn a_round_that_is_given_up_is_over() {
    let case = Case::start();
    let (server, shared) = sharing(&case, tight());
    let hub = hub(HubOptions { policy: Policy::Block(Duration::MAX), ..HubOptions::default() });
    let Joined { peer: mut slow, member } = join(&hub, &server, &shared);
    let Joined { peer: mut quick, member: other } = join(&hub, &server, &shared);
    let before = fill(&member);
    {
        let mut paced = pin!(hub.broadcast_paced(frame(before)));
        assert!(poll_once(paced.as_mut(), &Parker::new()).is_pending());
        assert_eq!(hub.stats().refused_bytes, 0, "vacuity: nobody is given up yet");
    }
    assert_eq!(hub.stats().refused_bytes, 1);
    assert_eq!(numbers(&quick.read_exactly(FRAME, HANG).unwrap()), [before]);
    // The next one is another round.
    let reader = thread::spawn(move || slow.read_exactly((before + 1) * FRAME, HANG).unwrap());
    let tally = block_within(hub.broadcast_paced(frame(before + 1)), HANG).expect("there is room").unwrap();
    assert_eq!((tally.sent + tally.queued, tally.refused), (2, 0), "{tally:?}");
    let mut expected: Vec<_> = (0..before).collect();
    expected.push(before + 1);
    assert_eq!(numbers(&reader.join().unwrap()), expected);
    drop((member, other));
}
