//! The threads of a pool: how they start, what they are told about themselves, and who waits for their end.
//!
//! State: one record a pool, behind a mutex. Who touches it: whoever starts a thread, each thread as it ends, whoever
//! waits. Thread class: any thread. Laws: 10 (wakers are woken after unlock), 12, 13.
//!
//! A thread of a pool inherits nothing from the thread that happened to start it: it may run on every CPU that the
//! process may use (a reactor that started it may be pinned), and the signals that a process is told something by are
//! blocked in it.

use crate::error::complain;
use crate::exec::ambient::{self, Class};
use crate::exec::enter::EnterHooks;
use crate::exec::home::Home;
use crate::sync::lock;
use crate::sync::quiet::wake_all;
use crate::sys;
use crate::time::driver::Driver;
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Instant;

/// What the threads of all pools of a runtime are given.
pub(super) struct Setting {
    /// Where the runtime was built; `None` where the kernel would not say.
    affinity: Option<sys::affinity::Affinity>,
    /// The runtime's reactors, held weakly: they hold the pools.
    homes: OnceLock<Vec<Weak<Home>>>,
    /// Around each thread's life.
    enter: EnterHooks,
}

impl Setting {
    pub(super) fn new(enter: EnterHooks) -> Self {
        Self { affinity: sys::affinity::process_wide().ok(), homes: OnceLock::new(), enter }
    }

    pub(super) fn attach(&self, homes: &[Arc<Home>]) {
        // Err only says that it has been called before.
        let _ = self.homes.set(homes.iter().map(Arc::downgrade).collect());
    }

    /// The reactor that thread `index` belongs to: its timers, its connects. One that exists already, if there is one.
    fn home(&self, index: usize) -> Option<Arc<Home>> {
        let homes = self.homes.get()?;
        let in_turn = (0..homes.len()).filter_map(|i| homes[(index + i) % homes.len()].upgrade());
        let homes: Vec<_> = in_turn.collect();
        homes.iter().find(|home| home.timers.get::<Driver>().is_some()).or_else(|| homes.first()).cloned()
    }
}

#[derive(Default)]
struct State {
    next: usize,
    alive: usize,
    closed: bool,
    handles: HashMap<usize, JoinHandle<()>>,
    /// Threads that have said that they end, once the crew is closed.
    ending: Vec<JoinHandle<()>>,
    waiters: Vec<Waker>,
}

/// See the module's text.
pub(super) struct Crew {
    name: &'static str,
    class: Class,
    setting: Arc<Setting>,
    state: Mutex<State>,
    left: Condvar,
}

impl Crew {
    pub(super) fn new(name: &'static str, class: Class, setting: Arc<Setting>) -> Self {
        Self { name, class, setting, state: Mutex::default(), left: Condvar::new() }
    }

    /// Starts a thread that runs `body` with the crew that `of` finds in `pool`.
    ///
    /// # Errors
    /// As pthread_create(3): EAGAIN when no more threads are allowed.
    pub(super) fn start<P: Send + Sync + 'static>(
        pool: &Arc<P>,
        of: fn(&P) -> &Self,
        body: fn(&Arc<P>),
    ) -> io::Result<()> {
        let crew = of(pool);
        // Held over the start: a thread that ends at once finds its own handle.
        let mut state = lock(&crew.state);
        let index = state.next;
        let thread = {
            let pool = pool.clone();
            std::thread::Builder::new()
                .name(format!("{}{index}", crew.name))
                .spawn(move || of(&pool).run(index, || body(&pool)))?
        };
        state.next += 1;
        state.alive += 1;
        state.handles.insert(index, thread);
        Ok(())
    }

    fn run(&self, index: usize, body: impl FnOnce()) {
        ambient::set_class(self.class);
        if let Some(affinity) = &self.setting.affinity {
            // Refused when the process's CPUs have changed meanwhile: then it stays where it is.
            let _ = sys::affinity::restore(affinity);
        }
        sys::schedule::inherit_nothing();
        let _ = sys::signal::block_in_this_thread();
        let home = self.setting.home(index);
        let timers = home.as_ref().and_then(|home| home.timers.get::<Driver>());
        let timers = timers.map(|timers| timers.enter_remote());
        let entered = home.map(ambient::enter);
        self.setting.enter.around(|entered| {
            if !entered {
                // A job is on its way to this thread: it runs all the same.
                complain(format_args!("{}{index}: an enter hook did not call the thread that it was given", self.name));
            }
            // User code is caught where it runs; a panic here is a defect, and must not be waited for.
            let _ = catch_unwind(AssertUnwindSafe(body));
        });
        drop((timers, entered));
        crate::buf::flush_thread_magazine();
        self.ended(index);
    }

    fn ended(&self, index: usize) {
        let mut state = lock(&self.state);
        state.alive -= 1;
        let handle = state.handles.remove(&index);
        if state.closed {
            state.ending.extend(handle);
        }
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        self.left.notify_all();
        wake_all(waiters);
    }

    /// From now on who ends is joined by who waits.
    pub(super) fn close(&self) {
        lock(&self.state).closed = true;
    }

    pub(super) fn alive(&self) -> usize {
        lock(&self.state).alive
    }

    /// Waits until at most `rest` threads are left, or `deadline`; joins those that end. True: no more are left.
    pub(super) fn wait(&self, deadline: Option<Instant>, rest: impl Fn() -> usize) -> bool {
        let mut state = lock(&self.state);
        let over = loop {
            if state.alive <= rest() {
                break true;
            }
            state = match deadline {
                None => self.left.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(crate::time::now());
                    if left.is_zero() {
                        break false;
                    }
                    self.left.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        };
        let ending = std::mem::take(&mut state.ending);
        drop(state);
        for thread in ending {
            let _ = thread.join();
        }
        over
    }

    /// Are all threads gone? If not, `waker` is woken when another one ends.
    pub(super) fn poll_over(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        if state.alive > 0 && !state.waiters.iter().any(|waiter| waiter.will_wake(&waker)) {
            state.waiters.push(waker);
        }
        state.alive == 0
    }
}
