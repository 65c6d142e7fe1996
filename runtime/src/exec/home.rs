//! The home: what other threads, and everything that outlives a pass, see of a reactor.
//!
//! State: the queue of wakes, the inbox, the wake flag of both, the eventfd, the post gate, the stop request, the shared
//! counters, the configuration. Who touches it: any thread pushes; the reactor drains. It lives in an `Arc` that every
//! connection, task and handle of the reactor holds, so a late wake finds an open eventfd that nobody polls. Thread
//! class: any thread. Laws: 7, 9, 12, 16.

use crate::config::ReactorConfig;
use crate::exec::company::Company;
use crate::exec::draining::DrainWaiters;
use crate::exec::erased::Erased;
use crate::exec::join;
use crate::exec::local::{self, Discard};
use crate::exec::run;
use crate::id::{Key, TaskId};
use crate::stats::{Count, Counts};
use crate::sync::gate::{Gate, Refused};
use crate::sync::plain::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::sync::wake::WakeFlag;
use crate::sys::eventfd::WakeFd;
use crate::trace;
use crossbeam_queue::SegQueue;
use std::any::Any;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A closure to be run on the reactor thread. Counted by the gate.
pub(crate) type Post = Box<dyn FnOnce() + Send>;

/// What asks to be registered with a reactor: a connection that was not accepted there, or a watched descriptor.
///
/// The message that carries it holds it strongly, and it holds its home: no cycle outlives the reactor, because every
/// message is taken, at the latest when the reactor ends or is given up ([`Home::abandon`]).
pub(crate) trait Guest: Any + Send + Sync {
    /// The reactor ended first: whoever waits for it settles. Any thread.
    fn turn_away(&self);
}

/// What a reactor is told beside wakes, which have a queue of their own. Wakes, owed flushes and let-go connections are never refused: a bit per task and per
/// connection bounds them.
pub(crate) enum Msg {
    /// The connection's flush is out of budget and belongs to the reactor.
    Owed(Key),
    /// Both halves of the connection are gone.
    LetGo(Key),
    /// Run user code. Takes a place in the gate.
    Post(Post),
    /// Register it. Takes a place in the gate.
    Adopt(Arc<dyn Guest>),
    /// Another reactor of the runtime has nothing to send any more: look at the drain again.
    CompanyOut,
}

impl Msg {
    /// The reactor ends before it came to this: whoever waits for it settles (law 12).
    pub(crate) fn settle(self) {
        match self {
            // What it holds is cut like what a task holds that had begun.
            Self::Post(post) => join::discarding(Discard::Stopped, || drop(post)),
            Self::Adopt(guest) => {
                guest.turn_away();
                // Perhaps the last holder, and a waker may be left in it: its drop is user code.
                run::caught(|| drop(guest));
            }
            Self::Owed(_) | Self::LetGo(_) | Self::CompanyOut => {}
        }
    }
}

/// How far a reactor's end has come. Only ever goes up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub(crate) enum Stage {
    Running = 0,
    /// Listeners close, idle connections end, busy ones finish.
    Draining = 1,
    /// Everything that is left is aborted, the loop ends.
    Aborting = 2,
    /// The loop has ended and everything is settled.
    Stopped = 3,
}

/// See the module's text.
pub(crate) struct Home {
    pub(crate) index: usize,
    pub(crate) config: ReactorConfig,
    pub(crate) counts: Counts,
    pub(crate) drain_waiters: DrainWaiters,
    pub(crate) company: Company,
    /// The timer driver of its loop, from the moment that the reactor exists.
    pub(crate) timers: Erased,
    /// The pools of its runtime.
    pub(crate) pools: Erased,
    /// Tasks that other threads woke. Of ids alone, so that a pass can take wakes and leave the rest. A ring (ArrayQueue)
    /// costs 60 instructions less a wake, but its pop spins without yielding while a producer is preempted within its push.
    wakes: SegQueue<TaskId>,
    inbox: SegQueue<Msg>,
    flag: WakeFlag,
    wake_fd: WakeFd,
    gate: Gate,
    stage: AtomicU8,
    /// When a drain turns into an abort: milliseconds of the coarse clock, `u64::MAX` for never. Only ever goes down.
    drain_deadline: AtomicU64,
    /// Set by the first thread that runs the reactor: it runs once.
    started: AtomicBool,
}

impl fmt::Debug for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("id", &self.index).field("stage", &self.stage()).finish_non_exhaustive()
    }
}

impl Home {
    /// Fails with the errno of eventfd(2).
    pub(crate) fn new(index: usize, config: ReactorConfig) -> io::Result<Self> {
        Ok(Self {
            index,
            config,
            counts: Counts::new(),
            drain_waiters: DrainWaiters::default(),
            company: Company::default(),
            timers: Erased::default(),
            pools: Erased::default(),
            wakes: SegQueue::new(),
            inbox: SegQueue::new(),
            flag: WakeFlag::new(),
            wake_fd: WakeFd::new()?,
            gate: Gate::new(),
            stage: AtomicU8::new(Stage::Running as u8),
            drain_deadline: AtomicU64::new(u64::MAX),
            started: AtomicBool::new(false),
        })
    }

    /// Tells the reactor. On its own thread: no lock, no atomic, no system call.
    #[inline]
    pub(crate) fn send(&self, msg: Msg) {
        if let Err(msg) = local::push_message(self, msg) {
            self.inject(msg);
        }
    }

