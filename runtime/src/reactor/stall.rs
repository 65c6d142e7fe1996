//! The stall detector: user code that holds the loop too long is counted and named.
//!
//! State: the threshold, the hooks, until when tasks are timed one by one. Thread class: reactor only. Laws: 10 (hooks
//! run under no borrow, their panics are caught).
//!
//! What is measured is the wall time of a pass's tasks: the pass has read the coarse clock at its beginning, and reads it
//! once more behind them. A stall of a pass that polled one task is that task's. When there were several, it is told that it was one
//! of them, and for `TIMED_MS` from then on every poll is timed: the next one has its name. What ran before the tasks
//! (a post, a handler's function, a foreign waker) is measured apart, when there was any.
//!
//! Limits: a stall is told when it ends; a task that never returns is told by nobody (`Stats::passes` then stands still).
//! The clock goes in steps of up to 10 ms. Wall time holds what the scheduler gave to others. Destructors of what the
//! reactor itself lets go of, after the tasks, are not measured.

use super::Reactor;
use crate::exec::handle::ReactorHandle;
use crate::exec::{run, watched};
use crate::stats::Count;
use crate::{sys, trace};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

/// A pass longer than this, in milliseconds, is not taken for a moment by the clocks of connections.
const HELD_MS: u64 = 20;

/// How long tasks are timed one by one after a stall, in milliseconds.
const TIMED_MS: u64 = 60_000;

/// How often a pass that has served its tasks looks for wakes that came from other threads meanwhile, before it looks at
/// epoll again: a worker and a task that wake each other for ever must not hold off events. A pass costs 430 instructions
/// beside its tasks.
const ROUNDS: u32 = 64;

/// User code held a reactor's loop longer than
/// [`ReactorConfig::stall_threshold`](crate::ReactorConfig::stall_threshold): everything else on that reactor waited.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let mut server = epoxide::Runtime::builder();
/// server.on_stall(|reactor, stall| eprintln!("reactor {}: {stall}", reactor.id()));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stall {
    /// How long, in steps of the coarse clock (up to 10 ms).
    pub took: Duration,
    /// Who it was.
    pub by: StalledBy,
}

/// Who held the loop.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # use epoxide::StalledBy;
/// # let mut server = epoxide::Runtime::builder();
/// server.on_stall(|_, stall| match stall.by {
///     StalledBy::Task(spawned_at) => eprintln!("by the task spawned at {spawned_at}"),
///     StalledBy::OneOf(tasks) => eprintln!("by one of {tasks} tasks; they are timed one by one now"),
///     _ => eprintln!("by other code"),
/// });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum StalledBy {
    /// A task, by where it was spawned; for the handler of a connection, where its listener was named (`listen`).
    Task(&'static Location<'static>),
    /// One of so many tasks of one pass, or all of them together. From then on tasks are timed one by one for a
    /// minute, so that the next stall has a name.
    OneOf(usize),
    /// Code outside of the tasks: a posted closure, the function that makes a handler's future, a foreign waker.
    Outside,
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.by {
            StalledBy::Task(spawned_at) => write!(f, "the task spawned at {spawned_at}")?,
            StalledBy::OneOf(tasks) => write!(f, "one of {tasks} tasks")?,
            StalledBy::Outside => f.write_str("a post, the function of a handler, or a waker")?,
        }
        write!(f, " held the loop for {:?}", self.took)
    }
}

/// Called with each stall.
pub(crate) type StallHook = Arc<dyn Fn(&ReactorHandle, &Stall) + Send + Sync>;

/// See the module's text.
pub(super) struct Stalls {
    /// Milliseconds; `u64::MAX` is off.
    limit: u64,
    /// Tasks are timed one by one while the clock is before this.
    timed_until: u64,
    hooks: Vec<StallHook>,
}

impl Stalls {
    pub(super) fn new(threshold: Duration) -> Self {
        let limit = if threshold.is_zero() { u64::MAX } else { millis(threshold) };
        Self { limit, timed_until: 0, hooks: Vec::new() }
    }
}

/// Saturating.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Reactor {
    pub(crate) fn set_stall_hooks(&mut self, hooks: Vec<StallHook>) {
        self.stalls.hooks = hooks;
    }

    /// Runs the pass's tasks; how many polls there were.
    #[inline]
    pub(super) fn run_tasks(&mut self) -> usize {
        let budget = self.home.config.task_budget;
        let begun = if watched::take_outside() { self.after_outside() } else { self.now_ms };
        if begun < self.stalls.timed_until {
            return self.run_timed(begun, budget);
        }
        let mut rounds = ROUNDS;
        let polls = run::batch(budget, || self.home.has_wakes() && self.refill(&mut rounds), |_| ());
        self.home.counts.add_own(Count::TaskPolls, polls as u64);
        if polls > 0 {
            let now = sys::clock::monotonic_coarse_ms();
            if now.saturating_sub(self.now_ms) > HELD_MS {
                self.date_anew(now);
            }
            let took = now.saturating_sub(begun);
            if took > self.stalls.limit {
                let last = if polls == 1 { watched::last_polled() } else { None };
                self.stalled(took, last.map_or(StalledBy::OneOf(polls), StalledBy::Task));
            }
        }
        polls
    }

    /// Tasks that other threads woke since the inbox was read; true: there are some to be polled in this pass. Not past
    /// other messages: what was posted before a wake is run before its task (of up to `INBOX_BUDGET` messages).
    #[inline(never)]
    fn refill(&self, rounds: &mut u32) -> bool {
        *rounds -= 1;
        self.read_wakes();
        *rounds > 0 && !self.home.has_messages()
    }

    /// The same, with a look at the clock after each poll.
    #[cold]
    fn run_timed(&mut self, begun: u64, budget: usize) -> usize {
        let (mut last, mut slowest, mut rounds) = (begun, (0, None), ROUNDS);
        let refill = || self.home.has_wakes() && self.refill(&mut rounds);
        let polls = run::batch(budget, refill, |spawned_at| {
            let now = sys::clock::monotonic_coarse_ms();
            let took = now.saturating_sub(last);
            last = now;
            if took > slowest.0 {
                slowest = (took, spawned_at);
            }
        });
        self.home.counts.add_own(Count::TaskPolls, polls as u64);
        if last.saturating_sub(self.now_ms) > HELD_MS {
            self.date_anew(last);
        }
        match slowest {
            (took, Some(task)) if took > self.stalls.limit => self.stalled(took, StalledBy::Task(task)),
            _ => {
                let took = last.saturating_sub(begun);
                if took > self.stalls.limit {
                    self.stalled(took, StalledBy::OneOf(polls));
                }
            }
        }
        polls
    }

    /// User code ran in this pass before its tasks: when these begin.
    #[cold]
    fn after_outside(&mut self) -> u64 {
        let now = sys::clock::monotonic_coarse_ms();
        let took = now.saturating_sub(self.now_ms);
        if took > self.stalls.limit {
            self.stalled(took, StalledBy::Outside);
        }
        now
    }

    #[cold]
    fn stalled(&mut self, took: u64, by: StalledBy) {
        let stall = Stall { took: Duration::from_millis(took), by };
        self.home.counts.add_own(Count::Stalls, 1);
        self.stalls.timed_until = sys::clock::monotonic_coarse_ms().saturating_add(TIMED_MS);
        trace::stalled(self.home.index, &stall);
        let handle = ReactorHandle { home: self.home.clone() };
        for hook in &self.stalls.hooks {
            run::caught(|| hook(&handle, &stall));
        }
    }
}
