//! What the feature `tracing` tells: one function a kind of event, empty without the feature.
//!
//! State: none. Thread class: any thread. Laws: 10 (a subscriber is user code: nothing here is called under a lock or a
//! borrow of reactor state).
//!
//! Every event has the target `epoxide`. A subscriber that panics inside one is caught where the user code around it is.

use crate::reactor::stall::Stall;

/// Defines `name(field: type, ..)`: an event at a level, with a message and the fields as they are named.
macro_rules! events {
    ($($(#[$doc:meta])* $name:ident($($field:ident: $ty:ty = $show:expr),* $(,)?) $level:ident $text:literal;)+) => {
        $($(#[$doc])*
        #[cfg(feature = "tracing")]
        pub(crate) fn $name($($field: $ty),*) {
            tracing::event!(target: "epoxide", tracing::Level::$level, $($field = $show,)* $text);
        }

        $(#[$doc])*
        #[cfg(not(feature = "tracing"))]
        #[inline(always)]
        #[allow(clippy::missing_const_for_fn, reason = "it is not const with the feature")]
        pub(crate) fn $name($(_: $ty),*) {})+
    };
}

events! {
    /// User code held the loop.
    stalled(reactor: usize = reactor, stall: &Stall = tracing::field::display(stall)) WARN "stall";
}
