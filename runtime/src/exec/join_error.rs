//! Why a task has no result, and what it threw.
//!
//! State: the payload of a panic, behind a mutex that makes it `Sync`. Thread class: any thread. Laws: 10.

use crate::sync::lock;
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Mutex;

/// Why a task has no result.
///
/// ```
/// # epoxide::block_on(async {
/// # std::panic::set_hook(Box::new(|_| {}));
/// let task = epoxide::spawn_local(async { panic!("a bug") });
/// match task.await {
///     Err(epoxide::JoinError::Panic(payload)) => assert_eq!(payload.text(), "a bug"),
///     other => unreachable!("{other:?}"),
/// }
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub enum JoinError {
    /// It panicked, with this payload.
    Panic(PanicPayload),
    /// It was aborted.
    Aborted,
    /// Its reactor, or the pool that it was given to, stopped before it was done.
    Stopped,
    /// The blocking pool was full, so that it was never taken: see
    /// [`SubmitError::PoolFull`](crate::workers::SubmitError::PoolFull).
    PoolFull,
}

impl fmt::Debug for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(_) => write!(f, "Panic({:?})", self.to_string()),
            Self::Aborted => f.write_str("Aborted"),
            Self::Stopped => f.write_str("Stopped"),
            Self::PoolFull => f.write_str("PoolFull"),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Panic(payload) => write!(f, "the task panicked: {}", payload.text()),
            Self::Aborted => f.write_str("the task was aborted"),
            Self::Stopped => f.write_str("the reactor or pool of the task stopped before it was done"),
            Self::PoolFull => f.write_str(
                "the blocking pool took no more jobs (WorkersConfig::max_blocking, max_overflow): \
                 raise a limit, or use Workers::spawn_blocking, which gives the job back",
            ),
        }
    }
}

impl Error for JoinError {}

impl From<JoinError> for io::Error {
    /// For handlers that return `io::Result`.
    fn from(error: JoinError) -> Self {
        Self::other(error)
    }
}

/// What a task threw. `Sync`, so that an error that holds it fits into `io::Error` and its like.
///
/// ```
/// # epoxide::block_on(async {
/// # std::panic::set_hook(Box::new(|_| {}));
/// let task = epoxide::spawn_local(async { std::panic::panic_any(7) });
/// let Err(epoxide::JoinError::Panic(payload)) = task.await else { panic!("it panicked") };
/// assert_eq!(payload.into_inner().downcast_ref(), Some(&7));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct PanicPayload(Mutex<Box<dyn Any + Send + 'static>>);

impl PanicPayload {
    pub(super) fn new(payload: Box<dyn Any + Send>) -> Self {
        Self(Mutex::new(payload))
    }

    /// The payload itself, for [`resume_unwind`](std::panic::resume_unwind).
    pub fn into_inner(self) -> Box<dyn Any + Send> {
        self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The panic's message, if it has one.
    pub fn text(&self) -> String {
        let payload = lock(&self.0);
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        text.unwrap_or("(a payload that is not text)").to_owned()
    }
}

impl fmt::Debug for PanicPayload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PanicPayload").field(&self.text()).finish()
    }
}
