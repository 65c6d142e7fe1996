//! The reactor: one epoll loop and what belongs to it.
//!
//! State: the `Reactor` below, owned by its thread and passed by `&mut` through the phases of a pass. Thread class:
//! reactor only. Laws: 4, 6, 7, 8, 11, 12, 16.
//!
//! | file | job |
//! |---|---|
//! | `turn` | the phases of one pass, in order, nothing else |
//! | `dispatch` | epoll events to words |
//! | `inbox` | messages of other threads and of this one |
//! | `table` | slots, generations, who is connected |
//! | `accept` | listeners, budgets, back-off |
//! | `adopt` | connections and descriptors that come from elsewhere |
//! | `watches` | watched descriptors: their slots and edges |
//! | `linger` | connections that were let go |
//! | `sweep` | the 250 ms tick: clocks |
//! | `moderation` | a nap before the wait, if asked for |
//! | `stall` | user code that holds the loop |
//! | `finish` | drain, stop, teardown |

pub(crate) mod accept;
mod adopt;
mod dispatch;
mod finish;
mod inbox;
mod linger;
mod moderation;
pub(crate) mod stall;
mod sweep;
mod table;
mod turn;
mod watches;

pub(crate) use finish::Ended;

use crate::exec::home::{Home, Stage};
use crate::exec::local::{self, Entered};
use crate::id::Key;
use crate::sync::limit::Limit;
use crate::sys;
use crate::sys::epoll::{Epoll, Events};
use crate::time::driver::{self, Driver};
use accept::Listener;
use stall::Stalls;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use sweep::Sweep;
use table::Table;
use watches::Watches;

/// Event data of the eventfd: generation 0 is no connection's, and no listener has this index.
const WAKE_DATA: u64 = u32::MAX as u64;

/// See the module's text.
pub(crate) struct Reactor {
    home: Arc<Home>,
    epoll: Epoll,
    events: Events,
    table: Table,
    listeners: Vec<Listener>,
    /// An event of this pass said that a listener has somebody.
    accept_due: bool,
    moderation: moderation::Moderation,
    /// Connections of the whole runtime.
    limit: Arc<Limit>,
    watches: Watches,
    /// Flushes out of budget, each connection at most once (its word says Owed).
    owed: VecDeque<Key>,
    /// Flush budgets that an owed flush got in this pass.
    portions: usize,
    timers: Arc<Driver>,
    sweep: Sweep,
    stalls: Stalls,
    /// The time of this pass: milliseconds of the coarse clock.
    now_ms: u64,
    /// The stage that the loop has acted upon.
    stage: Stage,
    /// A drain ends this reactor; under `block_on` its future does.
    ends_itself: bool,
    /// A listener died: the reactor ends with this error.
    fault: Option<io::Error>,
    // Dropped last: leaves the thread-locals.
    _timers_entered: driver::Entered,
    _entered: Entered,
}

impl Reactor {
    /// Makes the calling thread `home`'s reactor.
    ///
    /// Fails when another reactor runs on this thread, when `home` has run before, or with the errno of epoll.
    pub(crate) fn new(home: Arc<Home>, limit: Arc<Limit>) -> io::Result<Self> {
        let entered = local::enter(&home).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a reactor runs on this thread already: one thread, one reactor",
            )
        })?;
        if !home.start() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "this reactor has run before and cannot run again",
            ));
        }
        let epoll = Epoll::new()?;
        epoll.add(home.wake_fd().as_fd(), sys::epoll::IN | sys::epoll::ET, WAKE_DATA)?;
        let wake = Arc::downgrade(&home);
        let now_ms = sys::clock::monotonic_coarse_ms();
        let timers = Driver::new(Box::new(move || {
            if let Some(home) = wake.upgrade() {
                home.wake();
            }
        }));
        home.timers.set(timers.clone());
        Ok(Self {
            events: Events::with_capacity(home.config.max_events),
            epoll,
            table: Table::new(),
            listeners: Vec::new(),
            accept_due: false,
            moderation: moderation::Moderation::new(home.config.moderation),
            limit,
            watches: Watches::new(),
            owed: VecDeque::new(),
            portions: 1,
            sweep: Sweep::new(now_ms),
            stalls: Stalls::new(home.config.stall_threshold),
            now_ms,
            stage: Stage::Running,
            ends_itself: false,
            fault: None,
            _timers_entered: timers.enter(),
            timers,
            _entered: entered,
            home,
        })
    }
}
