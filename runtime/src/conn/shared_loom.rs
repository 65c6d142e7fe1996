//! Models of the shared writer: appends and kicks against edges, FIN and close, and the wait by ticket.
//!
//! The flush word and the frames' bookkeeping are the real ones; `drive`, `send` and the wait are written out again over a
//! socket of atomics, because the real ones make system calls. Each step that the protocol hangs on can be left out: those
//! are the twins. State: the model's. Thread class: loom's. Laws 3, 6, 12.

use crate::conn::flush_word::{Close, FlushWord, Kick, Leave};
use crate::conn::frames::{END, Frames};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::sync::Arc as StdArc;
use std::task::{Wake, Waker};

/// The step that a twin gets wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Twin {
    Right,
    KickBeforeAppend,
    LeaveBeforePutBack,
    LookBeforeRegister,
    NoWakeAfterProgress,
    RefusedLeavesTheWord,
    SendBehindTheFin,
    OvertakeTheQueue,
    WaitWithoutAMark,
}

/// Bytes of a frame: a send may cut it.
const FRAME: usize = 2;
const WIRE: usize = 8;

/// A socket's sending side. The position is loaded and stored, not added to: two owners at once would lose bytes.
struct Socket {
    room: AtomicUsize,
    at: AtomicUsize,
    wire: [AtomicUsize; WIRE],
    fin_at: AtomicUsize,
}

struct Slow {
    out: Vec<usize>,
    end: u64,
    frames: Frames,
}

