//! Both pools of a runtime, and how they stop.
//!
//! State: the pools. Who touches it: any thread through the `Arc` that the runtime's homes and `Workers` handles hold;
//! the pools hold the homes weakly. Thread class: any thread. Laws: 9, 12, 13.
//!
//! A stop has two steps. `close`: nothing is taken any more, tasks are dropped by the workers, queued jobs still run.
//! `abort`: jobs that have not begun are given up. Neither blocks; `wait_*` do.

use crate::exec::ambient::{self, Class};
use crate::exec::enter::EnterHooks;
use crate::exec::home::Home;
use crate::time;
use crate::workers::blocking::BlockingPool;
use crate::workers::config::WorkersConfig;
use crate::workers::crew::Setting;
use crate::workers::tasks::TaskPool;
use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

/// See the module's text.
pub(crate) struct Pools {
    pub(super) tasks: Arc<TaskPool>,
    pub(super) blocking: Arc<BlockingPool>,
    setting: Arc<Setting>,
}

impl fmt::Debug for Pools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pools").finish_non_exhaustive()
    }
}

impl Pools {
    /// To be called where the runtime is built, before its reactors pin themselves: the pools' threads run where the
    /// caller may. Starts none.
    pub(crate) fn new(config: &WorkersConfig, enter: EnterHooks) -> Arc<Self> {
        let setting = Arc::new(Setting::new(enter));
        Arc::new(Self {
            tasks: Arc::new(TaskPool::new(config, setting.clone())),
            blocking: Arc::new(BlockingPool::new(config, setting.clone())),
            setting,
        })
    }

    /// Makes these the pools of the reactors.
    pub(crate) fn attach(self: &Arc<Self>, homes: &[Arc<Home>]) {
        self.setting.attach(homes);
        for home in homes {
            home.pools.set(self.clone());
        }
    }

    /// The pools of a reactor's runtime.
    pub(crate) fn of(home: &Home) -> Option<Arc<Self>> {
        home.pools.get()
    }

    /// Takes nothing more. Idempotent.
    pub(crate) fn close(&self) {
        self.tasks.close();
        self.blocking.close();
    }

    /// Gives up the jobs that have not begun. After `close`; idempotent.
    pub(crate) fn abort(&self) {
        self.blocking.abort();
    }

    /// After the reactors: everything is settled when it is done, and what still runs are jobs past `deadline`, and
    /// workers inside a task that has not come back within `patience`.
    pub(crate) fn stop_blocking(&self, deadline: Instant, patience: Duration) {
        self.close();
        if !self.wait(Some(deadline)) {
            self.abort();
            self.tasks.crew().wait(Some(time::after(time::now(), patience)), || 0);
            self.blocking.crew().wait(None, || self.blocking.running());
        }
    }

    /// The same for a task.
    pub(crate) async fn stop(&self, deadline: Instant, patience: Duration) {
        self.close();
        let left = deadline.saturating_duration_since(time::now());
        if time::timeout(left, self.over()).await.is_err() {
            self.abort();
            // Who is left is asked for the report.
            let _ = time::timeout(patience, self.workers_over()).await;
        }
    }

    /// Waits until every thread of both pools has ended, or `deadline`. True: they have.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        self.tasks.crew().wait(deadline, || 0) & self.blocking.crew().wait(deadline, || 0)
    }

    /// After `abort`: waits for every thread but those whose job still runs.
    pub(crate) fn wait_for_the_idle(&self) {
        self.tasks.crew().wait(None, || 0);
        self.blocking.crew().wait(None, || self.blocking.running());
    }

    /// Ready when every thread of both pools has ended.
    async fn over(&self) {
        self.workers_over().await;
        poll_fn(|cx| if self.blocking.crew().poll_over(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Ready when every async worker has ended.
    async fn workers_over(&self) {
        poll_fn(|cx| if self.tasks.crew().poll_over(cx.waker()) { Poll::Ready(()) } else { Poll::Pending }).await;
    }

    /// Async workers that are inside a task. After a stop; the others wait for its end, with which they end.
    pub(crate) fn workers_busy(&self) -> usize {
        self.tasks.crew().alive().saturating_sub(self.tasks.parked())
    }

    /// Jobs whose closure runs now.
    pub(crate) fn jobs_running(&self) -> usize {
        self.blocking.running()
    }

    /// Jobs that were given up before they began.
    pub(crate) fn jobs_dropped(&self) -> usize {
        self.blocking.dropped()
    }

    /// Would the calling thread wait for itself?
    pub(crate) fn is_own_thread(&self) -> bool {
        let own = || ambient::home().and_then(|home| Self::of(&home)).is_some_and(|pools| std::ptr::eq(&*pools, self));
        ambient::class() != Class::Other && own()
    }
}

/// Ends the pools with whatever they were made for, without waiting for jobs that still run.
#[derive(Debug)]
pub(crate) struct Lease(pub(crate) Arc<Pools>);

impl Drop for Lease {
    fn drop(&mut self) {
        self.0.close();
        self.0.abort();
        if ambient::class() != Class::Worker {
            self.0.wait_for_the_idle();
        }
    }
}
