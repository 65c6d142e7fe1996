//! The process-wide timer thread, for threads that have no driver of their own.
//!
//! Job: one driver and one thread that fires it, started at first use and kept for the life of the process. State:
//! the driver and the bell it sleeps by. Thread class: any thread. Laws: 10, 12.
//!
//! The thread waits on a condition variable, without a timeout while nothing is armed: an idle one uses no CPU. It
//! is called `epoxide-timer`, may run on every CPU that the process may use, and has the signal mask of the thread that
//! started it.

use std::io;
// std atomic: the locks here order what matters; these protocols are not modelled.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use super::clock;
use super::driver::Driver;

#[derive(Debug)]
struct TimerThread {
    driver: Arc<Driver>,
    bell: Arc<Bell>,
    running: AtomicBool,
    /// Held while the thread is started.
    starting: Mutex<()>,
}

static TIMER: OnceLock<TimerThread> = OnceLock::new();

/// The timer thread's driver, which is never shut down. Errors: the thread could not be started (EAGAIN, see
/// `pthread_create(3)`); the next call tries again.
pub(super) fn driver() -> io::Result<&'static Arc<Driver>> {
    let timer = TIMER.get_or_init(|| {
        let bell = Arc::new(Bell::default());
        let driver = Driver::new(Box::new({
            let bell = Arc::clone(&bell);
            move || bell.ring()
        }));
        TimerThread { driver, bell, running: AtomicBool::new(false), starting: Mutex::new(()) }
    });
    if !timer.running.load(Ordering::Acquire) {
        timer.start()?;
    }
    Ok(&timer.driver)
}

impl TimerThread {
    fn start(&'static self) -> io::Result<()> {
        let _alone = self.starting.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.running.load(Ordering::Acquire) {
            std::thread::Builder::new().name("epoxide-timer".into()).spawn(|| self.run())?;
            self.running.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn run(&self) {
        // Whoever started it may be pinned; it serves all.
        crate::sys::affinity::unpin_current();
        crate::sys::schedule::inherit_nothing();
        let _entered = self.driver.enter();
        loop {
            self.driver.fire(clock::now());
            self.bell.wait(&self.driver);
        }
    }
}

/// What the thread sleeps by.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<bool>,
    condition: Condvar,
}

impl Bell {
    pub(super) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condition.notify_one();
    }

    /// Returns when something is due in `driver` or the bell has been rung. The deadline is read under the lock that
    /// `ring` takes, so an earlier one is either seen here or rings.
    pub(super) fn wait(&self, driver: &Driver) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            rung = match driver.next_deadline() {
                None => self.condition.wait(rung).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(clock::now());
                    if left.is_zero() {
                        break;
                    }
                    self.condition.wait_timeout(rung, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *rung = false;
    }
}
