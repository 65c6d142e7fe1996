//! User code around the life of a thread of ours: what it holds while it calls on is held until the thread is done.
//!
//! State: the hooks, fixed when the runtime is built. Thread class: any thread. Laws: 10 (a hook that panics ends nothing
//! but itself).

use crate::exec::run;
use std::fmt;
use std::sync::Arc;

type Hook = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// See the module's text.
#[derive(Clone, Default)]
pub(crate) struct EnterHooks(Vec<Hook>);

impl fmt::Debug for EnterHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EnterHooks").field(&self.0.len()).finish()
    }
}

impl EnterHooks {
    pub(crate) fn push(&mut self, hook: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) {
        self.0.push(Arc::new(hook));
    }

    /// Lives `life` inside all hooks, the first one outermost. Told false, it is lived without them: one of them panicked
    /// or returned without calling on.
    pub(crate) fn around<T>(&self, life: impl FnOnce(bool) -> T) -> T {
        if self.0.is_empty() {
            return life(true);
        }
        let (mut life, mut result) = (Some(life), None);
        run::caught(|| {
            call_on(&self.0, &mut || {
                if let Some(life) = life.take() {
                    result = Some(life(true));
                }
            });
        });
        match (result, life) {
            (Some(result), _) => result,
            (None, Some(life)) => life(false),
            (None, None) => panic!("a thread of epoxide panicked outside of user code: this is a defect"),
        }
    }
}

fn call_on(hooks: &[Hook], life: &mut dyn FnMut()) {
    match hooks.split_first() {
        None => life(),
        Some((hook, rest)) => hook(&mut || call_on(rest, life)),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::EnterHooks;
    use std::sync::Mutex;

    fn noting(hooks: &mut EnterHooks, log: &'static Mutex<Vec<&'static str>>, name: [&'static str; 2], calls: usize) {
        hooks.push(move |thread| {
            log.lock().unwrap().push(name[0]);
            for _ in 0..calls {
                thread();
            }
            log.lock().unwrap().push(name[1]);
        });
    }

    #[test]
    fn hooks_nest_and_the_life_is_lived_once() {
        static LOG: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
        let mut hooks = EnterHooks::default();
        noting(&mut hooks, &LOG, ["a", "A"], 1);
        noting(&mut hooks, &LOG, ["b", "B"], 2);
        let result = hooks.around(|entered| {
            LOG.lock().unwrap().push("life");
            entered
        });
        assert!(result);
        assert_eq!(*LOG.lock().unwrap(), ["a", "b", "life", "B", "A"]);
    }

    #[test]
    fn a_hook_that_does_not_call_on_is_told() {
        static LOG: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
        let mut hooks = EnterHooks::default();
        noting(&mut hooks, &LOG, ["a", "A"], 0);
        assert!(!hooks.around(|entered| entered));
        let mut hooks = EnterHooks::default();
        hooks.push(|_| panic!("provoked on purpose: an enter hook"));
        assert!(!hooks.around(|entered| entered));
        hooks = EnterHooks::default();
        hooks.push(|thread| {
            thread();
            panic!("provoked on purpose: an enter hook, afterwards");
        });
        assert!(hooks.around(|entered| entered), "what was lived counts");
    }
}
