//! The post gate: admits user posts up to a limit until the reactor closes it, and says so exactly.
//!
//! State: one word, `count << 1 | closed`. Who touches it: any producer enters and leaves, the reactor closes once.
//! Thread class: any thread. Laws: 12 (what is handed over later comes back with its payload), 16 (`max_posts`).
//!
//! `enter` reserves a place BEFORE the push and the reactor gives it back when it has taken the item, so the count is
//! the number of items pushed or about to be. After `close` no producer can enter; the reactor then takes items
//! until the count is 0, so an item whose producer entered in time is always taken, and none comes later.

use super::atomic::{AtomicUsize, Ordering};

/// Why a post was not admitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// The reactor has stopped.
    Stopped,
    /// `limit` posts wait already.
    Full,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Gate {
    word: AtomicUsize,
}

const CLOSED: usize = 1;
const ONE: usize = 2;

impl Gate {
    pub(crate) fn new() -> Self {
        Self { word: AtomicUsize::new(0) }
    }

    /// Producer: reserves a place for one item, which it must then push.
    pub(crate) fn enter(&self, limit: usize) -> Result<(), Refused> {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                return Err(Refused::Stopped);
            }
            if word / ONE >= limit {
                return Err(Refused::Full);
            }
            match self.word.compare_exchange_weak(word, word + ONE, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => word = now,
            }
        }
    }

    /// Reactor: `n` items were taken.
    pub(crate) fn leave(&self, n: usize) {
        self.word.fetch_sub(n * ONE, Ordering::AcqRel);
    }

    /// Reactor: admits nothing from now on. The items still on their way are counted by [`Gate::waiting`].
    pub(crate) fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::AcqRel);
    }

    /// Items pushed or about to be.
    pub(crate) fn waiting(&self) -> usize {
        self.word.load(Ordering::Acquire) / ONE
    }

    #[cfg(test)]
    fn is_closed(&self) -> bool {
        self.word.load(Ordering::Acquire) & CLOSED != 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Gate, Refused};

    #[test]
    fn admits_up_to_the_limit_and_nothing_once_closed() {
        let gate = Gate::new();
        assert_eq!(gate.enter(0), Err(Refused::Full));
        assert_eq!(gate.enter(2), Ok(()));
        assert_eq!(gate.enter(2), Ok(()));
        assert_eq!(gate.enter(2), Err(Refused::Full));
        gate.leave(1);
        assert_eq!(gate.enter(2), Ok(()));
        gate.close();
        assert_eq!(gate.enter(9), Err(Refused::Stopped));
        assert_eq!(gate.waiting(), 2);
        gate.leave(2);
        assert!(gate.is_closed());
        assert_eq!(gate.waiting(), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::atomic::{AtomicBool, Ordering};
    use super::{Gate, ONE, Refused};
    use loom::sync::Arc;
    use loom::thread;

    /// Two producers post while the reactor closes and drains: every admitted item is taken. The items are pushed by
    /// read-modify-writes: loom may order a plain store before a swap that did not read it.
    fn run(broken: bool) {
        loom::model(move || {
            let gate = Arc::new(Gate::new());
            let items = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
            let producers: Vec<_> = (0..2)
                .map(|i| {
                    let (gate, items) = (gate.clone(), items.clone());
                    thread::spawn(move || {
                        if broken {
                            // The twin: looks at the gate, pushes, and only then counts itself in.
                            if gate.is_closed() {
                                return false;
                            }
                            items[i].swap(true, Ordering::Release);
                            gate.word.fetch_add(ONE, Ordering::AcqRel);
                            return true;
                        }
                        match gate.enter(8) {
                            Ok(()) => {
                                items[i].swap(true, Ordering::Release);
                                true
                            }
                            Err(why) => {
                                assert_eq!(why, Refused::Stopped);
                                false
                            }
                        }
                    })
                })
                .collect();
            gate.close();
            let take = || {
                let taken = items.iter().filter(|item| item.swap(false, Ordering::AcqRel)).count();
                if taken > 0 {
                    gate.leave(taken);
                }
                taken
            };
            // The reactor looks a few times; a producer that is late by then is waited for.
            let mut taken = 0;
            let mut settled = false;
            for _ in 0..3 {
                if gate.waiting() == 0 {
                    settled = true;
                    break;
                }
                taken += take();
            }
            let admitted = producers.into_iter().map(|p| p.join().unwrap()).filter(|admitted| *admitted).count();
            if !settled {
                taken += take();
            }
            assert_eq!(taken, admitted, "an admitted item was left behind");
        });
    }

    #[test]
    fn loom_an_admitted_post_is_always_taken() {
        run(false);
    }

    #[test]
    #[should_panic(expected = "left behind")]
    fn loom_twin_counting_after_the_push() {
        run(true);
    }
}