    /// Tells the reactor from another thread: push, then wake it if it sleeps.
    fn inject(&self, msg: Msg) {
        self.inbox.push(msg);
        self.wake();
    }

    /// Has the reactor put a task into its run queue. On other threads than its own.
    #[inline(always)]
    pub(crate) fn inject_wake(&self, id: TaskId) {
        self.wakes.push(id);
        self.wake_from(false);
    }

    /// Wakes the reactor if it sleeps. To be called AFTER what it shall see was published.
    pub(crate) fn wake(&self) {
        self.wake_from(local::is_here(self));
    }

    #[inline]
    fn wake_from(&self, is_home: bool) {
        if self.flag.claim_wake() {
            self.wake_fd.signal();
            self.count_from(is_home, Count::EventfdWrites, 1);
        } else {
            self.count_from(is_home, Count::EventfdWritesSaved, 1);
        }
    }

    /// Reserves a place for one post. To be asked BEFORE the payload is boxed, so that it can be given back.
    pub(crate) fn admit(&self) -> Result<Admission<'_>, Refused> {
        match self.gate.enter(self.config.max_posts) {
            Ok(()) => Ok(Admission { home: self, used: false }),
            Err(why) => {
                if why == Refused::Full {
                    self.count(Count::PostsRefused, 1);
                    trace::refused(self.index, "max_posts", 1);
                }
                Err(why)
            }
        }
    }

    /// Adds to a counter, on whichever thread this is.
    #[inline]
    pub(crate) fn count(&self, count: Count, n: u64) {
        self.count_from(local::is_here(self), count, n);
    }

    /// The same where it is known whether this is the reactor's thread.
    #[inline]
    pub(crate) fn count_from(&self, is_home: bool, count: Count, n: u64) {
        if is_home { self.counts.add_own(count, n) } else { self.counts.add_foreign(count, n) }
    }

    pub(crate) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::Acquire) {
            0 => Stage::Running,
            1 => Stage::Draining,
            2 => Stage::Aborting,
            _ => Stage::Stopped,
        }
    }

    /// Asks for a later stage; earlier ones are ignored. Any thread.
    pub(crate) fn request(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::AcqRel);
        self.wake();
    }

    /// Asks for a drain that ends within `grace`, or within that of an earlier request if it is sooner. Any thread; the
    /// reactor keeps the deadline itself, so nobody has to wait for it to pass.
    pub(crate) fn drain(&self, grace: Duration) {
        // The coarse clock lags by up to a tick of the kernel, 10 ms at most: never before the deadline.
        let now = crate::sys::clock::monotonic_coarse_ms() + 10;
        let grace = u64::try_from(grace.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        self.drain_deadline.fetch_min(now.saturating_add(grace), Ordering::AcqRel);
        self.request(Stage::Draining);
    }

    /// When a drain turns into an abort, if one was asked for.
    pub(crate) fn drain_deadline_ms(&self) -> Option<u64> {
        Some(self.drain_deadline.load(Ordering::Acquire)).filter(|at| *at != u64::MAX)
    }

    /// True for the one caller that may run the reactor.
    pub(crate) fn start(&self) -> bool {
        !self.started.swap(true, Ordering::AcqRel)
    }

    // What only the reactor calls.

    pub(crate) fn wake_fd(&self) -> &WakeFd {
        &self.wake_fd
    }

    #[inline]
    pub(crate) fn take_message(&self) -> Option<Msg> {
        let msg = self.inbox.pop();
        if matches!(msg, Some(Msg::Post(_) | Msg::Adopt(_))) {
            self.gate.leave(1);
        }
        msg
    }

    /// The next task that another thread woke. What was posted before its wake is in the inbox by then, and is served first if the
    /// inbox's budget suffices.
    #[inline]
    pub(crate) fn take_wake(&self) -> Option<TaskId> {
        self.wakes.pop()
    }

    #[inline]
    pub(crate) fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        !self.inbox.is_empty()
    }

    pub(crate) fn announce_sleep(&self) {
        self.flag.announce_sleep();
    }

    pub(crate) fn awake(&self) {
        self.flag.awake();
    }

    /// Admits no post from now on; those on their way are still to be taken.
    pub(crate) fn close_gate(&self) {
        self.gate.close();
    }

    /// Whoever knows that this reactor will never run: what was handed over settles.
    pub(crate) fn abandon(&self) {
        self.request(Stage::Stopped);
        self.company.set_out(true);
        self.close_gate();
        loop {
            while let Some(msg) = self.take_message() {
                msg.settle();
            }
            if self.posts_waiting() == 0 {
                // After the stage: a wait that registers later sees that.
                self.drain_waiters.wake_all();
                return;
            }
            // A producer that was admitted before the gate closed is about to push.
            std::thread::yield_now();
        }
    }

    pub(crate) fn posts_waiting(&self) -> usize {
        self.gate.waiting()
    }
}

/// A reserved place in the inbox.
pub(crate) struct Admission<'a> {
    home: &'a Home,
    used: bool,
}

impl Admission<'_> {
    /// Hands over the closure; the reactor runs it, or drops it when it stops.
    pub(crate) fn post(mut self, post: Post) {
        self.used = true;
        self.home.inject(Msg::Post(post));
    }

    /// Hands over something to be registered; it is turned away when the reactor stops.
    pub(crate) fn adopt(mut self, guest: Arc<dyn Guest>) {
        self.used = true;
        self.home.inject(Msg::Adopt(guest));
    }
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        if !self.used {
            self.home.gate.leave(1);
        }
    }
}
