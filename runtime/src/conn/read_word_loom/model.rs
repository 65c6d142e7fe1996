//! What the loom checks of the read word run on: the stand-in of a connection and its reader around the real word.
//!
//! State: the same as `body` and `read_half` hold, in the same order of steps. Thread class: tests. Laws: 1, 2.
//!
//! The kernel is made of relaxed atomics, so what the reader sees of it, it sees through the word. Only the slot of
//! the foreign waker is a mutex, as in the real code. The contexts: 0 is the reader's own task on the home reactor
//! (an id in the word), 1 and 2 are foreign wakers. A poll at any time, in any context, stands for spurious wakes and
//! for a read future that is dropped and read again elsewhere; it uses up the wakes its context had before.

use crate::conn::read_word::{Look, Mark, ReadWord, Waiter};
use crate::id::TaskId;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::sync::Mutex;

/// In `Kernel::data`, above the count of bytes.
pub(super) const FIN: usize = 1 << 8;
/// In `Kernel::edge`.
const IN: usize = 1;
const RDHUP: usize = 2;

/// What is left out or turned round.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Twin {
    Right,
    ConsumeAfterRecv,
    ParkedToIdle,
    WakerAfterCas,
    KeepOldWaiter,
    StickyAfterWord,
    CloseWithoutMark,
    PublishAfterSignal,
    StaleLook,
    AskedToIdle,
}

#[derive(Clone, Copy)]
pub(super) struct Scenario {
    /// Bytes (and perhaps [`FIN`]) that arrive, one edge each unless they merge; 0 is an edge whose bytes an earlier
    /// recv took.
    pub(super) arrivals: &'static [usize],
    /// So many of them have come, edge and all, before the threads start: that saves preemptions.
    pub(super) early: usize,
    /// Space of one recv.
    pub(super) space: usize,
    /// A recv may stop at a message boundary, short of its space and with data left (unix sockets).
    pub(super) stops_short: bool,
    /// The word starts sticky.
    pub(super) sticky: bool,
    pub(super) close: bool,
    pub(super) drain: bool,
    /// The read clock runs out, once.
    pub(super) ask: bool,
    /// The context of each poll of the reader.
    pub(super) polls: &'static [usize],
    pub(super) twin: Twin,
}

pub(super) struct Shared {
    pub(super) word: ReadWord,
    data: AtomicUsize,
    edge: AtomicUsize,
    slot: Mutex<Option<usize>>,
    pub(super) woken: [AtomicBool; 3],
    reason: AtomicBool,
    /// Somebody was parked when the clock ran out.
    pub(super) asked: AtomicBool,
    /// Where a twin keeps the sticky bit outside the word.
    late_sticky: AtomicBool,
    scenario: Scenario,
}

enum Recv {
    Got { n: usize, filled: bool },
    Fin,
    Again,
}

fn task() -> TaskId {
    TaskId::new(7, 3)
}

impl Shared {
    pub(super) fn new(scenario: Scenario) -> Self {
        Self {
            word: ReadWord::new(scenario.sticky),
            data: AtomicUsize::new(0),
            edge: AtomicUsize::new(0),
            slot: Mutex::new(None),
            woken: [AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false)],
            reason: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            late_sticky: AtomicBool::new(false),
            scenario,
        }
    }

    fn twin(&self) -> Twin {
        self.scenario.twin
    }

    // The kernel.

    pub(super) fn arrive(&self, what: usize) {
        self.data.fetch_add(what, Ordering::Relaxed);
        self.edge.fetch_or(if what & FIN != 0 { IN | RDHUP } else { IN }, Ordering::Release);
    }

    fn recv(&self) -> Recv {
        let data = self.data.load(Ordering::Relaxed);
        let bytes = data & (FIN - 1);
        if bytes == 0 {
            return if data & FIN != 0 { Recv::Fin } else { Recv::Again };
        }
        let n = if self.scenario.stops_short { 1 } else { bytes.min(self.scenario.space) };
        self.data.fetch_sub(n, Ordering::Relaxed);
        Recv::Got { n, filled: n == self.scenario.space }
    }

    // The takers.

    /// One pass of the reactor: did it find an edge?
    pub(super) fn pass(&self) -> bool {
        let edge = self.edge.swap(0, Ordering::Acquire);
        if edge & RDHUP == 0 {
            if edge != 0 {
                self.signal(Mark::Nothing);
            }
        } else if self.twin() == Twin::StickyAfterWord {
            self.signal(Mark::Nothing);
            self.late_sticky.store(true, Ordering::Release);
        } else {
            self.signal(Mark::Sticky);
        }
        edge != 0
    }

    /// A timeout or a reset, with no help from an edge that the kernel makes of it.
    pub(super) fn close(&self) {
        let mark = if self.twin() == Twin::CloseWithoutMark { Mark::Nothing } else { Mark::Sticky };
        if self.twin() == Twin::PublishAfterSignal {
            self.signal(mark);
            self.reason.store(true, Ordering::Relaxed);
        } else {
            self.reason.store(true, Ordering::Relaxed);
            self.signal(mark);
        }
    }

    pub(super) fn signal(&self, mark: Mark) {
        let Some(waiter) = self.word.signal(mark) else { return };
        if self.twin() == Twin::ParkedToIdle {
            self.word.consume();
        }
        self.wake(waiter);
    }

    /// The sweep's question.
    pub(super) fn ask(&self) {
        let Some(waiter) = self.word.ask() else { return };
        self.asked.store(true, Ordering::Relaxed);
        if self.twin() == Twin::AskedToIdle {
            self.word.consume();
        }
        self.wake(waiter);
    }

    fn wake(&self, waiter: Waiter) {
        let context = match waiter {
            Waiter::Task(id) => {
                assert_eq!(id, task());
                Some(0)
            }
            Waiter::Foreign => self.slot.lock().unwrap().take(),
        };
        if let Some(context) = context {
            self.woken[context].swap(true, Ordering::Release);
        }
    }
}

