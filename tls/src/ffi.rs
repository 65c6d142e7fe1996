//! The calls of BoringSSL that `boring` has no safe form of, made safe.
//!
//! Job: a few calls, each with a SAFETY comment; nothing else of the crate is unsafe. State: none. Thread class: any thread;
//! what needs the session lock takes `&mut SslRef`, which only its holder has.
//!
//! Why they cannot be avoided: without the first a list of TLS 1.3 suites cannot be set at all; without the second ticket
//! keys would be BoringSSL's own, which neither rotate every 12 h nor survive a reload; without the third a client cannot
//! resume; without the fourth nobody here could ask for new keys; without the rest the kernel could not be told the keys of a
//! session, and its answers would be lost.
#![allow(unsafe_code, reason = "foreign functions and unsafe functions of boring, see above")]

use crate::ktls::heard;
use crate::tickets::TicketKeys;
use boring::error::ErrorStack;
use boring::ssl::{SslContextBuilder, SslRef, SslSession};
use foreign_types_shared::{ForeignType, ForeignTypeRef};
use std::ffi::{CStr, c_int, c_void};
use std::slice;
use std::sync::Arc;

/// The TLS 1.3 suites of a context, by their numbers, most preferred first. False: BoringSSL refuses one.
pub(crate) fn set_tls13_suites(context: &mut SslContextBuilder, suites: &[u16]) -> bool {
    // SAFETY: the context lives as long as its builder, which is borrowed; the list is copied; no flags are given, for
    // which a null pointer stands.
    said(unsafe {
        boring_sys::SSL_CTX_set1_tls13_ciphers(context.as_ptr(), suites.as_ptr(), std::ptr::null(), suites.len()) == 1
    })
}

/// A call that failed leaves its errors in the thread's queue, for somebody else's call to be blamed for (law 14).
fn said(done: bool) -> bool {
    if !done {
        drop(ErrorStack::get());
    }
    done
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
    said(unsafe { boring_sys::SSL_key_update(ssl.as_ptr(), kind) == 1 })
}

/// Writes what BoringSSL has kept back to go out with the next data: a server's tickets, a KeyUpdate.
pub(crate) fn write_kept_back(ssl: &mut SslRef) {
    // SAFETY: the session is alive and borrowed exclusively; of no bytes none is read.
    said(unsafe { boring_sys::SSL_write(ssl.as_ptr(), [0_u8; 1].as_ptr().cast(), 0) >= 0 });
}

/// The number of the next record that BoringSSL would send, or expects.
pub(crate) fn sequence(ssl: &SslRef, sent: bool) -> u64 {
    let ssl = ssl.as_ptr();
    // SAFETY: the session is alive; it is only looked at.
    unsafe { if sent { boring_sys::SSL_get_write_sequence(ssl) } else { boring_sys::SSL_get_read_sequence(ssl) } }
}

/// Has BoringSSL taken in a part of a record, and waits for the rest?
pub(crate) fn has_begun(ssl: &SslRef) -> bool {
    // SAFETY: the session is alive; it is only looked at.
    unsafe { boring_sys::SSL_has_pending(ssl.as_ptr()) == 1 }
}

/// The name of an alert.
pub(crate) fn alert_name(what: u8) -> String {
    // SAFETY: BoringSSL answers every number with a constant text of its own, which ends with a NUL.
    let name = unsafe { CStr::from_ptr(boring_sys::SSL_alert_desc_string_long(c_int::from(what))) };
    name.to_string_lossy().into_owned()
}

/// A client's ticket, a whole message, that came past BoringSSL. `None`: it is malformed.
pub(crate) fn ticket(ssl: &mut SslRef, message: &[u8]) -> Option<SslSession> {
    // SAFETY: the session is alive and borrowed exclusively, the message a slice of ours with its length. The result is
    // null or a reference that is ours to drop.
    unsafe {
        let made = boring_sys::SSL_process_tls13_new_session_ticket(ssl.as_ptr(), message.as_ptr(), message.len());
        said(!made.is_null()).then(|| SslSession::from_ptr(made))
    }
}

/// The key block of a TLS 1.2 session whose handshake is done.
pub(crate) fn key_block(ssl: &SslRef) -> Option<Vec<u8>> {
    // SAFETY: the session is alive; the block is as long as BoringSSL says, and it writes no more than that.
    unsafe {
        let mut block = vec![0; boring_sys::SSL_get_key_block_len(ssl.as_ptr())];
        said(boring_sys::SSL_generate_key_block(ssl.as_ptr(), block.as_mut_ptr(), block.len()) == 1).then_some(block)
    }
}

/// HKDF-Expand with SHA-256 or SHA-384.
pub(crate) fn hkdf_expand(sha384: bool, secret: &[u8], info: &[u8], out: &mut [u8]) -> bool {
    // SAFETY: all three are slices of ours with their lengths; the digests are constants of BoringSSL.
    unsafe {
        let digest = if sha384 { boring_sys::EVP_sha384() } else { boring_sys::EVP_sha256() };
        let (secret_at, info_at) = (secret.as_ptr(), info.as_ptr());
        let (out_at, len) = (out.as_mut_ptr(), out.len());
        said(boring_sys::HKDF_expand(out_at, len, digest, secret_at, secret.len(), info_at, info.len()) == 1)
    }
}

/// Overwrites key material, which the compiler may not leave out.
pub(crate) fn cleanse(bytes: &mut [u8]) {
    // SAFETY: a slice of ours with its length.
    unsafe { boring_sys::OPENSSL_cleanse(bytes.as_mut_ptr().cast(), bytes.len()) }
}

/// What the session sends and receives is told to [`heard::message`].
pub(crate) fn listen(ssl: &mut SslRef) {
    // SAFETY: the session is alive and borrowed exclusively; the callback is a function, there as long as the program.
    unsafe { boring_sys::SSL_set_msg_callback(ssl.as_ptr(), Some(on_message)) }
}

unsafe extern "C" fn on_message(
    sent: c_int,
    _version: c_int,
    kind: c_int,
    body: *const c_void,
    len: usize,
    ssl: *mut boring_sys::SSL,
    _arg: *mut c_void,
) {
    let Ok(kind) = u8::try_from(kind) else { return };
    if body.is_null() || ssl.is_null() {
        return;
    }
    // SAFETY: BoringSSL calls with the session that is being used and with a message of that length, both there for the
    // length of the call; nothing here panics, and nothing writes to either.
    let (ssl, body) = unsafe { (SslRef::from_ptr(ssl), slice::from_raw_parts(body.cast::<u8>(), len)) };
    heard::message(ssl, sent != 0, kind, body);
}
