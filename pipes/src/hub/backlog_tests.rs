//! Unit tests of the backlog: what gives way, and the mover, without any socket.

use super::*;
use std::cell::{Cell, RefCell};
use std::time::Duration;

fn limits(frames: usize, bytes: usize) -> BacklogLimits {
    BacklogLimits { frames, bytes, age: Duration::from_millis(100) }
}

/// A writer that takes so many frames and then blocks.
struct Writer {
    out: RefCell<Vec<Bytes>>,
    room: Cell<usize>,
    refuses: Cell<bool>,
    over: Cell<bool>,
    waits: Cell<usize>,
}

impl Writer {
    fn new(room: usize) -> Self {
        let (refuses, over) = (Cell::new(false), Cell::new(false));
        Self { out: RefCell::default(), room: Cell::new(room), refuses, over, waits: Cell::new(0) }
    }

    fn text(&self) -> String {
        self.out.borrow().iter().map(|frame| String::from_utf8_lossy(frame).into_owned() + " ").collect()
    }
}

impl Sink for Writer {
    fn send(&self, frame: Bytes) -> Result<Took, ()> {
        if self.over.get() {
            return Err(());
        }
        if self.refuses.get() {
            return Ok(Took::Back(frame));
        }
        self.out.borrow_mut().push(frame);
        let room = self.room.get();
        self.room.set(room.saturating_sub(1));
        Ok(if room > 0 { Took::Sent } else { Took::Queued })
    }

    fn wait(&self) -> bool {
        self.waits.set(self.waits.get() + 1);
        true
    }
}

fn offer(backlog: &Backlog, frame: &str, key: Option<u64>, now: u32) -> Result<Displaced, NoRoom> {
    backlog.offer(&Bytes::copy_from_slice(frame.as_bytes()), key, now)
}

#[test]
fn refusing_keeps_what_waits() {
    let backlog = Backlog::new(limits(2, 10), Overflow::Refuse);
    // A frame above the limit is taken when nothing waits.
    assert!(offer(&backlog, "0123456789ab", None, 1).unwrap().is_empty());
    assert_eq!(offer(&backlog, "x", None, 1).unwrap_err(), NoRoom::Limit(Refusal::Bytes));
    assert_eq!(backlog.start(&Writer::new(9), 1000), Moved::All);
    for frame in ["a", "b"] {
        assert!(offer(&backlog, frame, None, 1).is_ok());
    }
    assert_eq!(offer(&backlog, "c", None, 1).unwrap_err(), NoRoom::Limit(Refusal::Frames));
    let writer = Writer::new(9);
    assert_eq!(backlog.start(&writer, 1000), Moved::All);
    assert_eq!(writer.text(), "a b ");
    assert!(backlog.is_idle() && backlog.bytes() == 0);
}

