//! What server and client options have in common: versions, suites, protocol names.
//!
//! Job: check; every refusal names its option. State: none. Thread class: pure.

use crate::error::TlsError;
use crate::ktls::Ktls;
use boring::pkey::{Id, PKey, Private};
use boring::ssl::SslVersion;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

/// A protocol version. Older ones are not spoken.
///
/// ```
/// assert!(epoxide_tls::TlsVersion::V1_2 < epoxide_tls::TlsVersion::V1_3);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum TlsVersion {
    /// TLS 1.2, RFC 5246.
    V1_2,
    /// TLS 1.3, RFC 8446.
    V1_3,
}

impl TlsVersion {
    pub(crate) fn wire(self) -> SslVersion {
        match self {
            Self::V1_2 => SslVersion::TLS1_2,
            Self::V1_3 => SslVersion::TLS1_3,
        }
    }

    pub(crate) fn of(version: Option<SslVersion>) -> Self {
        if version == Some(SslVersion::TLS1_2) { Self::V1_2 } else { Self::V1_3 }
    }
}

impl fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_2 => "TLS 1.2",
            Self::V1_3 => "TLS 1.3",
        })
    }
}

/// Does a server ask clients for a certificate?
///
/// ```
/// assert_eq!(epoxide_tls::ClientAuth::default(), epoxide_tls::ClientAuth::Off);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ClientAuth {
    /// It does not ask.
    #[default]
    Off,
    /// It asks; a client without one is served. One that cannot be verified is refused.
    Optional,
    /// A client without one is refused in the handshake.
    Required,
}

/// The versions that may be agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Versions {
    pub(crate) min: TlsVersion,
    pub(crate) max: TlsVersion,
}

/// A cipher suite of TLS 1.2 that is offered, or one of TLS 1.3.
struct Suite {
    iana: &'static str,
    openssl: &'static str,
    id: u16,
    version: TlsVersion,
}

const fn suite(version: TlsVersion, id: u16, iana: &'static str, openssl: &'static str) -> Suite {
    Suite { iana, openssl, id, version }
}

