//! Job: the frame of every test: one at a time, with a watchdog, and with everything given back.
//! State owned: the lock that keeps tests of one binary apart, the baseline, what died meanwhile.
//! Thread class: the test's thread (faults are recorded by reactors).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use epoxide::ReactorHandle;

use crate::baseline::Baseline;
use crate::peer::wait_until;
use crate::watchdog::Watchdog;

/// Descriptors and threads are counted per process, so the tests of one binary run one by one.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What went wrong in reactors, as their hooks reported it.
pub(crate) type Faults = Arc<Mutex<Vec<String>>>;

/// A handle of the first server's reactor, which tells how many pooled buffers the process holds,
/// and how many it held when that server started.
type Buffers = Arc<Mutex<Option<(ReactorHandle, u64)>>>;

/// The frame of a test. Make it first, so that it is dropped last.
///
/// Dropping it fails the test when a reactor died unclaimed, or when descriptors, threads or
/// pooled buffers are left over 5 s after everything else was dropped.
#[derive(Debug)]
pub struct Case {
    name: String,
    baseline: Baseline,
    faults: Faults,
    buffers: Buffers,
    watchdog: Option<Watchdog>,
    _turn: MutexGuard<'static, ()>,
}

impl Case {
    /// Begins a test that may take two minutes.
    pub fn start() -> Self {
        Self::start_within(Duration::from_secs(120))
    }

    /// Begins a test that goes [`rounds`] rounds: two minutes, and longer with more rounds.
    pub fn start_rounds() -> Self {
        let extra = u64::try_from(rounds() / 50).unwrap_or_default();
        Self::start_within(Duration::from_secs(120 + extra))
    }

    /// Begins a test that may take `limit`.
    pub fn start_within(limit: Duration) -> Self {
        Baseline::exempt_this_thread();
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let baseline = Baseline::settled();
        let watchdog = Some(Watchdog::start(&name, limit));
        let (faults, buffers) = (Faults::default(), Buffers::default());
        Self { name, baseline, faults, buffers, watchdog, _turn: turn }
    }

    /// The test's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the recorded faults: a test that provokes one says so by claiming it.
    pub fn claim_faults(&self) -> Vec<String> {
        std::mem::take(&mut self.faults.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What has leaked so far, for a test that checks in its middle and has stopped its servers.
    pub fn leaked(&self) -> Vec<String> {
        let mut leaked = self.leaked_buffers();
        let watchdog = |line: &String| !line.contains("'watchdog'");
        leaked.extend(self.baseline.leaked_since().into_iter().filter(watchdog));
        leaked
    }

    pub(crate) fn count_buffers_by(&self, reactor: ReactorHandle) {
        let outstanding = reactor.stats().buffers_outstanding;
        let mut counted = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        counted.get_or_insert((reactor, outstanding));
    }

    /// Waits for the buffers, and lets go of the handle: it holds a descriptor itself.
    fn leaked_buffers(&self) -> Vec<String> {
        let counted = self.buffers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((reactor, before)) = counted else { return Vec::new() };
        let now = || reactor.stats().buffers_outstanding;
        if wait_until(Duration::from_secs(5), || now() <= before) {
            return Vec::new();
        }
        vec![format!("{} pooled buffers, {before} before", now())]
    }

    pub(crate) fn faults(&self) -> Faults {
        Arc::clone(&self.faults)
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        drop(self.watchdog.take());
        let faults = self.claim_faults();
        if std::thread::panicking() {
            eprintln!("{} failed; unclaimed reactor faults: {faults:?}", self.name);
            return;
        }
        assert!(faults.is_empty(), "a reactor died and the test did not claim it: {faults:?}");
        let mut leaked = self.leaked_buffers();
        leaked.extend(self.baseline.wait_restored(Duration::from_secs(5)));
        assert!(leaked.is_empty(), "left over 5 s after the test:\n  {}", leaked.join("\n  "));
    }
}

/// A number from the environment, for the long forms of a test that are run by hand.
pub fn asked_for(variable: &str, default: usize) -> usize {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

/// How often a racing loop goes round: `EPOXIDE_ROUNDS`, 300 when unset.
pub fn rounds() -> usize {
    asked_for("EPOXIDE_ROUNDS", 300)
}