#[test]
fn too_old_is_a_refusal_or_a_drop() {
    for overflow in [Overflow::Refuse, Overflow::DropOldest] {
        let backlog = Backlog::new(limits(9, 1000), overflow);
        assert!(offer(&backlog, "old", None, 1).is_ok());
        assert!(offer(&backlog, "at the limit", None, 101).is_ok());
        // A stamp from another thread may be ahead.
        assert!(offer(&backlog, "early", None, 0).is_ok());
        match (overflow, offer(&backlog, "new", None, 102)) {
            (Overflow::Refuse, Err(why)) => assert_eq!(why, NoRoom::Limit(Refusal::Age)),
            (Overflow::DropOldest, Ok(displaced)) => assert_eq!(displaced.dropped, [&b"old"[..]]),
            (_, other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_oldest_give_way_as_many_as_it_takes() {
    let backlog = Backlog::new(limits(3, 10), Overflow::DropOldest);
    for frame in ["aaa", "bbb", "ccc"] {
        assert!(offer(&backlog, frame, None, 1).unwrap().is_empty());
    }
    assert_eq!(offer(&backlog, "dddddd", None, 1).unwrap().dropped, [&b"aaa"[..], &b"bbb"[..]]);
    assert_eq!(backlog.bytes(), 9);
    assert_eq!(offer(&backlog, "e", None, 1).unwrap().dropped.len(), 0);
    assert_eq!(offer(&backlog, "f", None, 1).unwrap().dropped, [&b"ccc"[..]]);
    let writer = Writer::new(9);
    assert_eq!(backlog.start(&writer, 1000), Moved::All);
    assert_eq!(writer.text(), "dddddd e f ");
}

#[test]
fn the_latest_of_a_key_waits_and_the_others_keep_their_order() {
    let backlog = Backlog::new(limits(4, 100), Overflow::Latest);
    for (frame, key) in [("a1", Some(1)), ("plain", None), ("b1", Some(2))] {
        assert!(offer(&backlog, frame, key, 1).unwrap().is_empty());
    }
    assert_eq!(offer(&backlog, "a2", Some(1), 1).unwrap().conflated.unwrap(), &b"a1"[..]);
    assert!(offer(&backlog, "plain2", None, 1).unwrap().is_empty());
    assert_eq!(offer(&backlog, "c", Some(3), 1).unwrap().dropped, [&b"plain"[..]]);
    let writer = Writer::new(9);
    assert_eq!(backlog.start(&writer, 1000), Moved::All);
    assert_eq!(writer.text(), "b1 a2 plain2 c ");
}

#[test]
fn a_mover_that_is_blocked_keeps_the_mark_until_it_is_woken() {
    let backlog = Backlog::new(limits(99, 1000), Overflow::DropOldest);
    let writer = Writer::new(1);
    for frame in ["a", "b", "c"] {
        assert!(offer(&backlog, frame, None, 1).is_ok());
        let moved = backlog.start(&writer, 1000);
        assert_eq!(moved, if frame == "a" { Moved::All } else { Moved::Later });
    }
    // b is with the writer, so nothing takes it back; c waits.
    assert_eq!((writer.text().as_str(), writer.waits.get(), backlog.bytes()), ("a b ", 1, 1));
    assert!(!backlog.is_idle());
    writer.room.set(9);
    assert_eq!(backlog.go_on(&writer, 1000), Moved::All);
    assert_eq!(writer.text(), "a b c ");
    assert!(backlog.is_idle());
}

#[test]
fn a_frame_that_the_writer_refuses_keeps_its_place_and_key() {
    let backlog = Backlog::new(limits(99, 1000), Overflow::Latest);
    let writer = Writer::new(9);
    writer.refuses.set(true);
    assert!(offer(&backlog, "a1", Some(1), 1).is_ok());
    assert!(offer(&backlog, "b", None, 1).is_ok());
    assert_eq!(backlog.start(&writer, 1000), Moved::Later);
    assert_eq!(backlog.bytes(), 3);
    assert!(offer(&backlog, "a2", Some(1), 1).unwrap().conflated.is_some());
    writer.refuses.set(false);
    assert_eq!(backlog.go_on(&writer, 1000), Moved::All);
    assert_eq!(writer.text(), "b a2 ");
}

#[test]
fn a_mover_has_a_budget_and_an_end() {
    let backlog = Backlog::new(limits(99, 1000), Overflow::Refuse);
    let writer = Writer::new(99);
    for frame in ["aaaa", "bbbb", "cccc"] {
        assert!(offer(&backlog, frame, None, 1).is_ok());
    }
    assert_eq!(backlog.start(&writer, 5), Moved::Budget);
    assert_eq!((writer.text().as_str(), backlog.bytes()), ("aaaa bbbb ", 4));
    assert_eq!(backlog.start(&writer, 5), Moved::Later, "the mark is taken");
    writer.over.set(true);
    assert_eq!(backlog.go_on(&writer, 5), Moved::Over);
    // Nobody has the mark, nothing waits, and so it stays.
    assert!(backlog.is_idle() && backlog.bytes() == 0);
    assert_eq!(offer(&backlog, "late", None, 1).unwrap_err(), NoRoom::Over);
    assert_eq!(backlog.start(&writer, 5), Moved::Over);
    assert!(backlog.is_idle());
}

/// Does something while a frame is in the mover's hands.
struct Meanwhile<'a>(&'a Backlog, fn(&Backlog), fn(Bytes) -> Took);

impl Sink for Meanwhile<'_> {
    fn send(&self, frame: Bytes) -> Result<Took, ()> {
        self.1(self.0);
        Ok(self.2(frame))
    }

    fn wait(&self) -> bool {
        false
    }
}

#[test]
fn a_frame_in_the_movers_hands_is_not_forgotten() {
    let backlog = Backlog::new(limits(9, 1000), Overflow::Refuse);
    assert!(offer(&backlog, "a", None, 1).is_ok());
    let look = |backlog: &Backlog| assert!(backlog.bytes() == 0 && !backlog.is_idle(), "it is in nobody's count");
    assert_eq!(backlog.start(&Meanwhile(&backlog, look, |_| Took::Sent), 1000), Moved::All);
    assert!(backlog.is_idle());
}

#[test]
fn what_has_ended_is_not_revived_from_the_movers_hands() {
    let backlog = Backlog::new(limits(9, 1000), Overflow::Refuse);
    assert!(offer(&backlog, "a", None, 1).is_ok());
    assert!(offer(&backlog, "b", None, 1).is_ok());
    assert_eq!(backlog.start(&Meanwhile(&backlog, Backlog::end, Took::Back), 1000), Moved::All);
    assert!(backlog.is_idle() && backlog.bytes() == 0, "a frame is back");
    assert_eq!(offer(&backlog, "c", None, 1).unwrap_err(), NoRoom::Over);
}

#[test]
fn who_cannot_hand_over_finds_an_end() {
    let backlog = Backlog::new(limits(9, 1000), Overflow::DropOldest);
    assert!(offer(&backlog, "aaaa", None, 1).is_ok());
    assert!(offer(&backlog, "bbbb", None, 1).is_ok());
    assert_eq!(backlog.start(&Writer::new(9), 1), Moved::Budget);
    let publish = |backlog: &Backlog| {
        assert_eq!(offer(backlog, "more", None, 1).unwrap_err(), NoRoom::Limit(Refusal::Frames), "no end");
    };
    assert_eq!(backlog.finish(&Meanwhile(&backlog, publish, |_| Took::Sent)), Moved::All);
    assert!(offer(&backlog, "c", None, 1).is_ok());
    // A writer that blocks is an end as well.
    assert_eq!(backlog.start(&Writer::new(0), 1), Moved::Later);
    assert!(offer(&backlog, "d", None, 1).is_ok());
    assert_eq!(backlog.finish(&Writer::new(0)), Moved::Later);
    assert!(offer(&backlog, "e", None, 1).is_ok(), "jammed for ever");
}
