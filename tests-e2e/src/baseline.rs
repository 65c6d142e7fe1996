//! Job: what a process holds (descriptors, threads), and what it holds more of than before.
//! State owned: a snapshot. Thread class: any thread.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::proc::{current_tid, our_fds};

/// Threads of the test runner: each waits for its turn, and comes and goes as it likes.
static RUNNER_THREADS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// What this process held at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Baseline {
    fds: Vec<(i32, String)>,
    threads: Vec<(u32, String)>,
}

impl Baseline {
    /// Takes a snapshot, once two in a row agree (or 2 s have passed).
    pub fn settled() -> Self {
        let mut last = Self::now();
        let deadline = Instant::now() + Duration::from_secs(2);
        loop {
            // sleep: between two samples; what leaves has no signal.
            std::thread::sleep(Duration::from_millis(10));
            let next = Self::now();
            if next == last || Instant::now() >= deadline {
                return next;
            }
            last = next;
        }
    }

    /// Says that the calling thread belongs to the test runner and is nobody's leak.
    pub(crate) fn exempt_this_thread() {
        if let Ok(mut threads) = RUNNER_THREADS.lock() {
            threads.insert(current_tid());
        }
    }

    fn now() -> Self {
        Self { fds: our_fds("self").unwrap_or_default(), threads: threads() }
    }

    /// What there is now that was not there then, by name; empty when nothing leaked.
    pub fn leaked_since(&self) -> Vec<String> {
        let now = Self::now();
        let runner = RUNNER_THREADS.lock().map(|t| t.clone()).unwrap_or_default();
        let mut leaked = Vec::new();
        for fd in now.fds.iter().filter(|fd| !self.fds.contains(fd)) {
            leaked.push(format!("descriptor {} -> {}", fd.0, fd.1));
        }
        for fd in self.fds.iter().filter(|fd| !now.fds.contains(fd)) {
            leaked.push(format!("descriptor {} -> {} was closed and was not ours", fd.0, fd.1));
        }
        for thread in now.threads.iter().filter(|t| !self.threads.contains(t)) {
            // The process-wide timer thread starts at first use and stays.
            if !runner.contains(&thread.0) && thread.1 != "epoxide-timer" {
                leaked.push(format!("thread {} '{}'", thread.0, thread.1));
            }
        }
        leaked
    }

    /// Waits until nothing is left over, and returns what still is after `within`.
    pub fn wait_restored(&self, within: Duration) -> Vec<String> {
        let deadline = Instant::now() + within;
        loop {
            let leaked = self.leaked_since();
            if leaked.is_empty() || Instant::now() >= deadline {
                return leaked;
            }
            // sleep: between two samples, as above.
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn threads() -> Vec<(u32, String)> {
    let Ok(entries) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let mut threads = Vec::new();
    for entry in entries.flatten() {
        let Ok(tid) = entry.file_name().to_string_lossy().parse() else { continue };
        let Ok(name) = fs::read_to_string(entry.path().join("comm")) else { continue };
        threads.push((tid, name.trim().to_owned()));
    }
    threads.sort();
    threads
}
