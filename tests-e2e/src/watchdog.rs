//! Job: end a test that hangs, naming it, so that one lost wake-up costs minutes and not the run.
//! State owned: one thread per running test. Thread class: any thread.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Aborts the process with the test's name unless it is dropped in time.
///
/// Aborting is deliberate: a thread that hangs cannot be cancelled, and the core that is left
/// behind shows every stack.
#[derive(Debug)]
pub struct Watchdog {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Starts a watchdog that gives `name` this long.
    pub fn start(name: &str, limit: Duration) -> Self {
        let (stop, stopped) = channel();
        let name = name.to_owned();
        let thread = std::thread::Builder::new()
            .name("watchdog".into())
            .spawn(move || {
                if stopped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                    eprintln!("watchdog: test '{name}' still runs after {limit:?}: aborting");
                    std::process::abort();
                }
            })
            .expect("the watchdog's thread starts");
        Self { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
