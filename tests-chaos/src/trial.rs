//! Job: one run of a workload under a plan: a runtime of random sizes, parties that run anywhere, a watch over them, and
//! the accounts at the end.
//! State owned: the runtime, the board on which parties say what they do. Thread class: the driver's thread.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use epoxide::workers::WorkersConfig;
use epoxide::{Builder, ReactorConfig, Runtime, chaos};
use epoxide_tests_e2e::{Baseline, Rng, block_within, wait_until};

use crate::plan::{Director, Plan};

/// How long one run may take before it counts as hanging, if nobody says anything new either.
pub const LIMIT: Duration = Duration::from_secs(30);
/// How long nobody may have said anything new by then: a starved machine is slow, but it goes on.
const SILENCE: Duration = Duration::from_secs(10);
/// How long one run may take in all.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// Where a party runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A task of this reactor.
    Reactor(usize),
    /// The async pool.
    Worker,
    /// A thread of its own, with an executor that is not epoxide's.
    Thread,
}

/// What a party says about itself.
#[derive(Clone, Debug)]
pub struct Note(Arc<Mutex<(String, Instant)>>);

impl Note {
    /// Says what comes next.
    pub fn say(&self, doing: impl Into<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = (doing.into(), Instant::now());
    }

    fn read(&self) -> (String, Instant) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The board: every party with its last word.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Vec<(String, Note)>>>);

impl Board {
    /// A line for a party.
    pub fn line(&self, name: impl Into<String>) -> Note {
        let note = Note(Arc::new(Mutex::new((String::new(), Instant::now()))));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push((name.into(), note.clone()));
        note
    }

    /// All that have something to say: a party that is done says nothing.
    pub fn show(&self) -> String {
        let mut text = String::new();
        for (name, note) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let (doing, _) = note.read();
            if !doing.is_empty() {
                let _ = writeln!(text, "  {name}: {doing}");
            }
        }
        text
    }

    /// When anybody said anything last.
    fn last_word(&self) -> Option<Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(_, note)| note.read().1).max()
    }
}

/// A party whose result is waited for.
#[derive(Debug)]
pub struct Party<T> {
    name: String,
    result: Receiver<T>,
}

/// One run.
#[derive(Debug)]
pub struct Trial {
    /// Random choices of the workload itself.
    pub rng: Rng,
    /// The plan.
    pub plan: Plan,
    /// Who does what.
    pub board: Board,
    runtime: Option<Runtime>,
    begun: Instant,
    baseline: Baseline,
    buffers: u64,
    /// Handlers that the workload makes panic.
    pub panics: u64,
}

/// How many reactors a trial has.
pub const REACTORS: usize = 2;

impl Trial {
    /// Begins one. The plan is not in force yet.
    pub fn new(plan: Plan) -> Self {
        let rng = Rng::new(plan.seed ^ 0x5EED << 40);
        let baseline = Baseline::settled();
        let begun = Instant::now();
        Self { rng, plan, board: Board::default(), runtime: None, begun, baseline, buffers: 0, panics: 0 }
    }

    /// Builds and starts the runtime, then puts the plan in force.
    pub fn start(&mut self, set_up: impl FnOnce(&mut Builder)) -> Result<(), String> {
        let mut builder = Runtime::builder();
        builder.reactors(REACTORS);
        builder.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        builder.config(self.config());
        builder.on_fault(|reactor, error| eprintln!("reactor {} died: {error}", reactor.id()));
        set_up(&mut builder);
        let runtime = builder.build().map_err(|error| format!("the runtime does not start: {error}"))?;
        self.buffers = runtime.stats().buffers_outstanding;
        self.runtime = Some(runtime);
        chaos::install(Some(Arc::new(Director::new(&self.plan))));
        Ok(())
    }

    /// Small sizes, so that every limit is met; clocks longer than what the plan's jumps add up to.
    fn config(&mut self) -> ReactorConfig {
        // Not drawn: the choices behind it would change for every seed that is kept.
        let moderation = Duration::from_micros([0, 50][self.plan.seed as usize / 2 % 2]);
        let rng = &mut self.rng;
        let mut pick = |of: [usize; 4]| of[rng.below(4) as usize];
        ReactorConfig {
            recv_buffer_size: pick([64, 1000, 4096, 16_384]),
            read_budget: pick([1, 2, 16, 64]) as u32,
            flush_budget: pick([1000, 10_000, 65_536, 262_144]),
            task_budget: pick([1, 3, 100, 1024]),
            accept_budget: pick([1, 2, 8, 64]),
            max_events: pick([1, 3, 16, 1024]),
            read_timeout: Duration::from_secs(120),
            send_timeout: Duration::from_secs(120),
            linger: Duration::from_secs(60),
            moderation,
            ..ReactorConfig::default()
        }
    }

