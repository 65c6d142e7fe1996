//! Models of the roster's promises: join, leave and close against broadcasts. The roster is the real one; a broadcast is
//! its begin, a look at the members, its end. Each step that a promise hangs on can be left out: those are the twins.
//!
//! State: the model's. Thread class: loom's. Law 12.

use crate::hub::roster::{Ended, Roster};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use std::sync::Arc as StdArc;
use std::task::{Wake, Waker};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Twin {
    Right,
    /// The leave looks at what runs, and registers its waker later.
    LookBeforeRegister,
    /// The leave does not wait.
    NoWait,
    /// A broadcast takes its snapshot and says that it runs afterwards.
    SnapshotBeforeBegin,
    /// The close hands the members over although something is under way.
    CloseDoesNotWait,
    /// A join looks whether the hub is closed, and enters later.
    JoinLooksBefore,
    EndDoesNotWake,
}

#[derive(Default)]
struct Member {
    /// Sends under way.
    sending: AtomicUsize,
    sent: AtomicUsize,
    goodbyes: AtomicUsize,
}

type Ref = Arc<Member>;

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: StdArc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

struct Model {
    twin: Twin,
    roster: Roster<u32, Ref>,
}

impl Model {
    fn new(twin: Twin) -> Arc<Self> {
        Arc::new(Self { twin, roster: Roster::new(8) })
    }

    fn join(&self, key: u32) -> Option<Ref> {
        let make = |_| Ref::new(Member::default());
        if self.twin == Twin::JoinLooksBefore {
            if self.roster.is_closed() {
                return None;
            }
            // A roster that does not look by itself: the member is in the hands of nobody.
            return Some(self.roster.join(key, make, |_| {}).unwrap_or_else(|_| Ref::new(Member::default())));
        }
        self.roster.join(key, make, |_| {}).ok()
    }

    fn settle(&self, ended: Ended<u32, Ref>) {
        if self.twin != Twin::EndDoesNotWake {
            ended.wakers.into_iter().for_each(Waker::wake);
        }
        if let Some((members, _)) = ended.last {
            goodbye(members.iter().flat_map(|chunk| chunk.iter()).map(|(_, member)| member));
        }
    }

    /// True: it began.
    fn broadcast(&self) -> bool {
        let begun = if self.twin == Twin::SnapshotBeforeBegin {
            let early = self.roster.begin(|_| {}).map(|begun| {
                self.settle(self.roster.end(begun.number));
                begun.members
            });
            early.and_then(|members| self.roster.begin(|_| {}).map(|begun| (begun.number, members)))
        } else {
            self.roster.begin(|_| {}).map(|begun| (begun.number, begun.members))
        };
        let Some((number, members)) = begun else { return false };
        for (_, member) in members.iter().flat_map(|chunk| chunk.iter()) {
            member.sending.fetch_add(1, Ordering::AcqRel);
            member.sent.fetch_add(1, Ordering::AcqRel);
            assert_eq!(member.goodbyes.load(Ordering::Acquire), 0, "sent behind the goodbye");
            member.sending.fetch_sub(1, Ordering::AcqRel);
        }
        self.settle(self.roster.end(number));
        true
    }

    fn close(&self) {
        if self.twin == Twin::CloseDoesNotWait {
            // As if nothing were under way.
            let begun = self.roster.begin(|_| {});
            if let Some(begun) = begun {
                goodbye(begun.members.iter().flat_map(|chunk| chunk.iter()).map(|(_, member)| member));
                self.settle(self.roster.end(begun.number));
            }
            let ended = self.roster.close();
            ended.wakers.into_iter().for_each(Waker::wake);
            return;
        }
        self.settle(self.roster.close());
    }

    /// One poll of a leave's wait; `Some`: pending, and this is woken.
    fn poll_leave(&self, upto: u64) -> Option<StdArc<Flag>> {
        let flag = StdArc::new(Flag(AtomicBool::new(false)));
        let waker = Waker::from(flag.clone());
        match self.twin {
            Twin::NoWait => None,
            Twin::LookBeforeRegister => {
                let nobody = StdArc::new(Flag(AtomicBool::new(false)));
                if self.roster.poll_past(upto, &mut None, &Waker::from(nobody)) {
                    return None;
                }
                // Registered too late: what it waited for may be over.
                thread::yield_now();
                Some(flag)
            }
            _ => (!self.roster.poll_past(upto, &mut None, &waker)).then_some(flag),
        }
    }
}

