//! What a reactor's thread notes about the user code that it runs, for the stall detector and for the end.
//!
//! State: one thread-local a thread, of plain cells without a destructor (law 9). Who touches it: this thread only.
//! Thread class: reactor only; on other threads nothing is ever read. Laws: 9, 12.

use std::cell::Cell;
use std::panic::Location;

struct Watched {
    /// Where the task was spawned that is being polled, or was polled last.
    spawned_at: Cell<Option<&'static Location<'static>>>,
    /// User code ran outside of a task since this was last asked.
    outside: Cell<bool>,
    /// The reactor ends and takes no more tasks.
    refuses: Cell<bool>,
}

thread_local! {
    static WATCHED: Watched = const {
        Watched { spawned_at: Cell::new(None), outside: Cell::new(false), refuses: Cell::new(false) }
    };
}

/// Executor: the task that was spawned there is about to be polled.
#[inline]
pub(crate) fn set_polled(spawned_at: &'static Location<'static>) {
    WATCHED.with(|watched| watched.spawned_at.set(Some(spawned_at)));
}

/// Where the task was spawned that was polled last.
pub(crate) fn last_polled() -> Option<&'static Location<'static>> {
    WATCHED.with(|watched| watched.spawned_at.get())
}

/// User code runs: a post, a handler, a waker, a hook, a destructor.
pub(crate) fn note_outside() {
    WATCHED.with(|watched| watched.outside.set(true));
}

/// Has such code run since the last call?
#[inline]
pub(crate) fn take_outside() -> bool {
    WATCHED.with(|watched| watched.outside.replace(false))
}

/// The reactor that runs here ends and takes no more tasks, or has ended.
pub(crate) fn refuse_spawns(refuse: bool) {
    WATCHED.with(|watched| watched.refuses.set(refuse));
}

/// Does the reactor that runs here take no more tasks?
#[inline]
pub(crate) fn refuses_spawns() -> bool {
    WATCHED.with(|watched| watched.refuses.get())
}