struct Model {
    twin: Twin,
    word: FlushWord,
    slow: Mutex<Slow>,
    accepted: AtomicU64,
    socket: Socket,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: StdArc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Model {
    fn new(twin: Twin, room: usize) -> Arc<Self> {
        Arc::new(Self {
            twin,
            word: FlushWord::new(),
            slow: Mutex::new(Slow { out: Vec::new(), end: 0, frames: Frames::new(false) }),
            accepted: AtomicU64::new(0),
            socket: Socket {
                room: AtomicUsize::new(room),
                at: AtomicUsize::new(0),
                wire: std::array::from_fn(|_| AtomicUsize::new(0)),
                fin_at: AtomicUsize::new(usize::MAX),
            },
        })
    }

    /// send(2): true once nothing is left, false for EAGAIN.
    fn socket_send(&self, bytes: &mut Vec<usize>) -> bool {
        // As under the socket's lock in the kernel: a refusal comes before the room is made, or sees it. What the owner
        // did before a refused send is visible to whom the edge reaches (the word's plain look at an edge needs that).
        let n = bytes.len().min(self.socket.room.fetch_add(0, Ordering::AcqRel));
        for byte in bytes.drain(..n) {
            let at = self.socket.at.load(Ordering::Relaxed);
            self.socket.wire[at].store(byte, Ordering::Relaxed);
            self.socket.at.store(at + 1, Ordering::Relaxed);
        }
        self.socket.room.fetch_sub(n, Ordering::AcqRel);
        self.accepted.store(self.accepted.load(Ordering::Relaxed) + n as u64, Ordering::Relaxed);
        bytes.is_empty()
    }

    fn socket_fin(&self) {
        self.socket.fin_at.store(self.socket.at.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// `SharedWriter::send`. False: refused.
    fn send(&self, frame: usize) -> bool {
        self.send_to(frame).is_some()
    }

    /// The same; where the frame ends comes out.
    fn send_to(&self, frame: usize) -> Option<u64> {
        if self.twin == Twin::KickBeforeAppend {
            let kick = self.word.kick();
            let end = self.append(frame);
            match kick {
                Kick::Own => self.drive(),
                Kick::Wait => {}
                Kick::Closed => self.discard(),
            }
            return end.filter(|_| kick != Kick::Closed);
        }
        if let Some(end) = self.claim_alone() {
            self.send_alone(frame);
            return Some(end);
        }
        let end = self.append(frame)?;
        match self.word.kick() {
            Kick::Own => self.drive(),
            Kick::Wait => {}
            Kick::Closed if self.twin == Twin::SendBehindTheFin => {
                let mut bytes = std::mem::take(&mut self.slow.lock().unwrap().out);
                self.socket_send(&mut bytes);
            }
            Kick::Closed => {
                self.discard();
                if self.twin == Twin::RefusedLeavesTheWord {
                    self.word.left_closed();
                }
                self.wake_ready();
                return None;
            }
        }
        Some(end)
    }

    /// Nothing waits and nobody sends: the frame is sent past the queue.
    fn claim_alone(&self) -> Option<u64> {
        let mut slow = self.slow.lock().unwrap();
        if !(slow.out.is_empty() || self.twin == Twin::OvertakeTheQueue) || !self.word.claim() {
            return None;
        }
        slow.end += FRAME as u64;
        Some(slow.end)
    }

    fn send_alone(&self, frame: usize) {
        let mut bytes = vec![frame; FRAME];
        if !(self.socket_send(&mut bytes) && self.word.finish_quiet()) {
            self.drive_from(bytes);
        }
    }

    fn append(&self, frame: usize) -> Option<u64> {
        let mut slow = self.slow.lock().unwrap();
        if self.word.is_closed() || self.word.has_fin() {
            return None;
        }
        slow.end += FRAME as u64;
        slow.out.extend([frame; FRAME]);
        Some(slow.end)
    }

    fn discard(&self) {
        self.slow.lock().unwrap().out.clear();
    }

    /// The owner of the queue.
    fn drive(&self) {
        let bytes = std::mem::take(&mut self.slow.lock().unwrap().out);
        self.drive_from(bytes);
    }

    /// The owner's loop, and what it does afterwards.
    fn drive_from(&self, mut bytes: Vec<usize>) {
        loop {
            let empty = self.socket_send(&mut bytes);
            assert!(self.word.is_flushing(), "the owner has lost its word");
            let leave = if empty {
                self.word.finish()
            } else if self.twin == Twin::LeaveBeforePutBack {
                let leave = self.word.block();
                self.put_back(&mut bytes);
                leave
            } else {
                self.put_back(&mut bytes);
                self.word.block()
            };
            match leave {
                Leave::Left { fin } => {
                    if fin {
                        self.socket_fin();
                    }
                    break;
                }
                Leave::Again => bytes.append(&mut self.slow.lock().unwrap().out),
                Leave::Closed => {
                    self.discard();
                    self.word.left_closed();
                    break;
                }
            }
        }
        self.wake_ready();
    }

    fn put_back(&self, bytes: &mut Vec<usize>) {
        let mut slow = self.slow.lock().unwrap();
        bytes.append(&mut slow.out);
        slow.out = std::mem::take(bytes);
    }

    fn wake_ready(&self) {
        if self.twin == Twin::NoWakeAfterProgress && !self.word.is_over() {
            return;
        }
        let over = self.word.is_over();
        let accepted = self.accepted.load(Ordering::Relaxed);
        let mut slow = self.slow.lock().unwrap();
        let ready = slow.frames.ready(accepted, over, over);
        if !slow.frames.are_awaited() {
            self.word.forget_waited();
        }
        drop(slow);
        ready.into_iter().for_each(Waker::wake);
    }

    /// The reactor: the peer took everything, a writable edge.
    fn edge(&self) {
        self.socket.room.fetch_add(WIRE, Ordering::AcqRel);
        if self.word.writable() {
            self.drive();
        }
    }

    fn fin(&self) {
        if self.word.fin() {
            self.socket_fin();
        }
        self.wake_ready();
    }

    fn close(&self) {
        if self.word.close() == Close::Free {
            self.discard();
            self.word.left_closed();
        }
        self.wake_ready();
    }

    /// One poll of the wait; `Some`: pending, and this is woken.
    fn poll(&self, offset: u64) -> Option<StdArc<Flag>> {
        let done = || self.word.is_over() || offset <= self.accepted.load(Ordering::Relaxed);
        if done() {
            return None;
        }
        let flag = StdArc::new(Flag(AtomicBool::new(false)));
        let mut slow = self.slow.lock().unwrap();
        slow.frames.wait(offset, &mut None, Waker::from(flag.clone()));
        if offset != END && self.twin != Twin::WaitWithoutAMark {
            self.word.set_waited();
        }
        drop(slow);
        (self.twin == Twin::LookBeforeRegister || !done()).then_some(flag)
    }

    fn ticket(&self) -> u64 {
        self.slow.lock().unwrap().end
    }

    /// What is on the wire: frames, none of them cut, and none behind the FIN.
    fn frames_on_the_wire(&self) -> Vec<usize> {
        let n = self.socket.at.load(Ordering::Relaxed);
        let wire: Vec<_> = self.socket.wire[..n].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        let fin = self.socket.fin_at.load(Ordering::Relaxed);
        assert!(fin == usize::MAX || fin == n, "behind the FIN: {wire:?}, FIN at {fin}");
        wire.chunks(FRAME)
            .map(|frame| {
                assert_eq!(frame, [frame[0]; FRAME], "a frame is cut or mixed: {wire:?}");
                frame[0]
            })
            .collect()
    }
}

/// Two threads send while an edge comes; a socket with room for a frame and a half. Nothing is lost or cut.
fn senders_and_edges(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin, 3);
        let other = model.clone();
        let sender = thread::spawn(move || assert!(other.send(1)));
        let reactor = model.clone();
        let reactor = thread::spawn(move || reactor.edge());
        assert!(model.send(2));
        sender.join().unwrap();
        reactor.join().unwrap();
        // The one edge made room for everything: whoever met the full socket before has seen it.
        assert!(model.word.is_idle(), "a frame is left behind: no owner, no edge to come");
        let mut frames = model.frames_on_the_wire();
        frames.sort_unstable();
        assert_eq!(frames, [1, 2], "a frame is left behind");
    });
}

