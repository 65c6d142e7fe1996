//! Loom: a move between two reactors against everything that may end the connection meanwhile, and against an edge.
//!
//! State: none; two stand-ins of a body around the real socket, flush and read words. Thread class: tests. Laws: 1, 3,
//! 11, 12. The steps are those of `rehome`, `ending` and `locator`. Relaxed is what only the words order: the reason. A
//! system call is one step, as under the kernel's lock. What is asserted: the connection is at one of the two homes and
//! ends with it, whoever ends it is not lost and its reason is told, no FIN overtakes, no arrival is slept over.

use super::flush_word::{FlushWord, Leave};
use super::read_word::{Mark, ReadWord, Waiter};
use super::socket_word::SocketWord;
use crate::id::TaskId;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

const OLD: usize = 0;
const NEW: usize = 1;

/// Reasons.
const LOCAL: usize = 1;
const ABORTED: usize = 2;

/// On the wire.
const PIECE: u8 = 1;
const FIN: u8 = 2;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Twin {
    Right,
    LooksInsteadOfCutting,
    LooksInsteadOfRefusing,
    ArrivesWhateverHappened,
    ActsOnce,
    TakesAlongBeforeItPublishes,
    DoesNotClaim,
    NothingIsToldOfTheInput,
    LeavesTheResetToNobody,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Act {
    /// The home of this body stops.
    Stop(usize),
    /// The new home drains: `ending::refuse_arrival`.
    Drain,
    /// A clock of the old body runs out: it does not look where the connection is.
    Deadline,
    Reset,
    Close,
}

struct Body {
    socket: SocketWord,
    flush: FlushWord,
    read: ReadWord,
    reason: AtomicUsize,
}

impl Body {
    fn new(socket: SocketWord) -> Self {
        let (flush, read) = (FlushWord::new(), ReadWord::new(false));
        Self { socket, flush, read, reason: AtomicUsize::new(0) }
    }

    /// The first reason wins.
    fn store_reason(&self, reason: usize) {
        let _ = self.reason.compare_exchange(0, reason, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The socket and both epolls.
#[derive(Default)]
struct Kernel {
    wire: Vec<u8>,
    reset: bool,
    readable: bool,
    added: [bool; 2],
    edges: [bool; 2],
}

struct Shared {
    twin: Twin,
    bodies: [Body; 2],
    /// The locator.
    at: Mutex<usize>,
    kernel: Mutex<Kernel>,
    woken: AtomicBool,
}

impl Shared {
    fn new(twin: Twin) -> Self {
        let mut kernel = Kernel::default();
        kernel.added[OLD] = true;
        Self {
            twin,
            bodies: [Body::new(SocketWord::new()), Body::new(SocketWord::arriving())],
            at: Mutex::new(OLD),
            kernel: Mutex::new(kernel),
            woken: AtomicBool::new(false),
        }
    }

    /// `ending::reset`.
    fn reset(&self, at: usize, reason: usize) {
        let body = &self.bodies[at];
        body.store_reason(reason);
        let ours = if self.twin == Twin::LooksInsteadOfCutting { body.socket.is_ours() } else { body.socket.cut() };
        if ours {
            self.kernel.lock().unwrap().reset = true;
        }
        let _ = body.flush.close();
    }

    fn send_fin(&self) {
        let mut kernel = self.kernel.lock().unwrap();
        if !kernel.wire.contains(&FIN) {
            kernel.wire.push(FIN);
        }
    }

    fn fin_behind_queue(&self, at: usize) {
        if self.bodies[at].flush.fin() {
            self.send_fin();
        }
    }

    /// `Locator::apply`.
    fn apply(&self, act: impl Fn(usize)) {
        let mut at = *self.at.lock().unwrap();
        loop {
            act(at);
            let now = *self.at.lock().unwrap();
            if now == at || self.twin == Twin::ActsOnce {
                return;
            }
            at = now;
        }
    }

    fn act(&self, act: Act) {
        match act {
            Act::Stop(home) => self.reset(home, ABORTED),
            Act::Drain => {
                let new = &self.bodies[NEW];
                if self.twin == Twin::LooksInsteadOfRefusing {
                    if !new.socket.is_ours() {
                        self.reset(NEW, ABORTED);
                    }
                } else if new.socket.refuse() {
                    new.store_reason(ABORTED);
                    let _ = new.flush.close();
                }
            }
            Act::Deadline => self.reset(OLD, ABORTED),
            Act::Reset => self.apply(|at| self.reset(at, LOCAL)),
            Act::Close => self.apply(|at| {
                if self.bodies[at].socket.is_ours() {
                    self.bodies[at].store_reason(LOCAL);
                    self.fin_behind_queue(at);
                }
            }),
        }
    }

    /// `rehome::change`: where the user finds the connection.
    fn change(&self) -> usize {
        let [old, new] = &self.bodies;
        let claimed = self.twin != Twin::DoesNotClaim && old.flush.claim();
        if !claimed && old.flush.is_closed() {
            return OLD;
        }
        if !new.socket.arrive() && self.twin != Twin::ArrivesWhateverHappened {
            if claimed && old.flush.finish() == (Leave::Left { fin: true }) {
                self.send_fin();
            }
            return OLD;
        }
        if self.twin == Twin::TakesAlongBeforeItPublishes {
            let goes_on = old.socket.leave();
            self.take_along(goes_on);
            *self.at.lock().unwrap() = NEW;
        } else {
            *self.at.lock().unwrap() = NEW;
            let goes_on = old.socket.leave();
            self.take_along(goes_on);
        }
        NEW
    }

    fn take_along(&self, goes_on: bool) {
        let [old, new] = &self.bodies;
        let reason = old.reason.load(Ordering::Relaxed);
        if reason != 0 {
            new.store_reason(reason);
        }
        if old.flush.has_fin() {
            self.fin_behind_queue(NEW);
        }
        let reason = old.reason.load(Ordering::Relaxed);
        let (closed, nobody) = (old.flush.is_closed(), self.twin == Twin::LeavesTheResetToNobody);
        if reason != 0 && (!goes_on || nobody && closed) {
            let _ = new.flush.close();
        } else if reason != 0 && !nobody && (closed || reason == ABORTED) {
            self.reset(NEW, reason);
        }
    }

    /// The user sends one piece, if it may.
    fn send(&self, at: usize) {
        let flush = &self.bodies[at].flush;
        if flush.claim() {
            let mut kernel = self.kernel.lock().unwrap();
            if self.twin == Twin::DoesNotClaim {
                assert!(!kernel.wire.contains(&FIN), "a FIN overtook what is sent");
            }
            kernel.wire.push(PIECE);
            drop(kernel);
            if flush.finish() == (Leave::Left { fin: true }) {
                self.send_fin();
            }
        }
    }
}

fn run(twin: Twin, acts: &'static [Act]) {
    loom::model(move || {
        let s = Arc::new(Shared::new(twin));
        let threads: Vec<_> = acts
            .iter()
            .map(|act| {
                let on = s.clone();
                thread::spawn(move || on.act(*act))
            })
            .collect();
        let at = s.change();
        s.send(at);
        for thread in threads {
            thread.join().unwrap();
        }
        let kernel = s.kernel.lock().unwrap();
        let told = s.bodies[at].reason.load(Ordering::Relaxed);
        assert!(!kernel.reset || told != 0, "the socket was reset and its user is not told");
        for act in acts {
            match act {
                Act::Stop(home) if *home == at => assert!(kernel.reset, "the home has stopped: at neither of the two"),
                Act::Drain if acts.len() == 1 => {
                    assert!(!kernel.reset && kernel.wire == [PIECE], "a drain has ended what it only refuses");
                }
                Act::Drain | Act::Stop(_) | Act::Deadline => {}
                Act::Reset => assert!(kernel.reset && told != 0, "the reset is lost"),
                Act::Close => {
                    assert!(kernel.reset || kernel.wire.contains(&FIN), "the close is lost");
                    assert!(told != 0, "the close is lost");
                }
            }
        }
        assert!(kernel.reset || told != ABORTED, "aborted, and the peer sees nothing");
        assert!(
            kernel.wire.iter().all(|what| *what == PIECE) || kernel.wire.ends_with(&[FIN]),
            "a FIN overtook what is sent"
        );
    });
}

#[test]
fn loom_either_home_stops_during_a_move() {
    run(Twin::Right, &[Act::Stop(OLD)]);
    run(Twin::Right, &[Act::Stop(NEW)]);
    run(Twin::Right, &[Act::Stop(OLD), Act::Stop(NEW)]);
}

#[test]
fn loom_the_target_drains_during_a_move() {
    run(Twin::Right, &[Act::Drain]);
    run(Twin::Right, &[Act::Drain, Act::Reset]);
    run(Twin::Right, &[Act::Drain, Act::Stop(OLD)]);
}

#[test]
fn loom_a_deadline_fires_during_a_move() {
    run(Twin::Right, &[Act::Deadline, Act::Stop(NEW)]);
}

#[test]
fn loom_a_close_handle_acts_during_a_move() {
    run(Twin::Right, &[Act::Reset]);
    run(Twin::Right, &[Act::Close]);
    run(Twin::Right, &[Act::Close, Act::Stop(NEW)]);
}

#[test]
#[should_panic(expected = "is not told")]
fn loom_twin_whoever_ends_looks_and_does_not_cut() {
    run(Twin::LooksInsteadOfCutting, &[Act::Deadline]);
}

#[test]
#[should_panic(expected = "the peer sees nothing")]
fn loom_twin_who_ends_the_old_one_too_late_resets_nobody() {
    run(Twin::LeavesTheResetToNobody, &[Act::Stop(OLD)]);
}

#[test]
#[should_panic(expected = "only refuses")]
fn loom_twin_a_drain_looks_and_does_not_refuse() {
    run(Twin::LooksInsteadOfRefusing, &[Act::Drain]);
}

#[test]
#[should_panic(expected = "at neither of the two")]
fn loom_twin_arrives_at_a_home_that_has_stopped() {
    run(Twin::ArrivesWhateverHappened, &[Act::Stop(NEW)]);
}

#[test]
#[should_panic(expected = "the close is lost")]
fn loom_twin_a_close_handle_does_not_look_again() {
    run(Twin::ActsOnce, &[Act::Close]);
}

#[test]
#[should_panic(expected = "the close is lost")]
fn loom_twin_takes_along_before_it_publishes() {
    run(Twin::TakesAlongBeforeItPublishes, &[Act::Close]);
}

#[test]
#[should_panic(expected = "overtook")]
fn loom_twin_the_old_flush_word_is_not_claimed() {
    run(Twin::DoesNotClaim, &[Act::Close]);
}

/// One byte arrives at any moment of a move; each reactor hands on what its epoll told it.
fn arrival(twin: Twin) {
    loom::model(move || {
        let s = Arc::new(Shared::new(twin));
        let on = s.clone();
        let peer = thread::spawn(move || {
            let mut kernel = on.kernel.lock().unwrap();
            kernel.readable = true;
            kernel.edges = kernel.added;
        });
        let on = s.clone();
        let reactors = thread::spawn(move || on.pass());
        // The target adds: what is there already is an edge.
        {
            let mut kernel = s.kernel.lock().unwrap();
            kernel.added[NEW] = true;
            kernel.edges[NEW] |= kernel.readable && twin != Twin::NothingIsToldOfTheInput;
        }
        assert_eq!(s.change(), NEW);
        if twin != Twin::NothingIsToldOfTheInput && s.bodies[NEW].read.signal(Mark::Nothing).is_some() {
            unreachable!("nobody has parked on it yet");
        }
        s.kernel.lock().unwrap().added[OLD] = false;
        let mut got = s.poll_read();
        peer.join().unwrap();
        reactors.join().unwrap();
        s.pass();
        while !got && s.woken.swap(false, Ordering::Acquire) {
            got = s.poll_read();
        }
        assert!(got, "the reader sleeps and a byte is there");
    });
}

impl Shared {
    /// Both reactors look at their edges.
    fn pass(&self) {
        let edges = std::mem::take(&mut self.kernel.lock().unwrap().edges);
        for (body, edge) in self.bodies.iter().zip(edges) {
            if edge && body.read.signal(Mark::Nothing).is_some() {
                self.woken.store(true, Ordering::Release);
            }
        }
    }

    /// A task of the new home reads: true when it has the byte.
    fn poll_read(&self) -> bool {
        let word = &self.bodies[NEW].read;
        loop {
            if word.consume() && std::mem::take(&mut self.kernel.lock().unwrap().readable) {
                return true;
            }
            if word.park(Waiter::Task(TaskId::new(1, 1))) {
                return false;
            }
        }
    }
}

#[test]
fn loom_an_arrival_during_a_move_is_seen() {
    arrival(Twin::Right);
}

/// The new word starts as if nothing were there, and adding tells nothing.
#[test]
#[should_panic(expected = "the reader sleeps")]
fn loom_twin_nothing_is_told_of_what_came_before() {
    arrival(Twin::NothingIsToldOfTheInput);
}