/// All that are spoken: authenticated encryption, and for 1.2 an ephemeral key exchange. In order of preference.
const SUITES: [Suite; 9] = {
    use TlsVersion::{V1_2, V1_3};
    [
        suite(V1_3, 0x1301, "TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
        suite(V1_3, 0x1302, "TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
        suite(V1_3, 0x1303, "TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
        suite(V1_2, 0xc02b, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES128-GCM-SHA256"),
        suite(V1_2, 0xc02f, "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-RSA-AES128-GCM-SHA256"),
        suite(V1_2, 0xc02c, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"),
        suite(V1_2, 0xc030, "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        suite(V1_2, 0xcca9, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"),
        suite(V1_2, 0xcca8, "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
    ]
};

/// The numbers of all suites.
#[cfg(test)]
pub(crate) fn suite_ids() -> impl Iterator<Item = u16> {
    SUITES.iter().map(|suite| suite.id)
}

/// The options that both builders have.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) min_version: Option<TlsVersion>,
    pub(crate) max_version: Option<TlsVersion>,
    pub(crate) suites: Option<Vec<String>>,
    pub(crate) alpn: Option<Vec<Vec<u8>>>,
    pub(crate) resumption: bool,
    pub(crate) handshake_timeout: Duration,
    pub(crate) max_handshakes: usize,
    pub(crate) key_log: Option<PathBuf>,
    pub(crate) ktls: Ktls,
}

/// The same, checked.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) versions: Versions,
    /// TLS 1.3 suites, if a list was given.
    pub(crate) tls13: Option<Vec<u16>>,
    /// TLS 1.2 suites, in OpenSSL's form of a list.
    pub(crate) tls12: String,
    /// Protocol names as they go over the wire; empty: none.
    pub(crate) alpn: Vec<u8>,
}

impl Checked {
    /// Is there a suite of this version? A version without one must not be spoken: BoringSSL would take its own suites.
    pub(crate) fn speaks(&self, version: TlsVersion) -> bool {
        match version {
            TlsVersion::V1_2 => !self.tls12.is_empty(),
            TlsVersion::V1_3 => self.tls13.as_ref().is_none_or(|suites| !suites.is_empty()),
        }
    }

    /// Is there a suite of TLS 1.2 for a certificate with this key? (Those of 1.3 are for any.)
    pub(crate) fn has_suite_for(&self, key: &PKey<Private>) -> bool {
        self.tls12.contains(if key.id() == Id::RSA { "-RSA-" } else { "-ECDSA-" })
    }
}

impl Default for Common {
    fn default() -> Self {
        Self {
            min_version: None,
            max_version: None,
            suites: None,
            alpn: None,
            resumption: true,
            handshake_timeout: Duration::from_secs(10),
            max_handshakes: 1024,
            key_log: None,
            ktls: Ktls::Off,
        }
    }
}

impl Common {
    pub(crate) fn check(&self) -> Result<Checked, TlsError> {
        let chosen = self.suites()?;
        let has = |version| chosen.iter().any(|suite| suite.version == version);
        // A list without a suite of a version switches that version off.
        let lowest = if has(TlsVersion::V1_2) { TlsVersion::V1_2 } else { TlsVersion::V1_3 };
        let highest = if has(TlsVersion::V1_3) { TlsVersion::V1_3 } else { TlsVersion::V1_2 };
        let versions = Versions { min: self.min_version.unwrap_or(lowest), max: self.max_version.unwrap_or(highest) };
        // First, so that the option that was given is the one that is named.
        for (option, version) in [("min_version", versions.min), ("max_version", versions.max)] {
            if !has(version) {
                return Err(TlsError::config(option, format!("{version}: `suites` lists none of that version")));
            }
        }
        if versions.min > versions.max {
            return Err(TlsError::config("min_version", format!("{} is above {}", versions.min, versions.max)));
        }
        if self.max_handshakes == 0 {
            return Err(TlsError::config("max_handshakes", "must be at least 1"));
        }
        let of = |version| chosen.iter().filter(move |suite| suite.version == version);
        Ok(Checked {
            versions,
            tls13: self.suites.is_some().then(|| of(TlsVersion::V1_3).map(|suite| suite.id).collect()),
            tls12: of(TlsVersion::V1_2).map(|suite| suite.openssl).collect::<Vec<_>>().join(":"),
            alpn: self.protocols()?,
        })
    }

    /// The suites listed, or all.
    fn suites(&self) -> Result<Vec<&'static Suite>, TlsError> {
        let Some(names) = &self.suites else { return Ok(SUITES.iter().collect()) };
        if names.is_empty() {
            return Err(TlsError::config("suites", "the list is empty"));
        }
        let mut chosen: Vec<&Suite> = Vec::new();
        for name in names {
            let Some(suite) = SUITES.iter().find(|suite| [suite.iana, suite.openssl].contains(&name.as_str())) else {
                let known: Vec<_> = SUITES.iter().map(|suite| suite.iana).collect();
                let reason = format!("`{name}` is not known; there are {}", known.join(", "));
                return Err(TlsError::config("suites", reason));
            };
            if chosen.iter().any(|other| other.id == suite.id) {
                return Err(TlsError::config("suites", format!("`{name}` is listed twice")));
            }
            chosen.push(suite);
        }
        Ok(chosen)
    }

    fn protocols(&self) -> Result<Vec<u8>, TlsError> {
        let mut wire = Vec::new();
        let Some(names) = &self.alpn else { return Ok(wire) };
        if names.is_empty() {
            return Err(TlsError::config("alpn", "the list is empty"));
        }
        for name in names {
            match u8::try_from(name.len()) {
                Ok(0) => return Err(TlsError::config("alpn", "a name is empty")),
                Ok(len) => wire.push(len),
                Err(_) => {
                    let reason = format!("a name has {} bytes, at most 255", name.len());
                    return Err(TlsError::config("alpn", reason));
                }
            }
            wire.extend_from_slice(name);
        }
        if wire.len() > usize::from(u16::MAX) - 2 {
            return Err(TlsError::config("alpn", "the names do not fit into one extension"));
        }
        Ok(wire)
    }
}

/// The setters of [`Common`] on a builder with a field `common`.
macro_rules! common_options {
    () => {
        /// The oldest version that is spoken. Default TLS 1.2, which is also the floor.
        #[must_use]
        pub fn min_version(mut self, version: crate::TlsVersion) -> Self {
            self.common.min_version = Some(version);
            self
        }

        /// The newest version that is spoken. Default TLS 1.3.
        #[must_use]
        pub fn max_version(mut self, version: crate::TlsVersion) -> Self {
            self.common.max_version = Some(version);
            self
        }

        /// The cipher suites, most preferred first, by their IANA or OpenSSL names. A list that has none of a version
        /// switches that version off. Default: all that are spoken, which are authenticated (AEAD) and, in 1.2, have an
        /// ephemeral key exchange (ECDHE). Unknown names are refused by `build()`.
        #[must_use]
        pub fn suites<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
            self.common.suites = Some(names.into_iter().map(Into::into).collect());
            self
        }

        /// The application protocols (ALPN), most preferred first, 1 to 255 bytes each. A server decides by its own order;
        /// with nothing in common the connection goes on without one. Default: none.
        #[must_use]
        pub fn alpn<S: Into<Vec<u8>>>(mut self, names: impl IntoIterator<Item = S>) -> Self {
            self.common.alpn = Some(names.into_iter().map(Into::into).collect());
            self
        }

        /// Are sessions resumed by tickets? Default true.
        #[must_use]
        pub fn resumption(mut self, on: bool) -> Self {
            self.common.resumption = on;
            self
        }

        /// How long a handshake may take in all. Default 10 s; zero is off. It uses the connection's deadline.
        #[must_use]
        pub fn handshake_timeout(mut self, timeout: std::time::Duration) -> Self {
            self.common.handshake_timeout = timeout;
            self
        }

        /// Handshakes of this configuration that may be under way at once, at least 1; the connection of one more is reset,
        /// and counted. Default 1024.
        #[must_use]
        pub fn max_handshakes(mut self, limit: usize) -> Self {
            self.common.max_handshakes = limit;
            self
        }

        /// Does the kernel encrypt what is sent, and decrypt what is received? Default [`Ktls::Off`](crate::Ktls::Off). Any suite and version
        /// will do. Where the kernel cannot (no module `tls`, a unix socket, a peer that has sent its FIN) sessions are
        /// encrypted here all the same, which is counted ([`TlsConfig::ktls_fallbacks`](crate::TlsConfig::ktls_fallbacks)) and
        /// said once on the standard error. Without `CAP_NET_ADMIN` a process does not load the module: load it at boot.
        #[must_use]
        pub fn ktls(mut self, ktls: crate::Ktls) -> Self {
            self.common.ktls = ktls;
            self
        }

        /// Appends the secrets of every session to this file, in the form that Wireshark reads (SSLKEYLOGFILE). Whoever has
        /// them can decrypt everything; a file made here is its owner's alone to read. Never read from the environment.
        /// Default: off.
        #[must_use]
        pub fn key_log(mut self, path: impl Into<std::path::PathBuf>) -> Self {
            self.common.key_log = Some(path.into());
            self
        }
    };
}
pub(crate) use common_options;