#[test]
fn loom_shared_frames_are_whole_and_none_is_left_behind() {
    senders_and_edges(Twin::Right);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_shared_kick_before_the_append() {
    senders_and_edges(Twin::KickBeforeAppend);
}

#[test]
#[should_panic]
fn loom_twin_shared_remainder_put_back_after_leaving() {
    senders_and_edges(Twin::LeaveBeforePutBack);
}

/// A waiter by ticket against the sender that brings it, and the edge if the socket has too little room: whoever is
/// pending is woken.
fn tickets(twin: Twin, room: usize) {
    loom::model(move || {
        let model = Model::new(twin, room);
        let other = model.clone();
        let sender = thread::spawn(move || assert!(other.send(1)));
        let reactor = model.clone();
        let reactor = (room < FRAME).then(|| thread::spawn(move || reactor.edge()));
        let ticket = model.ticket();
        let pending = model.poll(ticket);
        sender.join().unwrap();
        reactor.into_iter().for_each(|reactor| reactor.join().unwrap());
        assert_eq!(model.frames_on_the_wire(), [1]);
        if let Some(flag) = pending {
            assert!(flag.0.load(Ordering::Acquire), "a waiter is left behind");
        }
    });
}

#[test]
fn loom_shared_ticket_is_never_left_behind() {
    tickets(Twin::Right, 1);
    tickets(Twin::Right, WIRE);
}

#[test]
#[should_panic(expected = "a waiter is left behind")]
fn loom_twin_shared_look_before_the_registration() {
    tickets(Twin::LookBeforeRegister, 1);
}

#[test]
#[should_panic(expected = "a waiter is left behind")]
fn loom_twin_shared_no_wake_after_progress() {
    tickets(Twin::NoWakeAfterProgress, 1);
}

#[test]
#[should_panic(expected = "a waiter is left behind")]
fn loom_twin_shared_a_quiet_owner_does_not_know_the_waiter() {
    tickets(Twin::WaitWithoutAMark, WIRE);
}

/// Frames past the queue against one that is in it: each ends on the wire where its sender was told.
fn ends_are_true(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin, WIRE);
        let other = model.clone();
        let sender = thread::spawn(move || other.send_to(1).unwrap());
        let mut ends = [2, 3].map(|frame| (model.send_to(frame).unwrap(), frame)).to_vec();
        ends.push((sender.join().unwrap(), 1));
        ends.sort_unstable();
        let told: Vec<_> = ends.into_iter().map(|(_, frame)| frame).collect();
        assert_eq!(model.frames_on_the_wire(), told, "out before it is: its place was taken");
    });
}

#[test]
fn loom_shared_frames_past_the_queue_keep_the_count() {
    ends_are_true(Twin::Right);
}

#[test]
#[should_panic(expected = "its place was taken")]
fn loom_twin_shared_a_frame_overtakes_the_queue() {
    ends_are_true(Twin::OvertakeTheQueue);
}

/// Senders and waiters against this side's FIN or reset: what was accepted is out before the FIN, what was refused is not
/// there, nothing stays queued, everybody is woken, and the word has one owner throughout.
fn senders_and_end(twin: Twin, fin: bool, room: usize) {
    loom::model(move || {
        let model = Model::new(twin, room);
        let other = model.clone();
        let sender = thread::spawn(move || other.send(1));
        let closer = model.clone();
        let closer = thread::spawn(move || if fin { closer.fin() } else { closer.close() });
        let mut accepted = Vec::new();
        if model.send(2) {
            accepted.push(2);
        }
        let pending = [model.poll(model.ticket()), model.poll(END)];
        if sender.join().unwrap() {
            accepted.push(1);
        }
        closer.join().unwrap();
        model.edge();
        assert!(model.word.is_over() && model.word.is_idle());
        assert!(model.slow.lock().unwrap().out.is_empty(), "something stays queued");
        if fin {
            let mut frames = model.frames_on_the_wire();
            frames.sort_unstable();
            accepted.sort_unstable();
            assert_eq!(frames, accepted, "accepted and sent differ");
            assert_ne!(model.socket.fin_at.load(Ordering::Relaxed), usize::MAX, "no FIN");
        }
        for flag in pending.into_iter().flatten() {
            assert!(flag.0.load(Ordering::Acquire), "a waiter is left behind");
        }
        assert!(!model.send(3), "sent after the end");
    });
}

#[test]
fn loom_shared_send_against_fin() {
    senders_and_end(Twin::Right, true, 1);
    senders_and_end(Twin::Right, true, WIRE);
}

#[test]
fn loom_shared_send_against_reset() {
    senders_and_end(Twin::Right, false, 3);
}

#[test]
#[should_panic]
fn loom_twin_shared_send_behind_the_fin() {
    // The FIN goes between an append and its kick: whoever sent meanwhile has room for all.
    senders_and_end(Twin::SendBehindTheFin, true, WIRE);
}

#[test]
#[should_panic(expected = "the owner has lost its word")]
fn loom_twin_shared_a_refused_writer_leaves_the_word() {
    senders_and_end(Twin::RefusedLeavesTheWord, false, 3);
}
