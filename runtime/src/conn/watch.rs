//! A watched descriptor: what its user and its reactor share.
//!
//! | field | written by | read by | guarded by |
//! |---|---|---|---|
//! | `read`, `write` | the reactor signals, users wait and clear | the same | themselves |
//! | `state` | user (gone), reactor (known) | both | read-modify-writes |
//! | `key` | the reactor, before `state` says known | the user | release/acquire |
//! | `ended` | the reactor | users | once, before the signal |
//!
//! Thread class: any thread. Laws: 4 (one registration), 5, 9, 10, 12 (stop settles every waiter).

use crate::error::CloseReason;
use crate::exec::home::{Guest, Home, Msg, Stage};
use crate::exec::run;
use crate::id::Key;
use crate::sync::plain::{AtomicU32, AtomicU64, Ordering};
use crate::sync::readiness::{Place, Readiness, Tick};
use crate::sys::epoll::{ENDING, ERR, HUP, IN, OUT};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::task::{Poll, Waker};

/// The reactor knows it by its key.
const KNOWN: u32 = 1;
/// The user is gone.
const GONE: u32 = 2;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Read,
    Write,
}

/// See the module's text.
pub(crate) struct Watch {
    read: Readiness,
    write: Readiness,
    state: AtomicU32,
    key: AtomicU64,
    ended: OnceLock<CloseReason>,
    pub(crate) home: Arc<Home>,
    /// A listening socket: a drain ends it.
    pub(crate) listens: bool,
    fd: OwnedFd,
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("fd", &self.fd).field("ended", &self.ended.get()).finish_non_exhaustive()
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Watch {
    /// Hands the descriptor to the reactor. Fails when it has stopped or has no place for a post.
    pub(crate) fn start(fd: OwnedFd, home: Arc<Home>, listens: bool) -> io::Result<Arc<Self>> {
        let admission = home.admit()?;
        let watch = Arc::new(Self {
            read: Readiness::new(),
            write: Readiness::new(),
            state: AtomicU32::new(0),
            key: AtomicU64::new(Key::NONE.0),
            ended: OnceLock::new(),
            home: home.clone(),
            listens,
            fd,
        });
        admission.adopt(watch.clone());
        Ok(watch)
    }

    fn side(&self, side: Side) -> &Readiness {
        match side {
            Side::Read => &self.read,
            Side::Write => &self.write,
        }
    }

    /// Ready, or why it never will be; otherwise `place` waits.
    pub(crate) fn poll(&self, side: Side, waker: &Waker, place: &mut Place) -> Poll<io::Result<Tick>> {
        let tick = self.side(side).poll(waker, place);
        // Asked after the look: it is stored before the signal.
        match (self.ended.get(), tick) {
            (Some(reason), _) => Poll::Ready(Err((*reason).into())),
            (None, Some(tick)) => Poll::Ready(Ok(tick)),
            (None, None) => Poll::Pending,
        }
    }

    /// No edge will come any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }

    /// A system call found nothing.
    pub(crate) fn clear(&self, side: Side, tick: Tick) {
        self.side(side).clear(tick);
    }

    /// A waiter is gone.
    pub(crate) fn forget(&self, side: Side, place: &Place) {
        self.side(side).forget(place);
    }

    /// The user is gone: the reactor forgets the descriptor. It is told first: the drop of a waker is user code (law 10).
    pub(crate) fn leave(&self) {
        let before = self.state.fetch_or(GONE, Ordering::AcqRel);
        if before & KNOWN != 0 && self.home.stage() < Stage::Stopped {
            self.home.send(Msg::LetGo(Key(self.key.load(Ordering::Acquire))));
        }
        for side in [Side::Read, Side::Write] {
            run::caught(|| self.forget(side, &Place::of_polls()));
        }
    }

    // What only the reactor calls.

    /// Its slot, BEFORE epoll knows it.
    pub(crate) fn set_key(&self, key: Key) {
        self.key.store(key.0, Ordering::Release);
    }

    /// Registered. True: the user is gone already.
    pub(crate) fn set_known(&self) -> bool {
        self.state.fetch_or(KNOWN, Ordering::AcqRel) & GONE != 0
    }

    /// An edge.
    pub(crate) fn edge(&self, flags: u32) {
        if flags & (IN | ENDING) != 0 {
            self.signal(Side::Read);
        }
        if flags & (OUT | ERR | HUP) != 0 {
            self.signal(Side::Write);
        }
    }

    /// There will be no edge any more: every wait ends with `reason`.
    pub(crate) fn end(&self, reason: CloseReason) {
        // Err only says that an earlier reason won.
        let _ = self.ended.set(reason);
        self.signal(Side::Read);
        self.signal(Side::Write);
    }

    fn signal(&self, side: Side) {
        for (_, waker) in self.side(side).signal() {
            run::caught(|| waker.wake());
        }
    }
}

impl Guest for Watch {
    fn turn_away(&self) {
        self.end(CloseReason::Aborted);
    }
}
