//! Models of a layer over the shared queue (law 14): records go out in the order of their numbers, the layer's end is the
//! last of them, and the FIN comes behind it.
//!
//! The flush word is the real one; the layer, `Queue` and `drive` are written out again over a socket of atomics that never
//! refuses. State: the model's. Thread class: loom's. Laws: 3, 6, 14.

use crate::conn::flush_word::{FlushWord, Kick, Leave};
use crate::sync::atomic::{AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// The step that a twin gets wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Twin {
    Right,
    /// The record is appended after the layer's lock was released.
    AppendAfterUnlock,
    /// Whether the layer has ended is asked before its lock is taken.
    LookBeforeLock,
    /// The FIN is queued before the layer's end.
    FinFirst,
}

const WIRE: usize = 6;

struct Layer {
    next: usize,
    ended: bool,
}

struct Model {
    twin: Twin,
    layer: Mutex<Layer>,
    queue: Mutex<Vec<usize>>,
    word: FlushWord,
    at: AtomicUsize,
    wire: [AtomicUsize; WIRE],
    fin_at: AtomicUsize,
}

impl Model {
    fn new(twin: Twin) -> Arc<Self> {
        Arc::new(Self {
            twin,
            layer: Mutex::new(Layer { next: 0, ended: false }),
            queue: Mutex::new(Vec::new()),
            word: FlushWord::new(),
            at: AtomicUsize::new(0),
            wire: std::array::from_fn(|_| AtomicUsize::new(usize::MAX)),
            fin_at: AtomicUsize::new(usize::MAX),
        })
    }

    /// A record of data, or the layer's end. False: it has ended.
    fn send(&self, end: bool) -> bool {
        if self.twin == Twin::LookBeforeLock && self.layer.lock().unwrap().ended {
            return false;
        }
        let mut layer = self.layer.lock().unwrap();
        if self.twin != Twin::LookBeforeLock && layer.ended {
            return false;
        }
        layer.ended |= end;
        let record = layer.next;
        layer.next += 1;
        if self.twin == Twin::AppendAfterUnlock {
            drop(layer);
            self.append(record);
        } else {
            self.append(record);
            drop(layer);
        }
        match self.word.kick() {
            Kick::Own => self.drive(),
            Kick::Wait => {}
            Kick::Closed => self.queue.lock().unwrap().clear(),
        }
        true
    }

    /// `Queue::append`: nothing goes behind the FIN.
    fn append(&self, record: usize) {
        let mut queue = self.queue.lock().unwrap();
        if !self.word.has_fin() {
            queue.push(record);
        }
    }

    fn drive(&self) {
        loop {
            let batch = std::mem::take(&mut *self.queue.lock().unwrap());
            for record in batch {
                // Loaded and stored, not added to: two owners at once would lose records.
                let at = self.at.load(Ordering::Relaxed);
                self.wire[at].store(record, Ordering::Relaxed);
                self.at.store(at + 1, Ordering::Relaxed);
            }
            match self.word.finish() {
                Leave::Left { fin } => {
                    if fin {
                        self.socket_fin();
                    }
                    return;
                }
                Leave::Again => {}
                Leave::Closed => unreachable!("nobody closes"),
            }
        }
    }

    fn socket_fin(&self) {
        self.fin_at.store(self.at.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// `fin_behind_queue`.
    fn fin(&self) {
        if self.twin != Twin::FinFirst {
            self.send(true);
        }
        if self.word.fin() {
            self.socket_fin();
        }
        if self.twin == Twin::FinFirst {
            self.send(true);
        }
    }

    fn wire(&self) -> Vec<usize> {
        let n = self.at.load(Ordering::Relaxed);
        self.wire[..n].iter().map(|record| record.load(Ordering::Relaxed)).collect()
    }
}

/// Two threads make records while a third one makes one, too: the peer decrypts them in the order of their numbers.
fn numbers(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let others: Vec<_> = (0..2)
            .map(|_| {
                let model = model.clone();
                thread::spawn(move || assert!(model.send(false)))
            })
            .collect();
        assert!(model.send(false));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert!(model.word.is_idle());
        assert_eq!(model.wire(), [0, 1, 2], "out of order, or left behind");
    });
}

#[test]
fn loom_layer_records_go_out_in_the_order_of_their_numbers() {
    numbers(Twin::Right);
}

#[test]
#[should_panic(expected = "out of order")]
fn loom_twin_layer_append_after_the_unlock() {
    numbers(Twin::AppendAfterUnlock);
}

/// A sender against the end: what it sends is before the end or refused, the end is the last record, then the FIN.
fn ends(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let other = model.clone();
        let sender = thread::spawn(move || usize::from(other.send(false)));
        model.fin();
        let sent = sender.join().unwrap();
        let ended = { model.layer.lock().unwrap().next };
        assert_eq!(ended, sent + 1, "a record behind the end, or refused and made");
        let wire = model.wire();
        assert_eq!(wire, (0..ended).collect::<Vec<_>>(), "the peer sees a cut");
        assert_eq!(model.fin_at.load(Ordering::Relaxed), ended, "the FIN is not behind the end");
        // The end has the last number.
        assert!(model.layer.lock().unwrap().ended && !model.send(false));
    });
}

/// The same, and the record that says the end is the last one made.
fn end_is_last(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin);
        let other = model.clone();
        let sender = thread::spawn(move || other.send(false));
        let end = {
            model.send(true);
            let layer = model.layer.lock().unwrap();
            (layer.next, layer.ended)
        };
        sender.join().unwrap();
        assert!(end.1);
        assert_eq!(model.layer.lock().unwrap().next, end.0, "a record was made behind the end");
    });
}

#[test]
fn loom_layer_end_goes_out_before_the_fin() {
    ends(Twin::Right);
}

#[test]
#[should_panic(expected = "the peer sees a cut")]
fn loom_twin_layer_fin_before_the_end() {
    ends(Twin::FinFirst);
}

#[test]
fn loom_layer_end_is_the_last_record() {
    end_is_last(Twin::Right);
}

#[test]
#[should_panic(expected = "behind the end")]
fn loom_twin_layer_look_before_the_lock() {
    end_is_last(Twin::LookBeforeLock);
}
