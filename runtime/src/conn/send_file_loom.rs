//! A model of the flush that is lent to a `SendFile`: the hand-over at the edge, a new waker, the drop, the close.
//!
//! The flush word is the real one; the future's steps and the reactor's are written out again over a socket of atomics.
//! State: the model's. Thread class: loom's. Laws 3, 6, 12.

use crate::conn::flush_word::{Close, FlushWord, Kick, Leave};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The step that a twin gets wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Twin {
    Right,
    BlockBeforeWaiter,
    NoSecondLook,
    HandOverUnlocked,
    /// Done with the file, the owner leaves without a look at the queue.
    ForgetsQueue,
}

struct Slow {
    lent: bool,
    waiter: Option<usize>,
    /// Records that a layer has queued.
    queued: usize,
}

struct Model {
    twin: Twin,
    word: FlushWord,
    slow: Mutex<Slow>,
    room: AtomicUsize,
    /// The waker of each poll.
    woken: [AtomicBool; 3],
    /// Records of the layer that went out.
    records: AtomicUsize,
}

/// How a poll ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Polled {
    Ready,
    Closed,
    Pending,
}

impl Model {
    /// The future has claimed the flush.
    fn new(twin: Twin) -> Arc<Self> {
        let model = Self {
            twin,
            word: FlushWord::new(),
            slow: Mutex::new(Slow { lent: true, waiter: None, queued: 0 }),
            room: AtomicUsize::new(0),
            woken: std::array::from_fn(|_| AtomicBool::new(false)),
            records: AtomicUsize::new(0),
        };
        assert!(model.word.claim());
        Arc::new(model)
    }

    fn set_waiter(&self, waker: usize) {
        self.slow.lock().unwrap().waiter = Some(waker);
    }

    fn wake_writer(&self) {
        if let Some(waker) = self.slow.lock().unwrap().waiter.take() {
            self.woken[waker].store(true, Ordering::Release);
        }
    }

    /// The owner's loop: one piece is to be sent.
    fn send(&self, waker: usize) -> Polled {
        loop {
            let sent = self.room.load(Ordering::Relaxed) > 0;
            if sent {
                self.slow.lock().unwrap().lent = false;
                return self.finish();
            }
            let leave = if self.twin == Twin::BlockBeforeWaiter {
                let leave = self.word.block();
                self.set_waiter(waker);
                leave
            } else {
                self.set_waiter(waker);
                self.word.block()
            };
            match leave {
                Leave::Left { .. } => return Polled::Pending,
                Leave::Again => {}
                Leave::Closed => {
                    self.leave_closed();
                    return Polled::Closed;
                }
            }
        }
    }

    fn leave_closed(&self) {
        self.word.left_closed();
        self.wake_writer();
    }

    fn poll_again(&self, waker: usize) -> Polled {
        if !self.word.serve_owed() {
            self.set_waiter(waker);
            if self.twin == Twin::NoSecondLook || !self.word.serve_owed() {
                return if self.word.is_closed() { Polled::Closed } else { Polled::Pending };
            }
        }
        self.send(waker)
    }

    fn give_back(&self) {
        let mut slow = self.slow.lock().unwrap();
        slow.lent = false;
        slow.waiter = None;
        let owned = self.word.serve_owed();
        drop(slow);
        if owned {
            let _ = self.finish();
        }
    }

    /// `drive` of what a layer has queued.
    fn finish(&self) -> Polled {
        loop {
            if self.twin != Twin::ForgetsQueue {
                let queued = std::mem::take(&mut self.slow.lock().unwrap().queued);
                self.records.fetch_add(queued, Ordering::Relaxed);
            }
            match self.word.finish() {
                Leave::Left { .. } => return Polled::Ready,
                Leave::Again => {}
                Leave::Closed => {
                    self.leave_closed();
                    return Polled::Closed;
                }
            }
        }
    }

