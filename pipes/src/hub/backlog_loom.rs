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
