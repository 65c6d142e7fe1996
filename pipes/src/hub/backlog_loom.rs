//! A model of the backlog: publishers, a member's writer that blocks, and whoever is woken when it is empty. The backlog is
//! the real one; the writer is made of atomics.
//!
//! State: the model's. Thread class: loom's. Law 3 (its shape), 12.

use crate::hub::backlog::{Backlog, Moved, Overflow, Sink, Took};
use crate::hub::options::BacklogLimits;
use bytes::Bytes;
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Twin {
    Right,
    /// Two move at once: nobody asks for the mark.
    NoMark,
    /// The writer is asked whether it is empty before the wait is noted.
    LookBeforeWait,
    /// Who finds the mark taken does not append first.
    StartBeforeOffer,
    /// Who says goodbye asks for the bytes that wait, not for the mark.
    LookAtBytes,
    /// Who ends drops what waits, and lets a frame in the mover's hands come back.
    DropOnly,
}

const FRAMES: usize = 4;

/// A writer that takes one frame at a time and then blocks until the reactor has made room.
///
/// Every change of a flag is a read-modify-write, so that loom keeps them in one order.
struct Writer {
    twin: Twin,
    /// The one frame that is not out.
    full: AtomicBool,
    /// Is a waker registered?
    waits: AtomicBool,
    /// The wait; the mark rests with it.
    slot: Mutex<bool>,
    at: AtomicUsize,
    wire: [AtomicUsize; FRAMES],
}

struct Model {
    backlog: Backlog,
    writer: Writer,
}

impl Sink for Model {
    fn send(&self, frame: Bytes) -> Result<Took, ()> {
        // Loaded and stored, not added to: two movers at once would lose frames.
        let at = self.writer.at.load(Ordering::Relaxed);
        self.writer.wire[at].store(usize::from(frame[0]), Ordering::Relaxed);
        self.writer.at.store(at + 1, Ordering::Relaxed);
        self.writer.full.swap(true, Ordering::SeqCst);
        Ok(Took::Queued)
    }

    fn wait(&self) -> bool {
        let mut slot = self.writer.slot.lock().unwrap();
        *slot = true;
        !self.writer.poll(&mut slot)
    }
}

impl Writer {
    /// One poll of the wait, as in `Watch`: true once it is over, and then the slot is empty.
    fn poll(&self, slot: &mut bool) -> bool {
        if !*slot {
            return false;
        }
        let full = if self.twin == Twin::LookBeforeWait {
            let full = self.full.load(Ordering::SeqCst);
            self.waits.swap(true, Ordering::SeqCst);
            full
        } else {
            self.waits.swap(true, Ordering::SeqCst);
            loom::sync::atomic::fence(Ordering::SeqCst);
            self.full.load(Ordering::SeqCst)
        };
        *slot = full;
        !full
    }
}

impl Model {
    fn new(twin: Twin) -> Arc<Self> {
        let writer = Writer {
            twin,
            full: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            slot: Mutex::new(false),
            at: AtomicUsize::new(0),
            wire: std::array::from_fn(|_| AtomicUsize::new(0)),
        };
        Arc::new(Self { backlog: Backlog::new(BacklogLimits::default(), Overflow::Refuse), writer })
    }

    fn publish(&self, frame: u8) {
        let bytes = Bytes::copy_from_slice(&[frame]);
        let offer = || assert!(self.backlog.offer(&bytes, None, 1).is_ok());
        match self.writer.twin {
            Twin::StartBeforeOffer => {
                let _ = self.backlog.start(self, 1000);
                offer();
            }
            Twin::NoMark => {
                offer();
                let _ = self.backlog.go_on(self, 1000);
            }
            _ => {
                offer();
                let _ = self.backlog.start(self, 1000);
            }
        }
    }

    /// The peer has taken the frame: whoever waits is woken and goes on.
    fn room(&self) {
        self.writer.full.swap(false, Ordering::SeqCst);
        loom::sync::atomic::fence(Ordering::SeqCst);
        let over = self.writer.waits.swap(false, Ordering::SeqCst) && {
            let mut slot = self.writer.slot.lock().unwrap();
            self.writer.poll(&mut slot)
        };
        if over {
            assert!(self.backlog.go_on(self, 1000) != Moved::Budget);
        }
    }
}

fn publishers_and_room(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let other = model.clone();
        let publisher = thread::spawn(move || {
            other.publish(1);
        });
        let reactor = model.clone();
        let reactor = thread::spawn(move || reactor.room());
        model.publish(2);
        model.publish(3);
        publisher.join().unwrap();
        reactor.join().unwrap();
        // The peer takes the rest.
        while model.writer.full.load(Ordering::SeqCst) {
            model.room();
        }
        assert!(model.backlog.is_idle(), "a frame is left behind");
        let at = model.writer.at.load(Ordering::Relaxed);
        let wire: Vec<_> = model.writer.wire[..at].iter().map(|frame| frame.load(Ordering::Relaxed)).collect();
        let mut sorted = wire.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, [1, 2, 3], "a frame is left behind or came twice");
        let place = |frame| wire.iter().position(|sent| *sent == frame);
        assert!(place(2) < place(3), "out of order: {wire:?}");
    });
}

