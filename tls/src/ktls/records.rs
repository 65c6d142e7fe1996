//! Records that are no data, and faults, from a kernel that decrypts.
//!
//! Job: what each means for the session. State: none of its own. Who touches it: the reader, under the session lock. Thread
//! class: any thread. Laws: 14.

use crate::error::TlsError;
use crate::ffi;
use crate::ktls::{ALERT, HANDSHAKE};
use crate::resume;
use boring::ssl::SslRef;
use epoxide::CloseReason;
use std::io;

/// What a record means.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// Nothing, or it is dealt with.
    Nothing,
    /// close_notify.
    End,
    /// The peer's next records have other keys; does it ask for some of this side?
    NewKeys { asked: bool },
    /// The session is over; the peer is told by this alert, if it is not its own.
    Over(TlsError, Option<u8>),
}

const USER_CANCELED: u8 = 90;
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
pub(crate) const UNEXPECTED_MESSAGE: u8 = 10;

pub(crate) fn meaning(ssl: &mut SslRef, tls13: bool, kind: u8, body: &[u8]) -> Meaning {
    match (kind, body) {
        (ALERT, [_, 0]) => Meaning::End,
        (ALERT, [1, what]) if !tls13 || *what == USER_CANCELED => Meaning::Nothing,
        (ALERT, [_, what]) => {
            let reason = format!("the peer's alert: {} ({what})", ffi::alert_name(*what));
            Meaning::Over(TlsError::Decrypt { reason }, None)
        }
        (HANDSHAKE, _) if tls13 => messages(ssl, body),
        _ => unexpected(kind),
    }
}

/// Whole messages: what else the kernel gives, the protocol does not allow to be cut there.
fn messages(ssl: &mut SslRef, mut rest: &[u8]) -> Meaning {
    let mut meaning = Meaning::Nothing;
    while let [kind, a, b, c, ..] = *rest {
        let len = 4 + usize::from(a) * 65_536 + usize::from(b) * 256 + usize::from(c);
        let Some((message, later)) = rest.split_at_checked(len) else { return unexpected(HANDSHAKE) };
        rest = later;
        match kind {
            NEW_SESSION_TICKET if !ssl.is_server() => resume::take_ticket(ssl, message),
            // It must be the last of its record: the next one has other keys.
            KEY_UPDATE if rest.is_empty() && len == 5 && message[4] <= 1 => {
                meaning = Meaning::NewKeys { asked: message[4] == 1 };
            }
            _ => return unexpected(HANDSHAKE),
        }
    }
    if rest.is_empty() { meaning } else { unexpected(HANDSHAKE) }
}

fn unexpected(kind: u8) -> Meaning {
    let reason = format!("a record of type {kind} that does not belong here");
    Meaning::Over(TlsError::Decrypt { reason }, Some(UNEXPECTED_MESSAGE))
}

/// What an errno of a kernel that decrypts means.
pub(crate) fn kernel_error(error: &io::Error) -> Option<TlsError> {
    let Some(CloseReason::Io { errno, .. }) = CloseReason::of(error) else { return None };
    let what = match io::Error::from_raw_os_error(errno) {
        error if errno == EBADMSG => format!("a bad record ({error})"),
        error if [EINVAL, EMSGSIZE].contains(&errno) => format!("no record of TLS, or one too long ({error})"),
        _ if errno == EKEYEXPIRED => return Some(TlsError::KeyUpdate),
        _ => return None,
    };
    Some(TlsError::Decrypt { reason: format!("{what}, by the kernel") })
}

/// The errnos of Linux; this crate does without libc.
const EINVAL: i32 = 22;
const EBADMSG: i32 = 74;
const EMSGSIZE: i32 = 90;
const EKEYEXPIRED: i32 = 127;