fn goodbye<'a>(members: impl Iterator<Item = &'a Ref>) {
    for member in members {
        assert_eq!(member.sending.load(Ordering::Acquire), 0, "a goodbye into a broadcast");
        assert_eq!(member.goodbyes.fetch_add(1, Ordering::AcqRel), 0, "two goodbyes");
    }
}

/// Who has left and waited is in nobody's hands; who waits is woken.
fn leave_against_broadcasts(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let member = model.join(1).unwrap();
        let other = model.clone();
        let publisher = thread::spawn(move || other.broadcast());
        let left = model.roster.leave(1, &1, || true);
        assert!(left.is_some() && model.roster.leave(1, &1, || true).is_none());
        let upto = model.roster.latest();
        let pending = model.poll_leave(upto);
        if let Some(woken) = pending {
            publisher.join().unwrap();
            assert!(woken.0.load(Ordering::Acquire), "a leave is left behind");
            assert!(model.roster.poll_past(upto, &mut None, Waker::noop()));
        } else {
            let seen = member.sent.load(Ordering::Acquire);
            assert_eq!(member.sending.load(Ordering::Acquire), 0, "left, and a send is under way");
            // None that begins now reaches it.
            assert!(model.broadcast());
            publisher.join().unwrap();
            assert_eq!(member.sent.load(Ordering::Acquire), seen, "sent after the leave");
        }
    });
}

#[test]
fn loom_hub_leave_waits_for_what_is_under_way() {
    leave_against_broadcasts(Twin::Right);
}

#[test]
#[should_panic(expected = "after the leave")]
fn loom_twin_hub_leave_does_not_wait() {
    leave_against_broadcasts(Twin::NoWait);
}

#[test]
#[should_panic(expected = "after the leave")]
fn loom_twin_hub_snapshot_before_the_begin() {
    leave_against_broadcasts(Twin::SnapshotBeforeBegin);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_hub_look_before_the_registration() {
    leave_against_broadcasts(Twin::LookBeforeRegister);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_hub_end_does_not_wake() {
    leave_against_broadcasts(Twin::EndDoesNotWake);
}

/// Whoever joined gets one goodbye, behind every broadcast that began; whoever did not, nothing. A broadcast that begins
/// after the join reaches the member.
fn close_against_joins_and_broadcasts(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let early = model.join(1).unwrap();
        let other = model.clone();
        let publisher = thread::spawn(move || other.broadcast());
        let other = model.clone();
        let joiner = thread::spawn(move || {
            let member = other.join(2)?;
            let sent = other.broadcast();
            Some((member, sent))
        });
        model.close();
        let began = publisher.join().unwrap();
        let late = joiner.join().unwrap();
        assert_eq!(early.goodbyes.load(Ordering::Acquire), 1, "no goodbye for who joined");
        let own = matches!(late, Some((_, true)));
        assert_eq!(early.sent.load(Ordering::Acquire), usize::from(began) + usize::from(own));
        if let Some((member, sent)) = late {
            assert_eq!(member.goodbyes.load(Ordering::Acquire), 1, "no goodbye for who joined");
            assert!(member.sent.load(Ordering::Acquire) >= usize::from(sent), "a broadcast after the join missed it");
        }
        assert!(!model.broadcast() && model.join(3).is_none() && model.roster.len() == 0);
    });
}

#[test]
fn loom_hub_close_says_goodbye_once_behind_everything() {
    close_against_joins_and_broadcasts(Twin::Right);
}

#[test]
#[should_panic(expected = "goodbye")]
fn loom_twin_hub_close_does_not_wait() {
    close_against_joins_and_broadcasts(Twin::CloseDoesNotWait);
}

#[test]
#[should_panic(expected = "no goodbye for who joined")]
fn loom_twin_hub_join_looks_before() {
    close_against_joins_and_broadcasts(Twin::JoinLooksBefore);
}
