//! Headers of tasks that have ended, for tasks to come: a spawn allocates a task and no header.
//!
//! State: a short queue of headers, the oldest first. Who touches it: its reactor, under a borrow that runs no user code.
//! Thread class: reactor only. Laws: 9 (a header that any waker or handle still holds is never used again), 16 (bounded).
//!
//! An allocation and its release are 177 instructions of a spawn's 1182 (`ci/bench/b11.py`), and a header's home is
//! counted once less. The oldest is tried first: its wakers and handles had the most time to go.

use crate::exec::header::Header;
use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Arc;

/// Headers that a reactor keeps: 12 KiB of them.
const MOST: usize = 256;

/// See the module's text.
pub(crate) struct Spares(VecDeque<Arc<Header>>);

impl Spares {
    pub(crate) const fn new() -> Self {
        Self(VecDeque::new())
    }

    /// A header as new, if the oldest one is held by nobody any more; else that one is left to its holders.
    #[inline]
    pub(crate) fn take(&mut self, spawned_at: &'static Location<'static>) -> Option<Arc<Header>> {
        let mut header = self.0.pop_front()?;
        Arc::get_mut(&mut header)?.renew(spawned_at);
        Some(header)
    }

    /// The header of a task that has ended.
    #[inline]
    pub(crate) fn keep(&mut self, header: Arc<Header>) {
        if self.0.len() < MOST {
            self.0.push_back(header);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{MOST, Spares};
    use crate::config::ReactorConfig;
    use crate::exec::header::Header;
    use crate::exec::home::Home;
    use crate::id::TaskId;
    use std::panic::Location;
    use std::sync::Arc;
    use std::task::Waker;

    fn header() -> Arc<Header> {
        let home = Arc::new(Home::new(0, ReactorConfig::default()).unwrap());
        let header = Header::new(home, Location::caller());
        header.marks.set_id(TaskId::new(3, 4));
        header
    }

    #[test]
    fn what_is_taken_is_as_new() {
        let (mut spares, used) = (Spares::new(), header());
        used.abort();
        let address = Arc::as_ptr(&used);
        spares.keep(used);
        let here = Location::caller();
        let renewed = spares.take(here).expect("nobody holds it");
        assert_eq!(Arc::as_ptr(&renewed), address);
        assert!(renewed.marks.id() == TaskId::NONE && !renewed.marks.is_aborted() && renewed.spawned_at == here);
        assert!(!renewed.marks.is_notified(), "the first wake of the next task would be swallowed");
        assert!(spares.take(here).is_none());
    }

    #[test]
    fn one_that_a_waker_still_holds_is_left_alone() {
        let (mut spares, first, second) = (Spares::new(), header(), header());
        let waker = Waker::from(first.clone());
        spares.keep(first);
        spares.keep(second);
        assert!(spares.take(Location::caller()).is_none(), "the oldest one is held");
        assert!(spares.take(Location::caller()).is_some(), "and is not in the way of the next");
        waker.wake();
    }

    #[test]
    fn it_is_bounded() {
        let mut spares = Spares::new();
        for _ in 0..MOST + 10 {
            spares.keep(header());
        }
        assert_eq!(spares.0.len(), MOST);
    }
}
