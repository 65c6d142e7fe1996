//! What kind of thread this is, and which reactor it belongs to without running it.
//!
//! State: one thread-local a thread, without a destructor, so that it is reachable during thread teardown (law 9). Who
//! touches it: this thread only. Thread class: any thread. Laws: 9.

use crate::exec::home::Home;
use crate::exec::local;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::Arc;

/// What a thread was started for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// A reactor's, or not one of ours.
    Other,
    /// It polls the futures of an async pool: it must not block.
    Worker,
    /// It runs blocking jobs.
    Blocking,
}

struct Ambient {
    class: Cell<Class>,
    home: RefCell<Option<Arc<Home>>>,
}

thread_local! {
    static AMBIENT: ManuallyDrop<Ambient> = const {
        ManuallyDrop::new(Ambient { class: Cell::new(Class::Other), home: RefCell::new(None) })
    };
}

/// The calling thread's kind.
pub(crate) fn class() -> Class {
    AMBIENT.with(|ambient| ambient.class.get())
}

/// Says what the calling thread was started for, for its whole life.
pub(crate) fn set_class(class: Class) {
    AMBIENT.with(|ambient| ambient.class.set(class));
}

/// The reactor that the calling thread belongs to: the one that runs here, else the one that it has entered.
pub(crate) fn home() -> Option<Arc<Home>> {
    local::home().or_else(|| AMBIENT.with(|ambient| ambient.home.borrow().clone()))
}

/// Makes `home` the calling thread's until the guard is dropped; then it has what it had before.
pub(crate) fn enter(home: Arc<Home>) -> Entered {
    Entered { before: swap(Some(home)), not_send: PhantomData }
}

/// See [`enter`].
#[must_use = "the thread belongs to the reactor only while the guard lives"]
pub(crate) struct Entered {
    before: Option<Arc<Home>>,
    /// It belongs to its thread.
    not_send: PhantomData<Rc<()>>,
}

impl fmt::Debug for Entered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Dropped outside the cell: it may be the last handle of its reactor.
        drop(swap(self.before.take()));
    }
}

fn swap(home: Option<Arc<Home>>) -> Option<Arc<Home>> {
    AMBIENT.with(|ambient| ambient.home.replace(home))
}