#[test]
fn loom_hub_backlog_moves_on_in_order() {
    publishers_and_room(Twin::Right);
}

#[test]
#[should_panic]
fn loom_twin_hub_backlog_without_the_mark() {
    publishers_and_room(Twin::NoMark);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_hub_backlog_look_before_the_wait() {
    publishers_and_room(Twin::LookBeforeWait);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_hub_backlog_start_before_the_offer() {
    publishers_and_room(Twin::StartBeforeOffer);
}

/// What the mover gave to a connection, and whether that is over; `full`: it takes nothing.
struct Wire {
    sent: AtomicUsize,
    said: AtomicBool,
    over: AtomicBool,
    full: bool,
}

impl Wire {
    fn new(full: bool) -> Self {
        Self { sent: AtomicUsize::new(0), said: AtomicBool::new(false), over: AtomicBool::new(false), full }
    }
}

impl Sink for Wire {
    fn send(&self, frame: Bytes) -> Result<Took, ()> {
        if self.over.load(Ordering::SeqCst) {
            return Err(());
        }
        if self.full {
            return Ok(Took::Back(frame));
        }
        assert!(!self.said.load(Ordering::SeqCst), "the goodbye overtook a frame");
        self.sent.fetch_add(1, Ordering::SeqCst);
        Ok(Took::Sent)
    }

    fn wait(&self) -> bool {
        true
    }
}

fn offered(frames: u8) -> Arc<Backlog> {
    let backlog = Arc::new(Backlog::new(BacklogLimits::default(), Overflow::Refuse));
    for frame in 0..frames {
        assert!(backlog.offer(&Bytes::copy_from_slice(&[frame]), None, 1).is_ok());
    }
    backlog
}

/// Two movers of a connection that ends under them.
#[test]
fn loom_hub_backlog_of_a_connection_that_is_over() {
    loom::model(|| {
        let (backlog, wire) = (offered(1), Arc::new(Wire::new(false)));
        let (of_publisher, its_wire) = (backlog.clone(), wire.clone());
        let publisher = thread::spawn(move || {
            let _ = of_publisher.offer(&Bytes::copy_from_slice(&[1]), None, 1);
            let _ = of_publisher.start(&*its_wire, 1000);
        });
        let (of_other, its_wire) = (backlog.clone(), wire.clone());
        let other = thread::spawn(move || {
            let _ = of_other.start(&*its_wire, 1000);
        });
        wire.over.swap(true, Ordering::SeqCst);
        publisher.join().unwrap();
        other.join().unwrap();
        assert!(backlog.is_idle() && backlog.bytes() == 0, "somebody keeps the mark of a connection that is over");
        assert!(wire.sent.load(Ordering::SeqCst) <= 2);
    });
}

/// A mover against who says goodbye once all has been moved.
fn goodbye(twin: Twin) {
    loom::model(move || {
        let (backlog, wire) = (offered(1), Arc::new(Wire::new(false)));
        let (of_mover, its_wire) = (backlog.clone(), wire.clone());
        let mover = thread::spawn(move || {
            let _ = of_mover.start(&*its_wire, 1000);
        });
        let moved = if twin == Twin::LookAtBytes { backlog.bytes() == 0 } else { backlog.is_idle() };
        if moved {
            wire.said.swap(true, Ordering::SeqCst);
        }
        mover.join().unwrap();
        assert_eq!(wire.sent.load(Ordering::SeqCst), 1);
    });
}

#[test]
fn loom_hub_backlog_goodbye_behind_the_last_frame() {
    goodbye(Twin::Right);
}

#[test]
#[should_panic(expected = "the goodbye overtook a frame")]
fn loom_twin_hub_backlog_goodbye_by_the_bytes() {
    goodbye(Twin::LookAtBytes);
}

/// A mover that is refused, and puts its frame back, against who ends.
fn ended(twin: Twin) {
    loom::model(move || {
        let backlog = offered(1);
        let of_mover = backlog.clone();
        let mover = thread::spawn(move || {
            let _ = of_mover.start(&Wire::new(true), 1000);
        });
        if twin == Twin::DropOnly {
            backlog.drop_only();
        } else {
            backlog.end();
        }
        mover.join().unwrap();
        assert_eq!(backlog.bytes(), 0, "a frame is back");
    });
}

#[test]
fn loom_hub_backlog_that_has_ended_takes_nothing_back() {
    ended(Twin::Right);
}

#[test]
#[should_panic(expected = "a frame is back")]
fn loom_twin_hub_backlog_ends_by_dropping_only() {
    ended(Twin::DropOnly);
}
