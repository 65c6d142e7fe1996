//! What the loom checks of the shared writer run on: its steps around the real word and the real bookkeeping of frames.
//!
//! `drive`, `send` and the wait are written out again over a socket of atomics, because the real ones make system calls.
//! Each step that the protocol hangs on can be left out: those are the twins. State: the model's. Thread class: loom's.
//! Laws 3, 6, 12.

use crate::conn::flush_word::{Close, FlushWord, Kick, Leave};
use crate::conn::frames::{END, Frames};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use std::sync::Arc as StdArc;
use std::task::{Wake, Waker};

/// The step that a twin gets wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Twin {
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
pub(super) const FRAME: usize = 2;
pub(super) const WIRE: usize = 8;

/// A socket's sending side. The position is loaded and stored, not added to: two owners at once would lose bytes.
pub(super) struct Socket {
    room: AtomicUsize,
    at: AtomicUsize,
    wire: [AtomicUsize; WIRE],
    pub(super) fin_at: AtomicUsize,
}

pub(super) struct Slow {
    pub(super) out: Vec<usize>,
    end: u64,
    frames: Frames,
}

pub(super) struct Model {
    twin: Twin,
    pub(super) word: FlushWord,
    pub(super) slow: Mutex<Slow>,
    accepted: AtomicU64,
    pub(super) socket: Socket,
}

pub(super) struct Flag(pub(super) AtomicBool);

impl Wake for Flag {
    fn wake(self: StdArc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

impl Model {
    pub(super) fn new(twin: Twin, room: usize) -> Arc<Self> {
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
    pub(super) fn send(&self, frame: usize) -> bool {
        self.send_to(frame).is_some()
    }

    /// The same; where the frame ends comes out.
    pub(super) fn send_to(&self, frame: usize) -> Option<u64> {
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
    pub(super) fn edge(&self) {
        self.socket.room.fetch_add(WIRE, Ordering::AcqRel);
        if self.word.writable() {
            self.drive();
        }
    }

    pub(super) fn fin(&self) {
        if self.word.fin() {
            self.socket_fin();
        }
        self.wake_ready();
    }

    pub(super) fn close(&self) {
        if self.word.close() == Close::Free {
            self.discard();
            self.word.left_closed();
        }
        self.wake_ready();
    }

    /// One poll of the wait; `Some`: pending, and this is woken.
    pub(super) fn poll(&self, offset: u64) -> Option<StdArc<Flag>> {
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

    pub(super) fn ticket(&self) -> u64 {
        self.slow.lock().unwrap().end
    }

    /// What is on the wire: frames, none of them cut, and none behind the FIN.
    pub(super) fn frames_on_the_wire(&self) -> Vec<usize> {
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
