//! What the feature `tracing` tells: one function a kind of event, empty without the feature.
//!
//! State: none. Thread class: any thread. Laws: 10 (a subscriber is user code: no event is sent under a lock or a borrow
//! of the executor's state, and its panic goes no further).
//!
//! Every event has the target `epoxide`; its fields are the parameters below, by name.

use crate::error::CloseReason;
use crate::id::{Key, ListenerId};
use std::any::Any;
use std::fmt::Display;
use std::io;
use std::panic::Location;

/// Defines `name(field: type, ..)`: an event of a level, with a text and the fields as they are to be shown.
macro_rules! events {
    ($($(#[$doc:meta])* $level:ident $text:literal $name:ident($($field:ident: $ty:ty = $show:expr),* $(,)?);)+) => {
        $($(#[$doc])*
        #[cfg(feature = "tracing")]
        pub(crate) fn $name($($field: $ty),*) {
            // A panic of the subscriber ends neither the reactor nor whatever else is under way.
            let _ = crate::sync::quiet::quiet(|| {
                tracing::event!(target: "epoxide", tracing::Level::$level, $($field = $show,)* $text);
            });
        }

        $(#[$doc])*
        #[cfg(not(feature = "tracing"))]
        #[inline(always)]
        pub(crate) fn $name($(_: $ty),*) {})+
    };
}

events! {
    /// A listener accepted it.
    DEBUG "connection accepted" accepted(reactor: usize = reactor, listener: ListenerId = listener.index(), connection: Key = connection.0);
    /// Its slot was freed: nobody uses it any more.
    DEBUG "connection ended" ended(reactor: usize = reactor, connection: Key = connection.0, reason: Option<CloseReason> = tracing::field::debug(reason));
    /// A clock ended it.
    DEBUG "timed out" timed_out(reactor: usize = reactor, connection: Key = connection.0, reason: CloseReason = tracing::field::display(reason));
    /// Accepting stops for want of descriptors or memory; the tick tries again.
    WARN "listener paused: accept failed" paused_starved(reactor: usize = reactor, listener: ListenerId = listener.index(), error: &io::Error = tracing::field::display(error));
    /// Accepting stops because `max_connections` exist.
    INFO "listener paused: max_connections" paused_full(reactor: usize = reactor, listener: ListenerId = listener.index());
    /// Accepting goes on.
    INFO "listener resumed" resumed(reactor: usize = reactor, listener: ListenerId = listener.index());
    /// A task of a reactor panicked.
    ERROR "task panicked" panicked(spawned_at: &'static Location<'static> = tracing::field::display(spawned_at), message: &(dyn Any + Send) = text_of(message));
    /// Other user code panicked on a reactor or a worker.
    ERROR "user code panicked" panicked_outside();
    /// A handler returned an error.
    DEBUG "handler failed" handler_failed(error: &str = error);
    /// User code held the loop.
    WARN "stall" stalled(reactor: usize = reactor, stall: &dyn Display = tracing::field::display(stall));
    /// A limit refused something: the configuration's name of it, and how much was asked for.
    INFO "refused by a limit" refused(reactor: usize = reactor, limit: &'static str = limit, asked: usize = asked as u64);
    /// The drain begins.
    INFO "drain begins" drain_begins(reactor: usize = reactor, connections: usize = connections as u64);
    /// The loop has ended; what is left is cut.
    INFO "stop begins" stop_begins(reactor: usize = reactor, connections: usize = connections as u64);
    /// Everything is settled.
    INFO "stopped" stopped(reactor: usize = reactor, cut: usize = cut as u64);
    /// The reactor ended without being asked to.
    ERROR "fault" fault(reactor: usize = reactor, error: &io::Error = tracing::field::display(error));
}

#[cfg(feature = "tracing")]
fn text_of(thrown: &(dyn Any + Send)) -> &str {
    let text = thrown.downcast_ref::<&str>().copied();
    text.or_else(|| thrown.downcast_ref::<String>().map(String::as_str)).unwrap_or("(a payload that is not text)")
}
