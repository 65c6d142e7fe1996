//! What the loom checks of the flush word run on: the stand-in of a connection around the real word.
//!
//! State: the same as `body` holds, in the same order of steps as `drive` and `write_ops`. Thread class: tests.
//! Laws: 3, 11.
//!
//! A piece stands for one send(2). The queue is under loom's mutex as in the real code; a batch is in its owner's
//! hands alone. What only the word orders is relaxed: the reason. A system call is one step, as under the kernel's
//! lock; what std's mutexes hold is no step of its own.

use crate::conn::flush_word::{Close, FlushWord, Kick, Leave};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::plain;
use loom::sync::Mutex;

/// On the wire, behind the pieces.
pub(super) const FIN: usize = 7;

/// The kernel's side: a send that finds no room leaves a mark, and only then does room make an edge.
#[derive(Default)]
pub(super) struct Socket {
    room: usize,
    refused: bool,
    edge: bool,
    pub(super) broken: bool,
    pub(super) wire: Vec<usize>,
}

/// What is left out or turned round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Twin {
    Right,
    EdgeIgnored,
    BudgetKeepsOwnership,
    ClosedAsState,
    LatePutBack,
    NoAgainCheck,
    EarlyFinFlag,
    RegisterAfterLook,
    ClosedBeforeIdle,
    RefusedLeaves,
    ReasonAfterClose,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Act {
    /// The peer makes room.
    Room,
    /// The peer resets: every send fails from now on.
    Break,
    /// A reset of this side.
    Close,
    /// FIN behind the queue.
    Fin,
    /// Another writer appends a piece and kicks (a shared writer).
    Append(usize),
}

pub(super) struct Slow {
    pub(super) out: Vec<usize>,
    /// Which of the writer's flushes waits.
    pub(super) waiter: Option<usize>,
}

pub(super) struct Shared {
    pub(super) word: FlushWord,
    pub(super) slow: Mutex<Slow>,
    calls: AtomicUsize,
    pub(super) socket: std::sync::Mutex<Socket>,
    owed: AtomicUsize,
    /// Whose waker was called: a bit for each of the writer's flushes.
    pub(super) woken: AtomicUsize,
    pub(super) reason: AtomicBool,
    /// Every piece ever handed over, in order. This and the next two are the checks' own: no steps of the model.
    pub(super) appended: std::sync::Mutex<Vec<usize>>,
    inside: plain::AtomicBool,
    pub(super) freed: plain::AtomicUsize,
    /// Every writer appends; nobody claims.
    pub(super) shared: bool,
    /// Pieces that a writer may send by one poll of its flush.
    pub(super) budget: usize,
    pub(super) twin: Twin,
}

pub(super) enum End {
    Empty,
    Blocked,
    Budget,
    Error,
}

#[derive(PartialEq, Debug)]
pub(super) enum Drive {
    Done,
    Parked,
    Closed,
}

impl Shared {
    pub(super) fn new(room: usize, budget: usize, shared: bool, twin: Twin) -> Self {
        Self {
            word: FlushWord::new(),
            slow: Mutex::new(Slow { out: Vec::new(), waiter: None }),
            calls: AtomicUsize::new(0),
            socket: std::sync::Mutex::new(Socket { room, ..Socket::default() }),
            owed: AtomicUsize::new(0),
            woken: AtomicUsize::new(0),
            reason: AtomicBool::new(false),
            appended: std::sync::Mutex::default(),
            inside: plain::AtomicBool::new(false),
            freed: plain::AtomicUsize::new(0),
            shared,
            budget,
            twin,
        }
    }

    // The socket.

    /// One system call: it sees, and is seen by, every call before and after it.
    fn call<T>(&self, f: impl FnOnce(&mut Socket) -> T) -> T {
        self.calls.fetch_add(1, Ordering::AcqRel);
        f(&mut self.socket.lock().unwrap())
    }

    /// One send(2). `None`: EAGAIN; `Some(false)`: failed.
    fn send_piece(&self, piece: usize) -> Option<bool> {
        self.call(|socket| {
            if socket.broken {
                return Some(false);
            }
            if socket.room == 0 {
                socket.refused = true;
                return None;
            }
            socket.room -= 1;
            socket.wire.push(piece);
            Some(true)
        })
    }

    pub(super) fn send_fin(&self) {
        self.call(|socket| socket.wire.push(FIN));
    }

    pub(super) fn peer_gives(&self, room: usize) {
        self.call(|socket| {
            socket.room += room;
            socket.edge |= std::mem::take(&mut socket.refused);
        });
    }

    /// Sends from the batch, as `Outgoing::send` does.
    pub(super) fn send(&self, batch: &mut Vec<usize>, budget: &mut usize) -> End {
        assert!(!self.inside.load(Ordering::Relaxed), "two senders");
        self.inside.store(true, Ordering::Relaxed);
        let end = loop {
            let Some(piece) = batch.first() else { break End::Empty };
            if *budget == 0 {
                break End::Budget;
            }
            match self.send_piece(*piece) {
                Some(true) => *budget -= 1,
                Some(false) => break End::Error,
                None => break End::Blocked,
            }
            batch.remove(0);
        };
        assert_eq!(self.freed.load(Ordering::Relaxed), 0, "a send after the free");
        self.inside.store(false, Ordering::Relaxed);
        end
    }

    // What `drive` does.

