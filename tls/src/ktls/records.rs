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
use std::borrow::Cow;
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
const ILLEGAL_PARAMETER: u8 = 47;

/// A ticket's longest: as long as a record's data may be.
const MAX_TICKET: usize = 16 * 1024;

/// The beginning of a message of the handshake, whose rest is in the next record (RFC 8446, 5.1: nothing may come between).
/// A box: few sessions have one, and not for long.
#[derive(Debug)]
pub(crate) struct Fragment(Box<[u8]>);

pub(crate) fn meaning(
    ssl: &mut SslRef,
    tls13: bool,
    fragment: &mut Option<Fragment>,
    kind: u8,
    body: &[u8],
) -> Meaning {
    if fragment.is_some() && kind != HANDSHAKE {
        return interrupted();
    }
    match (kind, body) {
        (ALERT, [_, 0]) => Meaning::End,
        (ALERT, [1, what]) if !tls13 || *what == USER_CANCELED => Meaning::Nothing,
        (ALERT, [_, what]) => {
            let reason = format!("the peer's alert: {} ({what})", ffi::alert_name(*what));
            Meaning::Over(TlsError::Decrypt { reason }, None)
        }
        (HANDSHAKE, [_, ..]) if tls13 => messages(ssl, fragment, body),
        _ => unexpected(kind),
    }
}

/// Whole messages are dealt with; the beginning of one is kept.
fn messages(ssl: &mut SslRef, fragment: &mut Option<Fragment>, body: &[u8]) -> Meaning {
    let all = match fragment.take() {
        Some(Fragment(begun)) => Cow::Owned([&begun, body].concat()),
        None => Cow::Borrowed(body),
    };
    let mut rest = &all[..];
    let mut meaning = Meaning::Nothing;
    while !rest.is_empty() {
        // It must be the last of its record: the next one has other keys.
        if matches!(meaning, Meaning::NewKeys { .. }) {
            return unexpected(HANDSHAKE);
        }
        match next_message(ssl.is_server(), rest) {
            Ok(Some((message, later))) => {
                rest = later;
                match message {
                    [KEY_UPDATE, _, _, _, asked @ (0 | 1)] => meaning = Meaning::NewKeys { asked: *asked == 1 },
                    [NEW_SESSION_TICKET, ..] => resume::take_ticket(ssl, message),
                    _ => return unexpected(HANDSHAKE),
                }
            }
            Ok(None) => {
                *fragment = Some(Fragment(rest.into()));
                return meaning;
            }
            Err(over) => return over,
        }
    }
    meaning
}

/// A message, and what is behind it.
type Parted<'a> = (&'a [u8], &'a [u8]);

/// The first message, if it is there to its end. It is refused by its first bytes if it can be none
/// that is for this side, or if it is longer than such a one.
fn next_message(server: bool, bytes: &[u8]) -> Result<Option<Parted<'_>>, Meaning> {
    let longest = match bytes {
        [KEY_UPDATE, ..] => 1,
        [NEW_SESSION_TICKET, ..] if !server => MAX_TICKET,
        _ => return Err(unexpected(HANDSHAKE)),
    };
    let [_, a, b, c, ..] = *bytes else { return Ok(None) };
    let len = usize::from(a) * 65_536 + usize::from(b) * 256 + usize::from(c);
    if len > longest {
        let reason = format!("a message of the handshake with {len} bytes, where {longest} are the most");
        return Err(Meaning::Over(TlsError::Decrypt { reason }, Some(ILLEGAL_PARAMETER)));
    }
    Ok(bytes.split_at_checked(4 + len))
}

/// Something else came between the parts of a message.
pub(crate) fn interrupted() -> Meaning {
    let reason = "a message of the handshake that is cut by another record".to_owned();
    Meaning::Over(TlsError::Decrypt { reason }, Some(UNEXPECTED_MESSAGE))
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
        _ if errno == EKEYEXPIRED => return Some(TlsError::KeysExpired),
        _ => return None,
    };
    Some(TlsError::Decrypt { reason: format!("{what}, by the kernel") })
}

/// The errnos of Linux; this crate does without libc.
const EINVAL: i32 = 22;
const EBADMSG: i32 = 74;
const EMSGSIZE: i32 = 90;
const EKEYEXPIRED: i32 = 127;

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind;

    /// What a kernel answers, as the reader gets it.
    fn met(errno: i32) -> io::Error {
        CloseReason::Io { op: "recv", errno }.into()
    }

    #[test]
    fn every_errno_of_a_kernel_that_decrypts_has_its_error() {
        let expired = kernel_error(&met(EKEYEXPIRED)).unwrap();
        assert_eq!(expired, TlsError::KeysExpired);
        assert_eq!(io::Error::from(expired).kind(), ErrorKind::Unsupported);
        for errno in [EBADMSG, EINVAL, EMSGSIZE] {
            let Some(TlsError::Decrypt { reason }) = kernel_error(&met(errno)) else { panic!("{errno}") };
            assert!(reason.contains(&format!("os error {errno}")), "{reason}");
        }
        // ENOMEM, ETIMEDOUT, and what the connection itself says: no affair of TLS.
        for error in [met(12), met(110), CloseReason::Local.into(), ErrorKind::UnexpectedEof.into()] {
            assert!(kernel_error(&error).is_none(), "{error}");
        }
    }

    const KEYS: [u8; 5] = [24, 0, 0, 1, 1];

    #[test]
    fn messages_are_found_wherever_they_are_cut() {
        for at in 1..KEYS.len() {
            assert!(matches!(next_message(true, &KEYS[..at]), Ok(None)), "{at} bytes");
        }
        let more = [&KEYS[..], &[24, 0]].concat();
        assert_eq!(next_message(true, &more).unwrap(), Some((&KEYS[..], &[24, 0][..])));
        let ticket = [&[4, 0, 0x40, 0][..], &[7; MAX_TICKET]].concat();
        assert_eq!(next_message(false, &ticket).unwrap(), Some((&ticket[..], &[][..])));
        assert_eq!(next_message(false, &ticket[..MAX_TICKET]).unwrap(), None);
    }

    /// By its first bytes: nothing is gathered for it.
    #[test]
    fn a_message_that_can_be_none_is_refused_before_its_rest() {
        for (server, bytes, alert) in [
            (true, &[4][..], UNEXPECTED_MESSAGE),
            (false, &[1], UNEXPECTED_MESSAGE),
            (true, &[24, 0, 0, 2], ILLEGAL_PARAMETER),
            (false, &[4, 0, 0x40, 1], ILLEGAL_PARAMETER),
            (false, &[4, 255, 255, 255], ILLEGAL_PARAMETER),
        ] {
            let over = next_message(server, bytes).unwrap_err();
            let Meaning::Over(TlsError::Decrypt { .. }, Some(told)) = over else { panic!("{over:?}") };
            assert_eq!(told, alert, "{bytes:?}");
        }
    }
}
