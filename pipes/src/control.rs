//! [`PipeHandle`]: cancels a wait on a pipe, or completes the pipe, from another task or thread.
//!
//! Job: one request and one waiter. State owned: both, under one mutex. Thread class: any thread. Laws kept: 10 (a waker
//! is cloned before the lock, dropped and woken after it; its panic is not the canceller's).
//!
//! ```text
//! waiter                                  canceller
//!   lock: asked? take it and return.        lock: ask, take the waker
//!         else store the waker              unlock, wake
//!   poll the transport: Pending
//! ```
//! Both steps are under the mutex, so either the waiter sees the request or the canceller sees the waker. The waiter
//! stores its waker BEFORE it polls the transport.

use crate::quiet::wake_all;
use std::sync::PoisonError;
use std::task::Waker;

#[cfg(loom)]
use loom::sync::{Arc, Mutex, MutexGuard};
#[cfg(not(loom))]
use std::sync::{Arc, Mutex, MutexGuard};

/// Cancels what a [`PipeReader`](crate::PipeReader) or [`PipeWriter`](crate::PipeWriter) waits for, or completes it.
///
/// Made by [`PipeReader::handle`](crate::PipeReader::handle) and [`PipeWriter::handle`](crate::PipeWriter::handle); it
/// may be cloned and used from any thread, also when the pipe is gone: then it does nothing.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (mut input, _output) = Duplex::new(conn).into_parts();
/// let handle = input.handle();
/// std::thread::spawn(move || handle.cancel());
/// assert!(input.read().await?.cancelled);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct PipeHandle {
    shared: Arc<Mutex<Shared>>,
}

#[derive(Debug)]
struct Shared {
    asked: Asked,
    waiter: Option<Waker>,
}

/// What was asked of a pipe, the stronger one last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Asked {
    Nothing,
    Cancel,
    Complete,
}

impl PipeHandle {
    pub(crate) fn new() -> Self {
        Self { shared: Arc::new(Mutex::new(Shared { asked: Asked::Nothing, waiter: None })) }
    }

    /// Ends the wait that is in progress, or else the next one: that read or flush returns with `cancelled` set. What
    /// was received or staged stays where it is.
    pub fn cancel(&self) {
        self.ask(Asked::Cancel);
    }

    /// Completes the pipe, as its own `complete` does, at the task that uses it: a wait in progress ends, and buffers
    /// go back or are committed by the next call there. The connection stays as it is.
    pub fn complete(&self) {
        self.ask(Asked::Complete);
    }

    fn ask(&self, what: Asked) {
        let mut shared = self.lock();
        shared.asked = shared.asked.max(what);
        let waiter = shared.waiter.take();
        drop(shared);
        wake_all(waiter);
    }

    /// What was asked since the last look: a cancel is told once, a completion for good. If nothing was, `waker` is
    /// kept for whoever asks next.
    pub(crate) fn check_or_wait(&self, waker: &Waker) -> Asked {
        let waker = waker.clone();
        let mut shared = self.lock();
        let asked = shared.take();
        let old = if asked == Asked::Nothing { shared.waiter.replace(waker) } else { shared.waiter.take() };
        drop(shared);
        drop(old);
        asked
    }

    /// The same for those whom only a completion ends: a cancel stays asked for.
    pub(crate) fn wait_for_completion(&self, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut shared = self.lock();
        let completed = shared.asked == Asked::Complete;
        let old = if completed { shared.waiter.take() } else { shared.waiter.replace(waker) };
        drop(shared);
        drop(old);
        completed
    }

    /// The same without a wait.
    pub(crate) fn check(&self) -> Asked {
        self.lock().take()
    }

    /// The broken twin's second step.
    #[cfg(all(test, loom))]
    fn store(&self, waker: &Waker) {
        self.lock().waiter = Some(waker.clone());
    }

    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn take(&mut self) -> Asked {
        let asked = self.asked;
        if asked == Asked::Cancel {
            self.asked = Asked::Nothing;
        }
        asked
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::task::Wake;

    struct Rude;

    impl Wake for Rude {
        fn wake(self: std::sync::Arc<Self>) {
            panic!("provoked on purpose");
        }
    }

    #[test]
    fn the_panic_of_a_waker_is_not_the_cancellers() {
        let handle = PipeHandle::new();
        let rude = Waker::from(std::sync::Arc::new(Rude));
        assert_eq!(handle.check_or_wait(&rude), Asked::Nothing);
        handle.cancel();
        assert_eq!(handle.check(), Asked::Cancel);
    }
}

#[cfg(all(test, loom))]
#[path = "control_loom.rs"]
mod control_loom;
