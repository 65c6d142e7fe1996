//! The async pool: `Send` futures, polled by whichever worker is free.
//!
//! State: a run queue, who sleeps, which tasks exist. Who touches it: any thread pushes woken tasks; the workers pop.
//! A task is `async_task`'s: one allocation holds future, state and waker, and its state machine (woken while polled,
//! cancelled while queued, dropped where it runs) is that crate's, tested there. Queue, sleep, panics and the stop
//! are ours. Thread class: any thread; futures are polled and dropped by workers only. Laws: 6 (what is cut is reset),
//! 7 (push, then look for a sleeper), 8 (a task that yields goes to the back), 10, 12.

use crate::exec::ambient::Class;
use crate::exec::join::{self, Abort, JoinHandle, Joined};
use crate::exec::late::{self, Sleepers};
use crate::exec::local::Discard;
use crate::id::TaskId;
use crate::sync::plain::{AtomicBool, AtomicU64, Ordering};
use crate::trace;
use crate::workers::config::WorkersConfig;
use crate::workers::crew::{Crew, Setting};
use crate::workers::error::SubmitError;
use crate::workers::parking::Parking;
use crate::workers::registry::Registry;
use async_task::Runnable;
use crossbeam_queue::SegQueue;
use pin_project_lite::pin_project;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};

/// See the module's text.
pub(super) struct TaskPool {
    queue: SegQueue<Runnable>,
    parking: Parking,
    registry: Registry,
    threads: usize,
    crew: Crew,
    /// Do the workers exist? Held while they are started.
    starting: Mutex<()>,
    started: AtomicBool,
    polls: AtomicU64,
    panics: AtomicU64,
}

impl TaskPool {
    pub(super) fn new(config: &WorkersConfig, setting: Arc<Setting>) -> Self {
        Self {
            queue: SegQueue::new(),
            parking: Parking::new(),
            registry: Registry::default(),
            threads: config.async_threads(),
            crew: Crew::new("epoxide-w", Class::Worker, setting),
            starting: Mutex::new(()),
            started: AtomicBool::new(false),
            polls: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }

    /// Takes a future, or gives it back.
    pub(super) fn spawn<F>(self: &Arc<Self>, future: F) -> Result<JoinHandle<F::Output>, SubmitError<F>>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let Some(id) = self.registry.reserve() else { return Err(SubmitError::Stopped(future)) };
        if !self.started.load(Ordering::Acquire) && !self.start_workers() {
            self.leave(id);
            return Err(SubmitError::PoolFull(future));
        }
        let (handle, joined) = join::joined_in_pool(Arc::new(AbortTask { pool: Arc::downgrade(self), id }), future);
        let guarded = Guarded { joined: Some(joined), seat: Seat { pool: self.clone(), id } };
        let pool = self.clone();
        let (runnable, task) = async_task::spawn(guarded, move |runnable| pool.schedule(runnable));
        if let Err(task) = self.registry.fill(id, task) {
            // Cancelled before its first poll: the worker that takes it drops the future.
            drop(task);
        }
        runnable.schedule();
        Ok(handle)
    }

    fn schedule(self: &Arc<Self>, runnable: Runnable) {
        self.queue.push(runnable);
        if !late::put_off(self) {
            self.wake_one();
        }
    }

    /// False: the system lets no thread start.
    #[cold]
    fn start_workers(self: &Arc<Self>) -> bool {
        let _alone = crate::sync::lock(&self.starting);
        if !self.started.load(Ordering::Acquire) {
            let started =
                (0..self.threads).filter(|_| Crew::start(self, |pool| &pool.crew, Self::work).is_ok()).count();
            // With fewer than asked for it works too; with none the next call tries again.
            self.started.store(started > 0, Ordering::Release);
        }
        self.started.load(Ordering::Acquire)
    }

    /// A worker's life.
    fn work(self: &Arc<Self>) {
        loop {
            // Fresh from sleep: if there is more than it can take, the next one gets up too.
            let mut fresh = true;
            while let Some(runnable) = self.queue.pop() {
                if std::mem::take(&mut fresh) && !self.queue.is_empty() {
                    self.wake_one();
                }
                self.polls.fetch_add(1, Ordering::Relaxed);
                // Panics of the future are caught in `Guarded`.
                runnable.run();
            }
            if self.registry.is_over() {
                return;
            }
            self.parking.park(|| !self.queue.is_empty() || self.registry.is_over());
        }
    }

    /// A task's future is gone.
    fn leave(&self, id: TaskId) {
        let (task, was_last) = self.registry.remove(id);
        if let Some(task) = task {
            task.detach();
        }
        if was_last {
            self.parking.wake_all();
        }
    }

    /// Takes nothing more; every future is dropped, soon, by a worker, and its handle settles. Then the workers end.
    pub(super) fn close(&self) {
        self.crew.close();
        // Cancelling queues each task once more, for a worker to drop its future.
        drop(self.registry.close());
        self.parking.wake_all();
    }

    pub(super) fn crew(&self) -> &Crew {
        &self.crew
    }

    /// Tasks that exist.
    pub(super) fn live(&self) -> usize {
        self.registry.live()
    }

    /// Workers that sleep.
    pub(super) fn parked(&self) -> usize {
        self.parking.parked()
    }

    /// Polls, and those of them that panicked.
    pub(super) fn totals(&self) -> (u64, u64) {
        (self.polls.load(Ordering::Relaxed), self.panics.load(Ordering::Relaxed))
    }
}

/// A task's place in its pool.
struct Seat {
    pool: Arc<TaskPool>,
    id: TaskId,
}

pin_project! {
    /// The future as the pool polls it: one panic boundary a poll, and an end that tells why (law 6).
    struct Guarded<F: Future> {
        #[pin]
        joined: Option<Joined<F>>,
        seat: Seat,
    }

    impl<F: Future> PinnedDrop for Guarded<F> {
        /// Dropped before it was done: aborted, or the pool has stopped.
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.joined.is_some() {
                let pool = &this.seat.pool;
                let why = if pool.registry.is_closed() { Discard::Stopped } else { Discard::Aborted };
                join::discarding(why, || this.joined.set(None));
                pool.leave(this.seat.id);
            }
        }
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(joined) = this.joined.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        let (why, thrown) = match catch_unwind(AssertUnwindSafe(|| joined.poll(cx))) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(())) => (Discard::No, None),
            Err(payload) => {
                this.seat.pool.panics.fetch_add(1, Ordering::Relaxed);
                trace::panicked_outside();
                (Discard::Panicked, Some(payload))
            }
        };
        join::discarding_thrown(why, thrown, || this.joined.set(None));
        this.seat.pool.leave(this.seat.id);
        Poll::Ready(())
    }
}

impl Sleepers for TaskPool {
    #[inline]
    fn wake_one(&self) {
        self.parking.wake_one(|| !self.queue.is_empty());
    }
}

struct AbortTask {
    pool: Weak<TaskPool>,
    id: TaskId,
}

impl Abort for AbortTask {
    fn abort(&self) {
        if let Some(pool) = self.pool.upgrade() {
            // Cancelled outside the registry's lock; a worker drops the future.
            drop(pool.registry.take(self.id));
        }
    }
}
