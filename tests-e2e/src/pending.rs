//! Job: keep a known defect visible. A pending test runs, reports PEND, and fails the run as soon
//! as it passes, so that the mark cannot outlive the defect.
//! State owned: none. Thread class: the test's thread.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a test of a known defect: `pending!("why it fails today", || { .. })`.
///
/// The closure holds the whole test, its `Case` included.
#[macro_export]
macro_rules! pending {
    ($reason:expr, $test:expr $(,)?) => {
        $crate::run_pending($reason, $test)
    };
}

/// What [`pending!`] expands to.
///
/// # Panics
/// When `test` passes: the defect is gone and the mark must go too.
pub fn run_pending(reason: &str, test: impl FnOnce()) {
    let name = std::thread::current().name().unwrap_or("a pending test").to_owned();
    match catch_unwind(AssertUnwindSafe(test)) {
        Err(_) => eprintln!("PEND {name}: {reason}"),
        Ok(()) => panic!("{name} passes now: remove its pending mark ({reason})"),
    }
}
