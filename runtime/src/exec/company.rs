//! The reactors of one runtime in a drain: none is through with it before all of them have everything out, because its
//! tasks may hold connections of the others.
//!
//! State: a flag for each reactor; who they are, and whether all of them were asked to drain. Who touches it: a reactor
//! writes its own flag and reads the others'; whoever drains the runtime. Thread class: any. Laws: 12; 7 (a message, which
//! a reactor looks for again before it waits).
//!
//! ```text
//! one reactor                          another
//!   out = true                           out = true
//!   tell the other                       tell the other
//!   is the other out? then end           is the other out? then end
//!   told: look again
//! ```
//! The flag is stored BEFORE the others are told: whoever is told finds it.

use crate::exec::home::{Home, Msg, Stage};
use crate::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// One reactor's part; see the module's text.
#[derive(Default)]
pub(crate) struct Company {
    out: Out,
    /// Unset: it is alone.
    group: OnceLock<Arc<Group>>,
}

struct Group {
    homes: Vec<Weak<Home>>,
    /// All are asked to drain, one after the other: none is to take the next for one that goes on.
    drains: AtomicBool,
}

impl Company {
    /// Makes all of them known to each other, once.
    pub(crate) fn of(homes: &[Arc<Home>]) {
        let group =
            Arc::new(Group { homes: homes.iter().map(Arc::downgrade).collect(), drains: AtomicBool::new(false) });
        for home in homes {
            // Err only says that it has been called before.
            let _ = home.company.group.set(group.clone());
        }
    }

    /// To be called before they are asked to, one by one.
    pub(crate) fn all_drain(&self) {
        if let Some(group) = self.group.get() {
            group.drains.store(true, Ordering::Release);
        }
    }

    /// Its reactor has nothing to send any more, or has again (a task connects).
    pub(crate) fn set_out(&self, out: bool) {
        self.out.set(out, || self.homes().for_each(|home| home.send(Msg::CompanyOut)));
    }

    /// Are all out, or past a drain? One that goes on, when this reactor alone was asked to drain, is not waited for.
    pub(crate) fn all_are_out(&self) -> bool {
        let all = self.group.get().is_some_and(|group| group.drains.load(Ordering::Acquire));
        self.homes().all(|home| match home.stage() {
            Stage::Running if !all => true,
            Stage::Running | Stage::Draining => home.company.out.is_set(),
            Stage::Aborting | Stage::Stopped => true,
        })
    }

    fn homes(&self) -> impl Iterator<Item = Arc<Home>> {
        self.group.get().into_iter().flat_map(|group| &group.homes).filter_map(Weak::upgrade)
    }
}

struct Out(AtomicBool);

// Not derived: loom's atomics have none.
impl Default for Out {
    fn default() -> Self {
        Self(AtomicBool::new(false))
    }
}

impl Out {
    fn set(&self, out: bool, tell: impl FnOnce()) {
        // Acquire: who clears it again has read what made it so. Nobody else writes it.
        if self.0.swap(out, Ordering::AcqRel) != out && out {
            tell();
        }
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::Out;
    use crate::sync::atomic::{AtomicUsize, Ordering};
    use loom::sync::Arc;
    use loom::thread;

    /// Two reactors and their mail, from atomics only. True: it has ended.
    #[derive(Default)]
    struct Pair {
        out: [Out; 2],
        mail: [Mail; 2],
    }

    struct Mail(AtomicUsize);

    impl Default for Mail {
        fn default() -> Self {
            Self(AtomicUsize::new(0))
        }
    }

    fn run(pair: &Pair, me: usize, tells_first: bool) -> bool {
        let tell = || {
            pair.mail[1 - me].0.fetch_add(1, Ordering::Release);
        };
        if tells_first {
            tell();
            pair.out[me].set(true, || ());
        } else {
            pair.out[me].set(true, tell);
        }
        pair.out[1 - me].is_set() || told(pair, me)
    }

    /// It takes its mail, if there is any, and looks again.
    fn told(pair: &Pair, me: usize) -> bool {
        pair.mail[me].0.swap(0, Ordering::Acquire) > 0 && pair.out[1 - me].is_set()
    }

    fn both_end(tells_first: bool) {
        loom::model(move || {
            let pair = Arc::new(Pair::default());
            let other = {
                let pair = pair.clone();
                thread::spawn(move || run(&pair, 1, tells_first))
            };
            let mine = run(&pair, 0, tells_first);
            let others = other.join().unwrap();
            // Who waits is woken by mail that it has not taken yet, and by nothing else.
            assert!(mine || told(&pair, 0), "waits for ever");
            assert!(others || told(&pair, 1), "waits for ever");
        });
    }

    #[test]
    fn loom_none_waits_for_one_that_is_out() {
        both_end(false);
    }

    #[test]
    #[should_panic(expected = "waits for ever")]
    fn loom_twin_the_others_are_told_before_the_flag_is_set() {
        both_end(true);
    }
}
