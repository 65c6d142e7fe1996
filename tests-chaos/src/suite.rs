//! Job: many trials, the report, and the shrinking of a failure.
//! State owned: none. Thread class: the driver's thread.
//!
//! A hang cannot be undone, so a process ends with its first failure; shrinking runs each attempt in a process of its own.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use crate::plan::{self, Plan};
use crate::trial::{PATIENCE, Trial};
use crate::workloads::Workload;

/// How often a smaller plan is tried before it counts as passing: schedules differ.
const TRIES: usize = 6;
/// How long a shrinking may take in all.
const SHRINKING: Duration = Duration::from_secs(120);

/// Runs one seed. The error holds the whole story.
pub fn run_one(workload: Workload, seed: u64, without: &[usize]) -> Result<(), String> {
    let again = Failure { workload: workload.name, seed, story: String::new() }.command(without);
    run_plan(workload, Plan::new(seed, without), &again)
}

/// Runs one plan; `again` says how to do that once more.
pub fn run_plan(workload: Workload, plan: Plan, again: &str) -> Result<(), String> {
    let shown = plan.to_string();
    alarm(Some(format!("{} still runs under {shown}\nagain: {again}", workload.name)));
    let mut trial = Trial::new(plan);
    let result = catch_unwind(AssertUnwindSafe(|| (workload.run)(&mut trial)));
    alarm(None);
    let what = match result {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(what)) => what,
        Err(thrown) => {
            let text = thrown.downcast_ref::<String>().cloned();
            let text = text.or_else(|| thrown.downcast_ref::<&str>().map(|s| (*s).to_owned())).unwrap_or_default();
            format!("PANIC in the workload: {text}\n{}", trial.diagnosis())
        }
    };
    // Its threads may hang: nothing of it is touched again.
    let _left = ManuallyDrop::new(trial);
    Err(format!("{} failed under {shown}\n{what}", workload.name))
}

/// What is to be said, and when.
static ALARM: Mutex<Option<(Instant, String)>> = Mutex::new(None);

/// For what hangs outside of a trial's own waits: ends the process, saying so. One thread for the whole run, as a trial
/// counts threads.
fn alarm(text: Option<String>) {
    static WATCH: Once = Once::new();
    WATCH.call_once(|| {
        let (here, arrived) = channel();
        let watch = move || {
            let _ = here.send(());
            loop {
                // sleep: between two looks at the clock.
                std::thread::sleep(Duration::from_millis(500));
                let due = ALARM.lock().unwrap_or_else(PoisonError::into_inner).take_if(|(at, _)| Instant::now() >= *at);
                if let Some((_, text)) = due {
                    eprintln!("HANG: {text}");
                    std::process::abort();
                }
            }
        };
        let _ = std::thread::Builder::new().name("watchdog".into()).spawn(watch).expect("a thread starts");
        let _ = arrived.recv();
    });
    *ALARM.lock().unwrap_or_else(PoisonError::into_inner) =
        text.map(|text| (Instant::now() + PATIENCE + Duration::from_secs(60), text));
}

/// What a run of many seeds came to.
#[derive(Debug, Default)]
pub struct Tally {
    /// Seeds that ran, over all workloads.
    pub trials: u64,
}

impl Tally {
    /// Runs all seeds on all workloads; ends with the first failure.
    pub fn run(&mut self, workloads: &[Workload], seeds: Range<u64>, until: Option<Instant>) -> Result<(), Failure> {
        for seed in seeds {
            for workload in workloads {
                if until.is_some_and(|until| Instant::now() >= until) {
                    return Ok(());
                }
                self.trials += 1;
                run_one(*workload, seed, &[]).map_err(|story| Failure { workload: workload.name, seed, story })?;
            }
        }
        Ok(())
    }

    /// The closing line.
    pub fn summary(&self, took: Duration) -> String {
        let faults: u64 = plan::hits().iter().map(|(_, n)| n).sum();
        format!("{} trials, {faults} faults, in {:.1} s", self.trials, took.as_secs_f64())
    }
}

/// A trial that failed.
#[derive(Debug)]
pub struct Failure {
    /// On which workload.
    pub workload: &'static str,
    /// Under which seed.
    pub seed: u64,
    /// What was wrong.
    pub story: String,
}

impl Failure {
    /// The command that runs it again.
    pub fn command(&self, without: &[usize]) -> String {
        let list = without.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let without = if list.is_empty() { String::new() } else { format!(" --without {list}") };
        format!("ci/chaos --workload {} --seed {}{without} --times 50", self.workload, self.seed)
    }

    /// Leaves out rule after rule while it still fails; returns the numbers of those that are not needed. `None`: the whole
    /// plan does not fail again either, so nothing can be told.
    pub fn shrink(&self) -> Option<Vec<usize>> {
        let begun = Instant::now();
        let mut without: Vec<usize> = Vec::new();
        if !self.fails_again(&without) {
            return None;
        }
        let all: Vec<usize> = Plan::new(self.seed, &[]).rules.iter().map(|(i, _)| *i).collect();
        for rule in all {
            if begun.elapsed() >= SHRINKING {
                eprintln!("shrinking: out of time");
                break;
            }
            without.push(rule);
            if !self.fails_again(&without) {
                without.pop();
            }
        }
        Some(without)
    }

    fn fails_again(&self, without: &[usize]) -> bool {
        let list = without.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let Ok(program) = std::env::current_exe() else { return false };
        let mut command = Command::new(program);
        command.args(["--workload", self.workload, "--seed", &self.seed.to_string(), "--no-shrink"]);
        command.args(["--times", &TRIES.to_string()]);
        if !list.is_empty() {
            command.args(["--without", &list]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| !status.success())
    }
}
