//! The writer of the flush word's model: what `write_ops` does with a connection.
//!
//! State: what is staged, and which flush waits. Thread class: tests. Laws: 3, 11.

use super::model::{Drive, End, Shared, Twin};
use crate::sync::atomic::Ordering;

/// The writer's half: what `poll_flush` does.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) staged: Vec<usize>,
    /// Some flush was told that nothing is sent any more.
    pub(super) refused: bool,
    /// The flush that waits.
    pub(super) asleep: Option<usize>,
}

impl Writer {
    pub(super) fn is_woken(&self, s: &Shared) -> bool {
        self.asleep.is_some_and(|flush| s.woken.load(Ordering::Acquire) & flush != 0)
    }

    pub(super) fn poll_flush(&mut self, s: &Shared, flush: usize) {
        s.woken.fetch_and(!flush, Ordering::Acquire);
        self.asleep = None;
        let waiter = Some(flush);
        let mut budget = s.budget;
        let drove = if self.staged.is_empty() {
            None
        } else if !s.shared && s.word.claim() {
            // The claim proves that nothing is queued: the staged pieces come next.
            s.appended.lock().unwrap().extend_from_slice(&self.staged);
            let end = s.send(&mut self.staged, &mut budget);
            if matches!(end, End::Empty) && s.word.finish_quiet() {
                return Self::complete(s);
            }
            Some(s.drive(&mut self.staged, budget, waiter, Some(end)))
        } else if s.word.has_fin() || s.word.is_closed() {
            self.staged.clear();
            return self.refuse(s);
        } else {
            s.append_and_kick(&mut self.staged).map(|mut batch| s.drive(&mut batch, budget, waiter, None))
        };
        match drove {
            Some(Drive::Done) => Self::complete(s),
            Some(Drive::Parked) => self.asleep = waiter,
            Some(Drive::Closed) => self.refuse(s),
            None => self.wait(s, flush),
        }
    }

    /// Register, then look; idle before closed: whoever frees a closed queue makes the word idle.
    fn wait(&mut self, s: &Shared, flush: usize) {
        if s.twin != Twin::RegisterAfterLook {
            s.slow.lock().unwrap().waiter = Some(flush);
        }
        let (idle, closed) = if s.twin == Twin::ClosedBeforeIdle {
            let closed = s.word.is_closed();
            (s.word.is_idle(), closed)
        } else {
            (s.word.is_idle(), s.word.is_closed())
        };
        if closed {
            return self.refuse(s);
        }
        if idle {
            return Self::complete(s);
        }
        if s.twin == Twin::RegisterAfterLook {
            s.slow.lock().unwrap().waiter = Some(flush);
        }
        self.asleep = Some(flush);
    }

    fn refuse(&mut self, s: &Shared) {
        assert!(s.reason.load(Ordering::Relaxed) || s.word.has_fin(), "closed without a reason");
        self.refused = true;
    }

    /// A flush is over when everything before it is in the kernel.
    fn complete(s: &Shared) {
        let socket = s.socket.lock().unwrap();
        let all = s.appended.lock().unwrap().iter().all(|piece| *piece > 3 || socket.wire.contains(piece));
        assert!(all || s.word.has_fin(), "a flush is over too early");
    }
}
