//! The calls of BoringSSL that `boring` has no safe form of, made safe.
//!
//! Job: four calls, each with a SAFETY comment; nothing else of the crate is unsafe. State: none. Thread class: any thread;
//! what needs the session lock takes `&mut SslRef`, which only its holder has.
//!
//! Why they cannot be avoided: without the first a list of TLS 1.3 suites cannot be set at all; without the second ticket
//! keys would be BoringSSL's own, which neither rotate every 12 h nor survive a reload; without the third a client cannot
//! resume; without the fourth nobody here could ask for new keys.
#![allow(unsafe_code, reason = "foreign functions and unsafe functions of boring, see above")]

use crate::tickets::TicketKeys;
use boring::error::ErrorStack;
use boring::ssl::{SslContextBuilder, SslRef, SslSession};
use foreign_types_shared::ForeignTypeRef;
use std::sync::Arc;

/// The TLS 1.3 suites of a context, by their numbers, most preferred first. False: BoringSSL refuses one.
pub(crate) fn set_tls13_suites(context: &mut SslContextBuilder, suites: &[u16]) -> bool {
    // SAFETY: the context lives as long as its builder, which is borrowed; the list is copied; no flags are given, for
    // which a null pointer stands.
    unsafe {
        boring_sys::SSL_CTX_set1_tls13_ciphers(context.as_ptr(), suites.as_ptr(), std::ptr::null(), suites.len()) == 1
    }
}

/// Tickets of a context are made and opened with `keys`.
pub(crate) fn set_ticket_keys(context: &mut SslContextBuilder, keys: Arc<TicketKeys>) {
    // SAFETY: asked of the callback is that it sets key name, iv, cipher and mac rightly. `TicketKeys::seal` and `open`
    // set all four or report failure, with a cipher whose iv is the 16 bytes given and a fresh random iv per ticket.
    unsafe {
        context.set_ticket_key_callback(move |_, name, iv, cipher, mac, seal| {
            if seal { keys.seal(name, iv, cipher, mac) } else { keys.open(name, iv, cipher, mac) }
        });
    }
}

/// Offers `session` in the handshake to come.
pub(crate) fn resume(ssl: &mut SslRef, session: &SslSession) -> Result<(), ErrorStack> {
    // SAFETY: asked is that the session belongs to the context of `ssl`. `resume::Sessions` belongs to one context: its
    // sessions come from that context's callback and are offered in its connections only.
    unsafe { ssl.set_session(session) }
}

/// Queues a KeyUpdate of this side's keys; `ask`: the peer is to renew its own too. False: not in this state or version.
pub(crate) fn update_keys(ssl: &mut SslRef, ask: bool) -> bool {
    let kind = if ask { boring_sys::SSL_KEY_UPDATE_REQUESTED } else { boring_sys::SSL_KEY_UPDATE_NOT_REQUESTED };
    // SAFETY: the session is alive and borrowed exclusively.
    unsafe { boring_sys::SSL_key_update(ssl.as_ptr(), kind) == 1 }
}
