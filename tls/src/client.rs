//! A client's options.
//!
//! State: the options as given; files are read by `build`. Thread class: any thread.

use crate::config::{Live, Role, TlsConfig};
use crate::context::Shared;
use crate::error::TlsError;
use crate::options::{Common, common_options};
use crate::pem::Pem;
use crate::resume::Sessions;
use boring::x509::X509;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Where systems keep the roots that they trust.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The options of a client, from [`TlsConfig::client`]. Nothing is read or checked before [`build`](Self::build).
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// let (chain, _key) = identity();
/// let tls = TlsConfig::client().roots(Pem::text(chain)).min_version(TlsVersion::V1_3).build()?;
/// let refused = TlsConfig::client().roots(Pem::text("no certificate")).build().unwrap_err();
/// assert!(refused.to_string().contains("roots"));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    common: Common,
    roots: Option<Pem>,
    identity: Option<(Pem, Pem)>,
    verify: bool,
}

impl ClientBuilder {
    pub(crate) fn new() -> Self {
        Self { common: Common::default(), roots: None, identity: None, verify: true }
    }

    common_options!();

    /// The authorities that are trusted, instead of the system's (`SSL_CERT_FILE`, or the bundle of the distribution).
    #[must_use]
    pub fn roots(mut self, bundle: Pem) -> Self {
        self.roots = Some(bundle);
        self
    }

    /// The certificate chain (leaf first, at most 64 KiB) and key for servers that ask for one.
    #[must_use]
    pub fn client_certificate(mut self, chain: Pem, key: Pem) -> Self {
        self.identity = Some((chain, key));
        self
    }

    /// Accepts any certificate of any name: anybody on the way can read and change everything. For tests.
    #[must_use]
    pub fn danger_accept_any_certificate(mut self) -> Self {
        self.verify = false;
        self
    }

    /// Reads the files, checks every option and makes the configuration.
    ///
    /// # Errors
    /// [`TlsError::Config`], which names the option.
    pub fn build(&self) -> io::Result<TlsConfig> {
        Ok(TlsConfig::new(self.live()?))
    }

    pub(crate) fn live(&self) -> Result<Live, TlsError> {
        let shared = Shared::new(&self.common)?;
        let roots = match (&self.roots, self.verify) {
            (Some(_), false) => {
                let reason = "excludes danger_accept_any_certificate: one of them has no effect";
                return Err(TlsError::config("roots", reason));
            }
            (None, false) => None,
            (Some(bundle), true) => Some(bundle.bundle("roots")?),
            (None, true) => Some(system_roots()?),
        };
        let identity = match &self.identity {
            None => None,
            Some((chain, key)) => Some((chain.chain("client_certificate")?, key.key("client_certificate")?)),
        };
        let sessions = self.common.resumption.then(Arc::<Sessions>::default);
        let context = shared.client(roots, identity, sessions.as_ref())?;
        Ok(Live {
            role: Role::Client { context, sessions, verify: self.verify },
            handshake_timeout: self.common.handshake_timeout,
            max_handshakes: self.common.max_handshakes,
            ktls: self.common.ktls,
        })
    }
}

fn system_roots() -> Result<Vec<X509>, TlsError> {
    if let Some(path) = std::env::var_os("SSL_CERT_FILE") {
        return Pem::path(path).bundle("roots");
    }
    match SYSTEM_ROOTS.into_iter().find(|path| Path::new(path).exists()) {
        Some(path) => Pem::path(path).bundle("roots"),
        None => {
            let reason = format!("this system has none of {}: give a bundle", SYSTEM_ROOTS.join(", "));
            Err(TlsError::config("roots", reason))
        }
    }
}
