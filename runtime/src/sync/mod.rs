//! What two threads meet through: atomics that loom can replace, the wake flag, the post gate, the readiness
//! of watched descriptors.
//!
//! Job: the std|loom switch and the small protocols between a reactor and everybody else.
//! State: none of its own. Thread class: any thread. Laws: 7, 12, 16.
//!
//! The protocols that loom checks import their atomics from here; code that is not modelled uses std directly.

pub(crate) mod gate;
pub(crate) mod limit;
pub(crate) mod quiet;
pub(crate) mod readiness;
#[cfg(epoxide_chaos)]
pub(crate) mod store_buffer;
pub(crate) mod wake;

/// Atomics of the modelled protocols: std's, or loom's under `--cfg loom`.
pub(crate) mod atomic {
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

/// std's atomics, for counts, times and marks: nothing is handed over through them alone, so no model needs them.
pub(crate) mod plain {
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}

/// Locks, going on after a panic elsewhere: no critical section of this crate runs user code, so a poisoned lock
/// guards data that is whole.
#[inline]
pub(crate) fn lock<T: ?Sized>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
