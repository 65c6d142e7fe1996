//! Loom: the bits in which a connection's users and its reactor say what has ended (`Body::ends`), against each other.
//!
//! State: stand-ins for the bits, the key and the message, from atomics only; the read word is the real one. Thread class:
//! tests. Laws: 6, 9 (who comes second, the user that leaves or the reactor that adopts, sees the other), 11, 12 (of a
//! drain and a reader that leaves its shared writer alone one sees both).

use super::body::ends::{KNOWN, READER_GONE, WRITER_GONE, are_both_gone};
use super::read_word::{Mark, ReadWord};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use loom::sync::Arc;
use loom::thread;

#[derive(Clone, Copy, PartialEq)]
enum Twin {
    Right,
    /// The reactor says that it knows the connection before it gave it a key.
    KnownBeforeTheKey,
    /// The reactor looks for the users, and says in a second step that it knows the connection.
    ReactorLooksFirst,
    /// The user looks for the reactor, and says in a second step that it is gone.
    UserLooksFirst,
    NoFence,
}

const KEY: u32 = 7;

struct Adoption {
    ends: AtomicU32,
    key: AtomicU32,
    /// Keys that the reactor was told of, in all.
    told: AtomicU32,
}

impl Adoption {
    /// As `half_gone` and `tell_reactor`.
    fn half_gone(&self, half: u32, twin: Twin) {
        let before = match twin {
            Twin::UserLooksFirst => {
                let before = self.ends.load(Ordering::Acquire);
                self.ends.fetch_or(half, Ordering::AcqRel) & !KNOWN | before & KNOWN
            }
            _ => self.ends.fetch_or(half, Ordering::AcqRel),
        };
        if are_both_gone(before | half) && before & KNOWN != 0 {
            self.told.fetch_add(self.key.load(Ordering::Acquire), Ordering::AcqRel);
        }
    }

    /// As `adopt_connection`. True: both halves are gone already.
    fn adopt(&self, twin: Twin) -> bool {
        if twin != Twin::KnownBeforeTheKey {
            self.key.store(KEY, Ordering::Release);
        }
        let before = match twin {
            Twin::ReactorLooksFirst => {
                let before = self.ends.load(Ordering::Acquire);
                self.ends.fetch_or(KNOWN, Ordering::AcqRel);
                before
            }
            _ => self.ends.fetch_or(KNOWN, Ordering::AcqRel),
        };
        if twin == Twin::KnownBeforeTheKey {
            self.key.store(KEY, Ordering::Release);
        }
        are_both_gone(before)
    }
}

/// The halves go, on two threads, while the reactor adopts: it is told once, by its own look or by a message with the key.
fn adoption(twin: Twin) {
    loom::model(move || {
        let body = Arc::new(Adoption { ends: AtomicU32::new(0), key: AtomicU32::new(0), told: AtomicU32::new(0) });
        let users: Vec<_> = [READER_GONE, WRITER_GONE]
            .map(|half| {
                let body = body.clone();
                thread::spawn(move || body.half_gone(half, twin))
            })
            .into();
        let seen = body.adopt(twin);
        users.into_iter().for_each(|user| user.join().unwrap());
        let told = body.told.load(Ordering::Acquire) + if seen { KEY } else { 0 };
        assert_eq!(told, KEY, "nobody lets the connection go, or two do");
    });
}

/// A reader leaves its shared writer alone while the reactor drains: somebody ends the connection, as
/// `end_if_nobody_is_left`.
fn nobody_is_left(twin: Twin) {
    loom::model(move || {
        let shared = Arc::new((AtomicU32::new(0), ReadWord::new(false), AtomicBool::new(false)));
        let look = move |(ends, read, ended): &(AtomicU32, ReadWord, AtomicBool)| {
            if twin != Twin::NoFence {
                fence(Ordering::SeqCst);
            }
            if ends.load(Ordering::Acquire) & READER_GONE != 0 && read.look().is_draining() {
                ended.store(true, Ordering::Release);
            }
        };
        let user = thread::spawn({
            let shared = shared.clone();
            move || {
                if twin == Twin::UserLooksFirst {
                    look(&shared);
                }
                shared.0.fetch_or(READER_GONE, Ordering::AcqRel);
                if twin != Twin::UserLooksFirst {
                    look(&shared);
                }
            }
        });
        assert!(shared.1.signal(Mark::Draining).is_none(), "nobody reads");
        look(&shared);
        user.join().unwrap();
        assert!(shared.2.load(Ordering::Acquire), "the connection stays, and nobody is left");
    });
}

#[test]
fn loom_who_leaves_during_the_adoption_is_seen() {
    adoption(Twin::Right);
}

#[test]
#[should_panic(expected = "nobody lets")]
fn loom_twin_known_before_the_key() {
    adoption(Twin::KnownBeforeTheKey);
}

#[test]
#[should_panic(expected = "nobody lets")]
fn loom_twin_the_reactor_looks_before_it_tells() {
    adoption(Twin::ReactorLooksFirst);
}

#[test]
#[should_panic(expected = "nobody lets")]
fn loom_twin_the_user_looks_before_it_tells() {
    adoption(Twin::UserLooksFirst);
}

#[test]
fn loom_a_drain_meets_a_reader_that_leaves() {
    nobody_is_left(Twin::Right);
}

#[test]
#[should_panic(expected = "nobody is left")]
fn loom_twin_no_fence_before_the_look() {
    nobody_is_left(Twin::NoFence);
}

#[test]
#[should_panic(expected = "nobody is left")]
fn loom_twin_the_reader_looks_before_it_leaves() {
    nobody_is_left(Twin::UserLooksFirst);
}
