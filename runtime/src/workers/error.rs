//! The error of a job that a pool did not take.
//!
//! State: none. Thread class: pure. Laws: 12 (what cannot be handed over comes back), 13.

use std::error::Error;
use std::fmt;

/// A pool did not take a future or closure; it comes back.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// use epoxide::workers::SubmitError;
///
/// let runtime = epoxide::Runtime::builder().reactors(1).build()?;
/// let workers = runtime.handle().workers();
/// drop(runtime);
/// // What was handed over comes back.
/// let Err(SubmitError::Stopped(job)) = workers.spawn_blocking(|| 42) else { panic!("it has stopped") };
/// assert_eq!(job(), 42);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitError<J = ()> {
    /// Every blocking thread is busy (or the system refuses another one) and `WorkersConfig::max_overflow` jobs wait
    /// already.
    PoolFull(J),
    /// The runtime's workers have stopped.
    Stopped(J),
}

impl<J> SubmitError<J> {
    /// What was to be run.
    pub fn into_inner(self) -> J {
        match self {
            Self::PoolFull(job) | Self::Stopped(job) => job,
        }
    }
}

impl<J> fmt::Debug for SubmitError<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PoolFull(_) => "PoolFull(..)",
            Self::Stopped(_) => "Stopped(..)",
        })
    }
}

impl<J> fmt::Display for SubmitError<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PoolFull(_) => "the blocking pool takes no more jobs (WorkersConfig::max_blocking, max_overflow)",
            Self::Stopped(_) => "the runtime's workers have stopped",
        })
    }
}

impl<J> Error for SubmitError<J> {}