    /// A layer queues its end.
    fn append(&self) {
        self.slow.lock().unwrap().queued += 1;
        if self.word.kick() == Kick::Own {
            let _ = self.finish();
        }
    }

    /// The reactor: the peer took everything, a writable edge.
    fn edge(&self) {
        self.room.store(1, Ordering::Relaxed);
        if !self.word.writable() {
            return;
        }
        let slow = self.slow.lock().unwrap();
        if !slow.lent {
            drop(slow);
            let _ = self.finish();
            return self.wake_writer();
        }
        let leave = if self.twin == Twin::HandOverUnlocked {
            drop(slow);
            self.word.owe()
        } else {
            let leave = self.word.owe();
            drop(slow);
            leave
        };
        match leave {
            Leave::Closed => self.leave_closed(),
            _ => self.wake_writer(),
        }
    }

    fn close(&self) {
        if self.word.close() == Close::Free {
            self.word.left_closed();
        }
        self.wake_writer();
    }
}

/// The future is polled, `twice` by two wakers, while the edge comes (or a close too): the last one is woken.
fn polls(twin: Twin, twice: bool, closes: bool) {
    loom::model(move || {
        let model = Model::new(twin);
        let reactor = model.clone();
        let reactor = thread::spawn(move || reactor.edge());
        let closer = model.clone();
        let closer = closes.then(|| thread::spawn(move || closer.close()));
        let mut polled = model.send(0);
        let mut last = 0;
        if twice && polled == Polled::Pending {
            last = 1;
            polled = model.poll_again(1);
        }
        reactor.join().unwrap();
        if let Some(closer) = closer {
            closer.join().unwrap();
        }
        if polled == Polled::Pending {
            assert!(model.woken[last].load(Ordering::Acquire), "the future is left behind");
            polled = model.poll_again(2);
        }
        assert!(polled == Polled::Ready || closes && polled == Polled::Closed, "{polled:?}");
        assert!(model.word.is_idle(), "the word is stuck");
    });
}

#[test]
fn loom_send_file_is_woken_at_the_edge() {
    polls(Twin::Right, false, false);
    polls(Twin::Right, true, false);
}

#[test]
fn loom_send_file_against_close() {
    polls(Twin::Right, false, true);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_send_file_blocks_before_its_waiter() {
    polls(Twin::BlockBeforeWaiter, false, false);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_send_file_without_a_second_look() {
    polls(Twin::NoSecondLook, true, false);
}

/// The future is dropped with nothing of the file sent, while the edge comes: the flush is nobody's again.
fn drops(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let reactor = model.clone();
        let reactor = thread::spawn(move || reactor.edge());
        if model.send(0) == Polled::Pending {
            model.give_back();
        }
        reactor.join().unwrap();
        assert!(model.word.is_idle(), "the word is stuck");
    });
}

#[test]
fn loom_send_file_dropped_at_the_edge() {
    drops(Twin::Right);
}

#[test]
#[should_panic(expected = "the word is stuck")]
fn loom_twin_send_file_handed_over_without_the_mutex() {
    drops(Twin::HandOverUnlocked);
}

/// A layer queues its end while the file is on its way: it goes out behind it, and nobody leaves it behind.
fn ends(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let (reactor, layer) = (model.clone(), model.clone());
        let reactor = thread::spawn(move || reactor.edge());
        let layer = thread::spawn(move || layer.append());
        let polled = model.send(0);
        reactor.join().unwrap();
        layer.join().unwrap();
        if polled == Polled::Pending {
            assert_eq!(model.poll_again(1), Polled::Ready);
        }
        assert!(model.word.is_idle(), "the word is stuck");
        assert_eq!(model.records.load(Ordering::Relaxed), 1, "the end stays in the queue");
    });
}

#[test]
fn loom_send_file_lets_a_layers_end_follow() {
    ends(Twin::Right);
}

#[test]
#[should_panic(expected = "stays in the queue")]
fn loom_twin_send_file_forgets_the_queue() {
    ends(Twin::ForgetsQueue);
}
