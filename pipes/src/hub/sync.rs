//! The locks of the hub's protocols: std's, or loom's under `--cfg loom`.
//!
//! State: none. Thread class: any thread.

#[cfg(loom)]
pub(super) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard};

/// Locks, going on after a panic elsewhere: no critical section of the hub runs user code, so what a poisoned lock
/// guards is whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
