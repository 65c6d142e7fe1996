//! The blocking pool: closures that may block, each on a thread of its own while it runs.
//!
//! | field | written by | read by | guarded by |
//! |---|---|---|---|
//! | `word` | submitters, threads | the same | itself (law 13) |
//! | `state.queue` | submitters push, threads pop | the same | the mutex |
//! | `state.aborted` | whoever stops the pool | threads | the mutex |
//! | `running` | threads | whoever reports | relaxed: a count |
//! | `done`, `panics`, `refused`, `dropped` | threads, submitters | whoever reports | relaxed: counts |
//!
//! Thread class: any thread submits; its own threads run. Laws: 10 (jobs run under no lock, panics are caught per
//! job), 12, 13, 16.

use crate::exec::ambient::Class;
use crate::exec::job::{self, Job};
use crate::exec::join::{self, JoinHandle};
use crate::exec::local::Discard;
use crate::exec::run;
use crate::sync::lock;
use crate::sync::plain::{AtomicU64, AtomicUsize, Ordering};
use crate::time;
use crate::trace;
use crate::workers::config::WorkersConfig;
use crate::workers::credit::{Counts, Credit, Next, Place};
use crate::workers::crew::{Crew, Setting};
use crate::workers::error::SubmitError;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

struct Queued {
    job: Box<dyn Job>,
    /// Since when it waits, if no thread was promised to it.
    since: Option<Instant>,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Queued>,
    /// Threads that wait for the bell right now: with none, the one that was claimed is still on its way here.
    waiting: usize,
    /// What is still queued is given up.
    aborted: bool,
}

/// See the module's text.
pub(super) struct BlockingPool {
    word: Credit,
    max_threads: usize,
    max_overflow: usize,
    idle: Duration,
    state: Mutex<State>,
    work: Condvar,
    crew: Crew,
    running: AtomicUsize,
    done: AtomicU64,
    panics: AtomicU64,
    refused: AtomicU64,
    dropped: AtomicUsize,
}

impl BlockingPool {
    pub(super) fn new(config: &WorkersConfig, setting: Arc<Setting>) -> Self {
        Self {
            word: Credit::new(),
            max_threads: config.max_blocking,
            max_overflow: config.max_overflow,
            idle: config.idle,
            state: Mutex::default(),
            work: Condvar::new(),
            crew: Crew::new("epoxide-b", Class::Blocking, setting),
            running: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            dropped: AtomicUsize::new(0),
        }
    }

    /// Takes a closure, or gives it back.
    pub(super) fn submit<C, T>(self: &Arc<Self>, call: C) -> Result<JoinHandle<T>, SubmitError<C>>
    where
        C: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let mut place = self.word.admit(self.max_threads, self.max_overflow);
        if place == Place::NewThread {
            // Before the closure is boxed, so that it can be given back. The thread waits for the push.
            place = self.start_thread();
        }
        match place {
            Place::Parked | Place::NewThread | Place::Overflow => {
                let (handle, job) = job::joined_job(call);
                self.push(Queued { job, since: (place == Place::Overflow).then(time::now) });
                Ok(handle)
            }
            Place::Full => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(SubmitError::PoolFull(call))
            }
            Place::Closed => Err(SubmitError::Stopped(call)),
        }
    }

    #[cold]
    fn start_thread(self: &Arc<Self>) -> Place {
        if Crew::start(self, |pool| &pool.crew, Self::work).is_ok() {
            return Place::NewThread;
        }
        let (place, orphans) = self.word.not_started(self.max_overflow);
        self.give_up(orphans);
        place
    }

    fn push(&self, queued: Queued) {
        let mut state = lock(&self.state);
        state.queue.push_back(queued);
        let waits = state.waiting > 0;
        drop(state);
        if waits {
            self.work.notify_one();
        }
    }

    /// A thread's life. Its first job is on its way.
    fn work(self: &Arc<Self>) {
        loop {
            let Some((job, aborted)) = self.take() else { return };
            self.run(job, aborted);
            if self.word.finished() == Next::Leave {
                return;
            }
        }
    }

    /// The next job, and whether it is to be given up. `None`: the thread has retired.
    fn take(&self) -> Option<(Box<dyn Job>, bool)> {
        let mut state = lock(&self.state);
        let mut waited = false;
        loop {
            if let Some(Queued { job, .. }) = state.queue.pop_front() {
                // Under the lock: whoever stops the pool sees it either queued or running.
                self.running.fetch_add(1, Ordering::Relaxed);
                return Some((job, state.aborted));
            }
            // Not while a job is on its way to this thread or to one like it: then its credit is claimed.
            if (waited || self.word.counts().closed) && self.word.retire() {
                return None;
            }
            state.waiting += 1;
            let (guard, timeout) = self.work.wait_timeout(state, self.idle).unwrap_or_else(PoisonError::into_inner);
            (state, waited) = (guard, timeout.timed_out());
            state.waiting -= 1;
        }
    }

    fn run(&self, job: Box<dyn Job>, aborted: bool) {
        if aborted {
            self.running.fetch_sub(1, Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            join::discarding(Discard::Stopped, || drop(job));
            return;
        }
        run::caught(|| {
            job.run(&mut |panicked| {
                self.running.fetch_sub(1, Ordering::Relaxed);
                self.done.fetch_add(1, Ordering::Relaxed);
                self.panics.fetch_add(u64::from(panicked), Ordering::Relaxed);
                if panicked {
                    trace::panicked_outside();
                }
            });
        });
    }

    /// Takes nothing more. What is queued still runs; threads end when nothing is left for them.
    pub(super) fn close(&self) {
        self.word.close();
        self.crew.close();
        // With the lock, so that no thread is between its look at the word and its wait.
        drop(lock(&self.state));
        self.work.notify_all();
    }

    /// Gives up what has not begun: the handles settle with Stopped. After `close`.
    pub(super) fn abort(&self) {
        lock(&self.state).aborted = true;
        let orphans = self.word.take_overflow();
        self.give_up(orphans);
    }

    /// Takes `count` jobs in the place of threads, and settles them.
    fn give_up(&self, count: usize) {
        for _ in 0..count {
            // Counted before it was pushed: it may still be on its way.
            let queued = loop {
                if let Some(queued) = lock(&self.state).queue.pop_front() {
                    break queued;
                }
                std::thread::yield_now();
            };
            self.dropped.fetch_add(1, Ordering::Relaxed);
            join::discarding(Discard::Stopped, || drop(queued));
        }
    }

    pub(super) fn crew(&self) -> &Crew {
        &self.crew
    }

    pub(super) fn counts(&self) -> Counts {
        self.word.counts()
    }

    /// Jobs whose closure runs now.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Jobs that a stop gave up.
    pub(super) fn dropped(&self) -> usize {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Jobs done, those of them that panicked, and jobs refused.
    pub(super) fn totals(&self) -> (u64, u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.done), read(&self.panics), read(&self.refused))
    }

    /// How long the oldest job of the overflow has waited.
    pub(super) fn oldest_overflow_age(&self) -> Option<Duration> {
        let since = lock(&self.state).queue.iter().find_map(|queued| queued.since)?;
        Some(time::now().saturating_duration_since(since))
    }
}
