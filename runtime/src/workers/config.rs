//! What the pools of a runtime can be told.
//!
//! Job: the public configuration and its validation. State: none. Thread class: pure. Laws: 13, 16.

use crate::sys;
use crate::workers::credit::{MAX_OVERFLOW, MAX_THREADS};
use std::io;
use std::time::Duration;

/// How the workers of a runtime work. Bad values are refused by `build()` with an error that names the field.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use epoxide::workers::WorkersConfig;
///
/// let few = WorkersConfig { max_blocking: 4, max_overflow: 100, ..WorkersConfig::default() };
/// let runtime = epoxide::Runtime::builder().reactors(1).workers(few).build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkersConfig {
    /// Threads that poll the futures of [`spawn`](crate::workers::spawn), 0 to 65 535; they start at first use.
    /// Default 0: one per CPU that the process may use.
    pub threads: usize,
    /// Threads that [`spawn_blocking`](crate::workers::spawn_blocking) may grow to, 1 to 65 535. Default 512.
    pub max_blocking: usize,
    /// Jobs that may wait while all of these are busy, at most 2^31 - 1. Default 10 000.
    pub max_overflow: usize,
    /// How long a blocking thread waits for its next job before it ends. Default 10 s.
    pub idle: Duration,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self { threads: 0, max_blocking: 512, max_overflow: 10_000, idle: Duration::from_secs(10) }
    }
}

impl WorkersConfig {
    /// Refuses what cannot work, by name.
    pub(crate) fn validate(&self) -> io::Result<()> {
        range("threads", self.threads, 0, MAX_THREADS)?;
        range("max_blocking", self.max_blocking, 1, MAX_THREADS)?;
        range("max_overflow", self.max_overflow, 0, MAX_OVERFLOW)
    }

    /// The threads of the async pool.
    pub(super) fn async_threads(&self) -> usize {
        match self.threads {
            0 => sys::affinity::process_cpus(),
            threads => threads,
        }
    }
}

fn range(field: &str, value: usize, low: usize, high: usize) -> io::Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("WorkersConfig::{field} is {value}, which is out of range: it must be {low} to {high}"),
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn bad_values_are_refused_by_name_and_the_limits_themselves_work() {
        type Set = fn(&mut WorkersConfig, usize);
        let fields: [(&str, Set, &[usize], &[usize]); 3] = [
            ("threads", |c, v| c.threads = v, &[0, MAX_THREADS], &[MAX_THREADS + 1]),
            ("max_blocking", |c, v| c.max_blocking = v, &[1, MAX_THREADS], &[0, MAX_THREADS + 1]),
            ("max_overflow", |c, v| c.max_overflow = v, &[0, MAX_OVERFLOW], &[MAX_OVERFLOW + 1, usize::MAX]),
        ];
        for (name, set, good, bad) in fields {
            let with = |value| {
                let mut config = WorkersConfig::default();
                set(&mut config, value);
                config.validate()
            };
            assert!(good.iter().all(|value| with(*value).is_ok()), "{name} at its limits");
            for value in bad {
                let refused = with(*value).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
                assert!(refused.to_string().contains(name), "{refused}");
            }
        }
        assert!(WorkersConfig::default().async_threads() >= 1);
    }
}
