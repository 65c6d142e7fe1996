//! Every way that TLS fails, each with its reason.
//!
//! Job: one error type, its table to `io::ErrorKind`, and what BoringSSL has to say. State: none; BoringSSL's error queue
//! is the thread's, so it is emptied by the call that failed, under the session lock (law 14). Thread class: pure.

use boring::error::ErrorStack;
use boring::ssl;
use std::error::Error;
use std::fmt;
use std::io;

/// Why TLS failed. Inside an [`io::Error`]; [`TlsError::of`] takes it out.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.reset(); // no close_notify: what the other side has may be cut
/// let error = server.read().await.unwrap_err();
/// println!("{error}: {:?}", TlsError::of(&error));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// An option of a builder cannot work.
    Config {
        /// The method that set it.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The handshake failed; the peer was sent an alert if the protocol has one for it.
    Handshake {
        /// BoringSSL's own words, and what is known beyond them.
        reason: String,
    },
    /// The peer closed the connection in the middle of the handshake.
    HandshakeClosed,
    /// `max_handshakes` are under way: the connection was reset.
    TooManyHandshakes {
        /// The limit.
        limit: usize,
    },
    /// What the peer sent is no record of this session, or broke the protocol. The session is over both ways.
    Decrypt {
        /// BoringSSL's own words.
        reason: String,
    },
    /// A record could not be made.
    Encrypt {
        /// BoringSSL's own words.
        reason: String,
    },
    /// The peer has asked for new keys (KeyUpdate), and the kernel, which makes this session's records
    /// ([`Ktls::Tx`](crate::Ktls::Tx)) and is older than Linux 6.14, keeps those it has: the peer was sent a close_notify, and nothing is sent any more. What
    /// was flushed before has gone out, and reads go on.
    KeyUpdate,
    /// The peer has renewed its keys (KeyUpdate), and the kernel, which decrypts ([`Ktls::TxRx`](crate::Ktls::TxRx)), reads
    /// nothing more as it has not got the new ones (`EKEYEXPIRED`, from Linux 6.14 on). It gets them when the message is
    /// read, so this is of a peer that cut the message's five bytes over records, which the kernel cannot follow.
    KeysExpired,
    /// The peer's FIN came without a close_notify: what was received may be cut.
    Truncated,
}

impl TlsError {
    /// The TLS error inside an error that a handshake, a read or a flush returned.
    pub fn of(error: &io::Error) -> Option<&Self> {
        error.get_ref()?.downcast_ref()
    }

    /// The kind of the `io::Error` that it becomes.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Config { .. } => io::ErrorKind::InvalidInput,
            Self::Handshake { .. } | Self::Decrypt { .. } | Self::Encrypt { .. } => io::ErrorKind::InvalidData,
            Self::HandshakeClosed | Self::Truncated => io::ErrorKind::UnexpectedEof,
            Self::TooManyHandshakes { .. } => io::ErrorKind::QuotaExceeded,
            Self::KeyUpdate | Self::KeysExpired => io::ErrorKind::Unsupported,
        }
    }

    pub(crate) fn config(option: &'static str, reason: impl fmt::Display) -> Self {
        Self::Config { option, reason: reason.to_string() }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config { option, reason } => write!(f, "TLS option `{option}`: {reason}"),
            Self::Handshake { reason } => write!(f, "TLS handshake failed: {reason}"),
            Self::HandshakeClosed => f.write_str("the peer closed the connection during the TLS handshake"),
            Self::TooManyHandshakes { limit } => {
                write!(f, "{limit} TLS handshakes are under way already (max_handshakes): the connection was reset")
            }
            Self::Decrypt { reason } => write!(f, "TLS decrypt failed: {reason}"),
            Self::Encrypt { reason } => write!(f, "TLS encrypt failed: {reason}"),
            Self::KeyUpdate => f.write_str(
                "the peer asked for new TLS keys, which this kernel (before Linux 6.14) cannot take: the session was ended (ktls(Off) can do it)",
            ),
            Self::KeysExpired => f.write_str(
                "the peer renewed its TLS keys (KeyUpdate) by a message in pieces, and the kernel, which decrypts, waits for the new ones (EKEYEXPIRED): the session was ended (ktls(Off) or ktls(Tx) can do it)",
            ),
            Self::Truncated => {
                f.write_str("the peer closed the connection without a close_notify: it may be truncated")
            }
        }
    }
}

impl Error for TlsError {}

impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// The errors of one failed call, in BoringSSL's words.
pub(crate) fn words(stack: &ErrorStack) -> String {
    let reasons: Vec<&str> = stack.errors().iter().filter_map(|error| error.reason()).collect();
    if reasons.is_empty() { "no reason given".to_owned() } else { reasons.join(", ") }
}

/// The same for a call on a session.
pub(crate) fn session_words(error: &ssl::Error) -> String {
    match (error.ssl_error(), error.io_error()) {
        (Some(stack), _) => words(stack),
        (None, Some(error)) => error.to_string(),
        (None, None) => format!("code {}", error.code().as_raw()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::ErrorKind;

    #[test]
    fn every_error_has_its_kind_and_survives_the_trip_through_io_error() {
        let reason = || "why".to_owned();
        let table = [
            (TlsError::config("alpn", "why"), ErrorKind::InvalidInput),
            (TlsError::Handshake { reason: reason() }, ErrorKind::InvalidData),
            (TlsError::HandshakeClosed, ErrorKind::UnexpectedEof),
            (TlsError::TooManyHandshakes { limit: 7 }, ErrorKind::QuotaExceeded),
            (TlsError::Decrypt { reason: reason() }, ErrorKind::InvalidData),
            (TlsError::Encrypt { reason: reason() }, ErrorKind::InvalidData),
            (TlsError::KeyUpdate, ErrorKind::Unsupported),
            (TlsError::KeysExpired, ErrorKind::Unsupported),
            (TlsError::Truncated, ErrorKind::UnexpectedEof),
        ];
        for (tls, kind) in table {
            let error = io::Error::from(tls.clone());
            assert_eq!(error.kind(), kind, "{tls:?}");
            assert_eq!(TlsError::of(&error), Some(&tls));
        }
        assert_eq!(TlsError::of(&ErrorKind::InvalidData.into()), None, "control: a foreign error");
    }
}