    pub(super) fn drive(
        &self,
        batch: &mut Vec<usize>,
        mut budget: usize,
        waiter: Option<usize>,
        mut first: Option<End>,
    ) -> Drive {
        loop {
            let end = first.take().unwrap_or_else(|| self.send(batch, &mut budget));
            assert!(self.word.is_flushing(), "the flush was taken from its owner");
            let leave = match end {
                End::Empty => self.finish(),
                End::Blocked if self.twin == Twin::LatePutBack => {
                    let leave = self.word.block();
                    self.put_back(batch, waiter);
                    leave
                }
                End::Blocked => {
                    self.put_back(batch, waiter);
                    match self.word.block() {
                        Leave::Again if self.twin == Twin::EdgeIgnored => self.word.block(),
                        leave => leave,
                    }
                }
                End::Budget => {
                    self.put_back(batch, waiter);
                    if self.twin == Twin::BudgetKeepsOwnership {
                        return Drive::Parked;
                    }
                    self.word.owe()
                }
                End::Error => {
                    if self.twin == Twin::ReasonAfterClose {
                        let _ = self.word.close();
                    }
                    self.reason.store(true, Ordering::Relaxed);
                    let _ = self.word.close();
                    Leave::Closed
                }
            };
            match (leave, end) {
                (Leave::Left { fin }, End::Empty) => {
                    if fin {
                        self.send_fin();
                    }
                    return Drive::Done;
                }
                (Leave::Left { .. }, end) => {
                    if matches!(end, End::Budget) {
                        self.owed.fetch_add(1, Ordering::Release);
                    }
                    return Drive::Parked;
                }
                (Leave::Again, _) => batch.append(&mut self.slow.lock().unwrap().out),
                (Leave::Closed, _) => {
                    batch.clear();
                    self.free_queue();
                    self.wake_writer();
                    return Drive::Closed;
                }
            }
        }
    }

    pub(super) fn finish(&self) -> Leave {
        let early = self.word.has_fin();
        match self.word.finish() {
            Leave::Left { .. } if self.twin == Twin::EarlyFinFlag => Leave::Left { fin: early },
            Leave::Again if self.twin == Twin::NoAgainCheck => self.word.finish(),
            leave => leave,
        }
    }

    pub(super) fn put_back(&self, batch: &mut Vec<usize>, waiter: Option<usize>) {
        let mut slow = self.slow.lock().unwrap();
        batch.append(&mut slow.out);
        std::mem::swap(batch, &mut slow.out);
        slow.waiter = waiter.or(slow.waiter);
    }

    pub(super) fn wake_writer(&self) {
        let waiter = self.slow.lock().unwrap().waiter.take();
        if let Some(flush) = waiter {
            self.woken.fetch_or(flush, Ordering::Release);
        }
    }

    pub(super) fn free_queue(&self) {
        assert!(!self.inside.load(Ordering::Relaxed), "the queue is freed while its owner sends");
        self.slow.lock().unwrap().out.clear();
        self.freed.fetch_add(1, Ordering::Relaxed);
        self.word.left_closed();
    }

    // The reactor, and whoever else.

    /// One pass: was there anything to do?
    pub(super) fn pass(&self) -> bool {
        let edge = self.call(|socket| std::mem::take(&mut socket.edge));
        let owed = self.budget != usize::MAX && self.owed.swap(0, Ordering::AcqRel) != 0;
        for mine in [edge && self.word.writable(), owed && self.word.serve_owed()] {
            if mine {
                let mut batch = std::mem::take(&mut self.slow.lock().unwrap().out);
                if self.drive(&mut batch, usize::MAX, None, None) == Drive::Done {
                    self.wake_writer();
                }
            }
        }
        edge || owed
    }

    pub(super) fn act(&self, act: Act) {
        match act {
            Act::Room => self.peer_gives(1),
            Act::Break => self.call(|socket| (socket.broken, socket.edge) = (true, true)),
            Act::Fin => {
                if self.word.fin() {
                    self.send_fin();
                }
            }
            Act::Close => {
                self.reason.store(true, Ordering::Relaxed);
                match self.word.close() {
                    Close::Free => self.free_queue(),
                    Close::OwnerFrees if self.twin == Twin::ClosedAsState => self.free_queue(),
                    Close::OwnerFrees | Close::Already => {}
                }
                self.wake_writer();
            }
            Act::Append(piece) => {
                if let Some(mut batch) = self.append_and_kick(&mut vec![piece])
                    && self.drive(&mut batch, self.budget, None, None) == Drive::Done
                {
                    self.wake_writer();
                }
            }
        }
    }

    /// What is to be sent if the flush is the caller's now.
    pub(super) fn append_and_kick(&self, staged: &mut Vec<usize>) -> Option<Vec<usize>> {
        let mut slow = self.slow.lock().unwrap();
        self.appended.lock().unwrap().extend_from_slice(staged);
        slow.out.append(staged);
        drop(slow);
        match self.word.kick() {
            Kick::Own => Some(std::mem::take(&mut self.slow.lock().unwrap().out)),
            Kick::Wait => None,
            Kick::Closed => {
                // Not the owner: the state is not its to change.
                self.slow.lock().unwrap().out.clear();
                if self.twin == Twin::RefusedLeaves {
                    self.word.left_closed();
                }
                None
            }
        }
    }
}