#[derive(Default)]
pub(super) struct Reader {
    more: bool,
    pub(super) got: usize,
    /// The peer's FIN was read.
    pub(super) over: bool,
    /// A read returned the close reason.
    ended: bool,
    /// An idle read was ended by the drain.
    drained: bool,
    /// It found the question and nothing else.
    pub(super) answered: bool,
    /// The context that waits.
    pub(super) asleep: Option<usize>,
}

impl Reader {
    pub(super) fn is_finished(&self) -> bool {
        self.over || self.ended || self.drained
    }

    /// Reads until it would wait.
    pub(super) fn poll(&mut self, s: &Shared, context: usize) {
        // Whoever is polled has used up the wakes that came before.
        s.woken[context].swap(false, Ordering::Acquire);
        self.asleep = None;
        while !self.is_finished() {
            if !self.poll_read(s, context) {
                self.asleep = Some(context);
                return;
            }
        }
    }

    /// The steps of `poll_buffer` and `poll_recv`. False: pending.
    fn poll_read(&mut self, s: &Shared, context: usize) -> bool {
        if s.word.look().is_plainly_ready() && self.receive(s, true) {
            return true;
        }
        if s.word.look().is_quiet() && !self.more && self.park(s, context) {
            return false;
        }
        loop {
            let look = s.word.look();
            if look.is_asked() {
                s.word.take_question();
            }
            if look.is_ready() || look.is_draining() || self.more {
                if self.try_recv(s, look) {
                    return true;
                }
                // The Ready that was consumed may have been the drain's, from after the look.
                self.answered |= look.is_asked() && look.is_ready();
                if look.is_ready() && s.twin() != Twin::StaleLook {
                    continue;
                }
            }
            if self.park(s, context) {
                return false;
            }
        }
    }

    /// False: nothing is there, park.
    fn try_recv(&mut self, s: &Shared, look: Look) -> bool {
        if look.is_draining() {
            self.drained = true;
            return true;
        }
        (look.is_ready() || self.more) && self.receive(s, look.is_ready())
    }

    fn receive(&mut self, s: &Shared, consume: bool) -> bool {
        let late = s.twin() == Twin::ConsumeAfterRecv;
        if consume && !late {
            assert!(s.word.consume(), "only the reader leaves Ready");
        }
        let recv = s.recv();
        if late {
            s.word.consume();
        }
        match recv {
            Recv::Got { n, filled } => {
                self.got += n;
                let sticky = match s.twin() {
                    Twin::StickyAfterWord => s.late_sticky.load(Ordering::Acquire),
                    _ => s.word.is_sticky(),
                };
                self.more = filled || sticky;
                true
            }
            Recv::Fin => {
                self.over = true;
                true
            }
            Recv::Again => {
                self.more = false;
                // A stored reason is visible through the word alone.
                self.ended = s.reason.load(Ordering::Relaxed);
                self.ended
            }
        }
    }

    fn park(&self, s: &Shared, context: usize) -> bool {
        if s.twin() == Twin::KeepOldWaiter && s.word.is_parked() {
            return true;
        }
        if context == 0 {
            return s.word.park(Waiter::Task(task()));
        }
        if s.twin() == Twin::WakerAfterCas {
            let parked = s.word.park(Waiter::Foreign);
            *s.slot.lock().unwrap() = Some(context);
            return parked;
        }
        *s.slot.lock().unwrap() = Some(context);
        s.word.park(Waiter::Foreign)
    }
}
