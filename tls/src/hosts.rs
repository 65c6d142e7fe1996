//! Which certificate a server name gets, and what else the host asks for.
//!
//! State: a table, fixed once built. Who touches it: BoringSSL's callback at a ClientHello, on the thread that makes the
//! handshake. Thread class: any thread.
//!
//! The callback runs before the versions are negotiated and before a session is resumed, so a host's own versions and its
//! own verification hold in full: swapping the context alone would leave the default's in force. Session tickets of one host
//! are no good at another: each has its own session id context.

use crate::error::TlsError;
use crate::options::{ClientAuth, TlsVersion, Versions};
use crate::pem::Pem;
use boring::error::ErrorStack;
use boring::ssl::{NameType, SslContext, SslRef, SslVerifyMode};
use std::collections::HashMap;
use std::fmt;

/// A host of a server: its certificate, and what differs from the server's own options.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// let (chain, key) = identity();
/// let (other_chain, other_key) = identity();
/// let other = Host::new(Pem::text(other_chain), Pem::text(other_key)).min_version(TlsVersion::V1_3);
/// let tls = TlsConfig::server(Pem::text(chain), Pem::text(key)).host("*.example.org", other).build()?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) chain: Pem,
    pub(crate) key: Pem,
    pub(crate) auth: Option<(ClientAuth, Option<Pem>)>,
    pub(crate) min_version: Option<TlsVersion>,
    pub(crate) max_version: Option<TlsVersion>,
    pub(crate) staple: Option<Vec<u8>>,
}

impl Host {
    /// A host with this certificate chain (leaf first, at most 64 KiB) and this private key.
    pub fn new(chain: Pem, key: Pem) -> Self {
        Self { chain, key, auth: None, min_version: None, max_version: None, staple: None }
    }

    /// Asks this host's clients for a certificate of one of these authorities. Default: as the server.
    #[must_use]
    pub fn client_auth(mut self, auth: ClientAuth, authorities: Pem) -> Self {
        self.auth = Some((auth, Some(authorities)));
        self
    }

    /// Does not ask this host's clients for a certificate, whatever the server does.
    #[must_use]
    pub fn no_client_auth(mut self) -> Self {
        self.auth = Some((ClientAuth::Off, None));
        self
    }

    /// The oldest version that this host speaks. Default: as the server.
    #[must_use]
    pub fn min_version(mut self, version: TlsVersion) -> Self {
        self.min_version = Some(version);
        self
    }

    /// The newest version that this host speaks. Default: as the server.
    #[must_use]
    pub fn max_version(mut self, version: TlsVersion) -> Self {
        self.max_version = Some(version);
        self
    }

    /// An OCSP response for the certificate, DER, handed to clients that ask for it. Default: none.
    #[must_use]
    pub fn ocsp_staple(mut self, response: impl Into<Vec<u8>>) -> Self {
        self.staple = Some(response.into());
        self
    }
}

/// A host as the callback needs it.
pub(crate) struct Entry {
    pub(crate) context: SslContext,
    pub(crate) verify: SslVerifyMode,
    pub(crate) versions: Versions,
    pub(crate) staple: Option<Vec<u8>>,
}

/// See the module's text.
#[derive(Default)]
pub(crate) struct Table {
    /// By name in lower case.
    exact: HashMap<Box<str>, Entry>,
    /// By what follows `*`, the dot included.
    wildcard: HashMap<Box<str>, Entry>,
    /// The default's OCSP response.
    staple: Option<Vec<u8>>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("exact", &self.exact.keys()).field("wildcard", &self.wildcard.keys()).finish()
    }
}

impl Table {
    pub(crate) fn new(staple: Option<Vec<u8>>) -> Self {
        Self { staple, ..Self::default() }
    }

    pub(crate) fn insert(&mut self, name: &str, entry: Entry) {
        match name.strip_prefix('*') {
            Some(rest) => self.wildcard.insert(rest.into(), entry),
            None => self.exact.insert(name.into(), entry),
        };
    }

    /// An exact name wins; `*` stands for exactly one label.
    fn find(&self, name: &str) -> Option<&Entry> {
        if let Some(entry) = self.exact.get(name) {
            return Some(entry);
        }
        // No label is none.
        self.wildcard.get(&name[name.find('.').filter(|dot| *dot > 0)?..])
    }

    /// At a ClientHello.
    pub(crate) fn apply(&self, ssl: &mut SslRef) -> Result<(), ErrorStack> {
        let name = ssl.servername(NameType::HOST_NAME).map(str::to_ascii_lowercase);
        // A dot at its end (RFC 6066, 3 has none) makes it no other host, with laxer rules.
        let staple = match name.and_then(|name| self.find(name.strip_suffix('.').unwrap_or(&name))) {
            None => &self.staple,
            Some(entry) => {
                ssl.set_ssl_context(&entry.context)?;
                ssl.set_verify(entry.verify);
                ssl.set_min_proto_version(Some(entry.versions.min.wire()))?;
                ssl.set_max_proto_version(Some(entry.versions.max.wire()))?;
                &entry.staple
            }
        };
        match staple {
            Some(staple) => ssl.set_ocsp_status(staple),
            None => Ok(()),
        }
    }
}

/// A host name of the table, in lower case: `name.example`, or `*.example` for one label more.
pub(crate) fn table_name(name: &str) -> Result<String, TlsError> {
    let refuse = |reason: &str| Err(TlsError::config("host", format!("`{name}` {reason}")));
    let labels = name.strip_prefix("*.").unwrap_or(name);
    if labels.trim().is_empty() {
        return refuse("is blank");
    }
    if !name.is_ascii() || name.len() > 255 {
        return refuse("is not an ASCII host name of at most 255 bytes (write other alphabets as xn--...)");
    }
    if labels.contains('*') {
        return refuse("has a `*` that is not its whole first label");
    }
    if labels.split('.').any(|label| label.is_empty() || label.contains(char::is_whitespace)) {
        return refuse("has an empty label or white space");
    }
    Ok(name.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use boring::ssl::SslMethod;

    fn table(names: &[&str]) -> Table {
        let mut table = Table::default();
        for (i, name) in names.iter().enumerate() {
            let context = SslContext::builder(SslMethod::tls()).unwrap().build();
            let versions = Versions { min: TlsVersion::V1_2, max: TlsVersion::V1_3 };
            let staple = Some(vec![i as u8]);
            table.insert(name, Entry { context, verify: SslVerifyMode::NONE, versions, staple });
        }
        table
    }

    #[test]
    fn exact_names_win_and_a_star_is_one_label() {
        let table = table(&["a.example", "*.example", "*.b.example"]);
        let found = |name| table.find(name).and_then(|entry| entry.staple.as_ref()).map(|staple| staple[0]);
        assert_eq!(found("a.example"), Some(0));
        assert_eq!(found("x.example"), Some(1));
        assert_eq!(found("x.b.example"), Some(2));
        assert_eq!(found("b.example"), Some(1));
        for name in ["x.y.example", "example", ".", "", "a", "a.example.", ".example"] {
            assert_eq!(found(name), None, "{name:?}");
        }
    }

    #[test]
    fn names_are_checked_and_lowered() {
        assert_eq!(table_name("A.Example").unwrap(), "a.example");
        assert_eq!(table_name("*.Example").unwrap(), "*.example");
        for name in
            ["", " ", "*", "*.", "*.*.x", "a.*", "x*.y", "a..b", ".a", "a b", "\u{168}2.example", &"a".repeat(256)]
        {
            let error = table_name(name).unwrap_err().to_string();
            assert!(error.contains("`host`"), "{error}");
        }
    }
}