    /// The runtime.
    pub fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("the workload starts it first")
    }

    /// Somewhere.
    pub fn anywhere(&mut self) -> Place {
        match self.rng.below(8) {
            0..3 => Place::Reactor(self.rng.below(REACTORS as u64) as usize),
            3..6 => Place::Worker,
            _ => Place::Thread,
        }
    }

    /// A generator of its own for a party.
    pub fn fork(&mut self) -> Rng {
        Rng::new(self.rng.next_u64())
    }

    /// Runs a party. `make` gets the line to write on.
    pub fn party<T, F>(&mut self, name: impl Into<String>, place: Place, make: impl FnOnce(Note) -> F) -> Party<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let name = format!("{} on {place:?}", name.into());
        let note = self.board.line(&name);
        let (done, result) = channel();
        let future = make(note.clone());
        let future = async move {
            let value = future.await;
            note.say("");
            let _ = done.send(value);
        };
        run_at(self.runtime(), place, future);
        Party { name, result }
    }

    /// What the party came to.
    pub fn join<T>(&self, party: Party<T>) -> Result<T, String> {
        let name = party.name.clone();
        self.join_if_any(party)?.ok_or_else(|| format!("{name}: dropped before it was done\n{}", self.diagnosis()))
    }

    /// What the party came to; `None`: it was dropped with its place.
    pub fn join_if_any<T>(&self, party: Party<T>) -> Result<Option<T>, String> {
        let mut until = self.begun + LIMIT;
        loop {
            match party.result.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(value) => return Ok(Some(value)),
                Err(RecvTimeoutError::Disconnected) => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {
                    let silent = self.board.last_word().map_or(until, |last| last + SILENCE);
                    if silent <= Instant::now() || self.begun.elapsed() >= PATIENCE {
                        return Err(self.hang(&party.name));
                    }
                    until = silent;
                }
            }
        }
    }

    fn hang(&self, what: &str) -> String {
        format!("HANG: {what} is not done after {:?}\n{}", self.begun.elapsed(), self.diagnosis())
    }

    /// What everybody was doing.
    pub fn diagnosis(&self) -> String {
        let (late, seats) = chaos::outstanding();
        let stats = self.runtime.as_ref().map(|r| r.stats().to_string().replace('\n', ", ")).unwrap_or_default();
        format!("{}  {late} events to come, {seats} registrations\n  {stats}\n{}", self.board.show(), threads())
    }

    /// The end: no more faults, then everything must go by itself, and nothing may be left.
    pub fn finish(&mut self) -> Result<(), String> {
        chaos::install(None);
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        let quiet = wait_until(Duration::from_secs(15), || {
            let stats = runtime.stats();
            stats.open == 0
                && stats.lingering == 0
                && stats.tasks == 0
                && runtime.handle().workers().report().tasks == 0
        });
        if !quiet {
            self.runtime = Some(runtime);
            return Err(format!("LEFT OVER: connections or tasks are left\n{}", self.diagnosis()));
        }
        let handles = runtime.handles();
        runtime
            .shutdown_blocking(Duration::from_secs(10))
            .map_err(|error| format!("the runtime does not stop: {error}"))?;
        self.account(runtime, handles)
    }

    /// The end of a workload that has stopped the runtime itself.
    pub fn finish_stopped(&mut self) -> Result<(), String> {
        chaos::install(None);
        let Some(runtime) = self.runtime.take() else { return Ok(()) };
        let handles = runtime.handles();
        self.account(runtime, handles)
    }

    fn account(&self, runtime: Runtime, handles: Vec<epoxide::ReactorHandle>) -> Result<(), String> {
        drop(runtime);
        let stats: Vec<_> = handles.iter().map(epoxide::ReactorHandle::stats).collect();
        if let Some(wrong) = stats.iter().find(|stats| stats.accepted + stats.adopted != stats.closed) {
            return Err(format!("COUNTS: accepted + adopted is not closed: {wrong}"));
        }
        let panics: u64 = stats.iter().map(|stats| stats.panics).sum();
        let on_pool = handles[0].workers().report().panics;
        if panics + on_pool > self.panics {
            return Err(format!("PANICS: {panics} on reactors, {on_pool} on workers, {} were meant", self.panics));
        }
        if let Some(left) = stats.iter().find(|stats| stats.open + stats.tasks > 0) {
            return Err(format!("LEFT OVER after the stop: {left}"));
        }
        let now = || handles[0].stats().buffers_outstanding;
        if !wait_until(Duration::from_secs(5), || now() <= self.buffers) {
            return Err(format!("LEFT OVER: {} buffers are held, {} before", now(), self.buffers));
        }
        drop(handles);
        let leaked = self.baseline.wait_restored(Duration::from_secs(5));
        if leaked.is_empty() { Ok(()) } else { Err(format!("LEFT OVER:\n  {}", leaked.join("\n  "))) }
    }
}

/// Runs a future somewhere and forgets it.
pub fn run_at(runtime: &Runtime, place: Place, future: impl Future<Output = ()> + Send + 'static) {
    match place {
        Place::Reactor(index) => {
            // Refused: it is dropped, and whoever waits for it sees that.
            if let Ok(handle) = runtime.handles()[index].spawn(future) {
                handle.detach();
            }
        }
        Place::Worker => {
            if let Ok(handle) = runtime.handle().workers().spawn(future) {
                handle.detach();
            }
        }
        Place::Thread => {
            let handle = runtime.handle();
            let run = move || {
                let _entered = handle.enter();
                block_within(future, PATIENCE + Duration::from_secs(5))
            };
            let _ = std::thread::Builder::new().name("party".into()).spawn(run).expect("a thread starts");
        }
    }
}

/// The threads of this process with where the kernel has them.
fn threads() -> String {
    let mut text = String::new();
    for entry in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let read = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default().trim().to_owned();
        let _ = writeln!(text, "  thread {} '{}' {}", entry.file_name().to_string_lossy(), read("comm"), read("wchan"));
    }
    text
}
