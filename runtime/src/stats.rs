//! Counters: what a reactor did, as one snapshot.
//!
//! Job: one list of counters, their storage and the public [`Stats`]. State: two sets a reactor, one for its own thread
//! and one for the others. Thread class: any thread reads a snapshot. Law 16 (everything is counted).

use crate::sync::plain::{AtomicU64, Ordering};
use std::fmt;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident $field:ident,)+) => {
        /// Names a counter.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Count { $($variant,)+ }

        const COUNTERS: usize = [$(stringify!($variant),)+].len();

        /// A snapshot of the counters of one reactor, or of all of a runtime (summed).
        ///
        /// Read counter by counter while the reactors run: sums over several of them may be off by what happens
        /// meanwhile. The gauges are set once a pass.
        /// `Display` prints one `name value` pair a line.
        ///
        /// ```
        /// let runtime = epoxide::Runtime::builder().reactors(2).build().unwrap();
        /// assert_eq!(runtime.stats().open, 0); // of both; a handle's are its reactor's
        /// println!("{}", runtime.handle().stats());
        /// ```
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $field: u64,)+
            /// Connections of this reactor that exist now, those that linger included (a gauge).
            pub open: u64,
            /// Connections that their handlers let go of and that wait for the peer's FIN (a gauge).
            pub lingering: u64,
            /// Tasks that exist now (a gauge).
            pub tasks: u64,
            /// Receive buffers of the whole process that somebody holds now (a gauge, the same for every reactor).
            pub buffers_outstanding: u64,
            /// Receive buffers of the whole process that exist now, held or pooled (a gauge).
            pub buffers_allocated: u64,
        }

        impl Stats {
            fn from_counters(read: impl Fn(Count) -> u64) -> Self {
                Self { $($field: read(Count::$variant),)+ ..Self::default() }
            }

            /// Adds another reactor's snapshot. The process-wide buffer gauges are not added up.
            pub(crate) fn merge(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
                self.open += other.open;
                self.lingering += other.lingering;
                self.tasks += other.tasks;
                self.buffers_outstanding = self.buffers_outstanding.max(other.buffers_outstanding);
                self.buffers_allocated = self.buffers_allocated.max(other.buffers_allocated);
            }
        }

        impl fmt::Display for Stats {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{} {}", stringify!($field), self.$field)?;)+
                writeln!(f, "open {}", self.open)?;
                writeln!(f, "lingering {}", self.lingering)?;
                writeln!(f, "tasks {}", self.tasks)?;
                writeln!(f, "buffers_outstanding {}", self.buffers_outstanding)?;
                write!(f, "buffers_allocated {}", self.buffers_allocated)
            }
        }
    };
}

counters! {
    /// Connections accepted by listeners.
    Accepted accepted,
    /// Connections that came otherwise: attempts to connect, `from_std`, `Listener::accept`, `rehome`. A move that its target
    /// took note of and that was then dropped or refused counts here too, and as closed.
    Adopted adopted,
    /// Connections that came from another reactor by `rehome`; each of them was adopted too.
    Rehomed rehomed,
    /// Connections made by `connect`.
    Connected connected,
    /// Connections closed: their descriptor's table slot was freed. One that moved away counts at the reactor that it left.
    Closed closed,
    /// Calls of `recv(2)` made for readers, on any thread.
    Reads reads,
    /// Those that found nothing (`EAGAIN`).
    Eagain eagain,
    /// Those made off the reactor before a park, though nothing was known to be there (`ReactorConfig::optimistic_reads`).
    Probes probes,
    /// Those of the probes that found nothing.
    ProbesMissed probes_missed,
    /// Calls of `send(2)`, `sendmsg(2)` and `sendfile(2)`, on any thread.
    Sends sends,
    /// Those that were `sendfile(2)`.
    Sendfiles sendfiles,
    /// Those that the socket refused (`EAGAIN`).
    SendEagain send_eagain,
    /// Reads that parked.
    Parks parks,
    /// Flushes that were left to the reactor: refused by the socket or out of budget.
    FlushParks flush_parks,
    /// Calls of `recv(2)` that discarded input after the handler let go.
    Discards discards,
    /// Wakes of a task from its own reactor's thread.
    WakesLocal wakes_local,
    /// Wakes of a task from another thread.
    WakesRemote wakes_remote,
    /// Writes of the eventfd: the reactor slept.
    EventfdWrites eventfd_writes,
    /// Messages from other threads that needed no eventfd write: the reactor was awake.
    EventfdWritesSaved eventfd_writes_saved,
    /// Passes of the loop (calls of `epoll_wait(2)`).
    Passes passes,
    /// Events that epoll reported.
    Events events,
    /// Naps before a wait (`ReactorConfig::moderation`).
    Naps naps,
    /// Tasks spawned.
    TasksSpawned tasks_spawned,
    /// Polls of tasks.
    TaskPolls task_polls,
    /// Panics of user code that were caught.
    Panics panics,
    /// Spawns refused at the end of a reactor: the destructors of its tasks spawned more than 10 000.
    SpawnsRefused spawns_refused,
    /// Passes that a task, or other user code, held longer than `stall_threshold`.
    Stalls stalls,
    /// Handlers whose future returned an error.
    HandlerErrors handler_errors,
    /// Connections that a clock closed (read, send, deadline).
    Timeouts timeouts,
    /// Calls of `accept4(2)` that failed for want of descriptors or memory.
    AcceptStarved accept_starved,
    /// Times a listener paused because `max_connections` of it or of the runtime exist.
    AcceptLimited accept_limited,
    /// Posts refused because `max_posts` of them waited.
    PostsRefused posts_refused,
    /// Stagings refused because `max_staged` bytes waited.
    StagedRefused staged_refused,
    /// Frames that a shared writer refused: a limit was reached, or the connection had ended.
    FramesRefused frames_refused,
}

/// A reactor's counters: one set that only its own thread writes, by plain load and store, and one that every other
/// thread adds to.
#[derive(Debug)]
pub(crate) struct Counts {
    own: [AtomicU64; COUNTERS],
    gauges: [AtomicU64; 3],
    foreign: Box<[AtomicU64; COUNTERS]>,
}

/// A value that goes up and down, set by the reactor.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gauge {
    Open,
    Lingering,
    Tasks,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            own: [const { AtomicU64::new(0) }; COUNTERS],
            gauges: [const { AtomicU64::new(0) }; 3],
            foreign: Box::new([const { AtomicU64::new(0) }; COUNTERS]),
        }
    }

    /// On the reactor's own thread: one instruction.
    #[inline]
    pub(crate) fn add_own(&self, count: Count, n: u64) {
        let counter = &self.own[count as usize];
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// On any other thread.
    pub(crate) fn add_foreign(&self, count: Count, n: u64) {
        self.foreign[count as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, gauge: Gauge, value: usize) {
        self.gauges[gauge as usize].store(value as u64, Ordering::Relaxed);
    }

    fn gauge(&self, gauge: Gauge) -> u64 {
        self.gauges[gauge as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn snapshot(&self) -> Stats {
        let pools = crate::buf::BufPool::stats_all();
        let read = |count: Count| {
            let i = count as usize;
            self.own[i].load(Ordering::Relaxed).wrapping_add(self.foreign[i].load(Ordering::Relaxed))
        };
        Stats {
            open: self.gauge(Gauge::Open),
            lingering: self.gauge(Gauge::Lingering),
            tasks: self.gauge(Gauge::Tasks),
            buffers_outstanding: pools.outstanding as u64,
            buffers_allocated: pools.allocated as u64,
            ..Stats::from_counters(read)
        }
    }
}
