//! A server's options.
//!
//! State: the options as given; files are read by `build`. Thread class: any thread.

use crate::config::{Live, Role, TlsConfig};
use crate::context::{HostParts, Shared, verify_mode};
use crate::error::TlsError;
use crate::hosts::{Entry, Host, Table, table_name};
use crate::options::{ClientAuth, Common, Versions, common_options};
use crate::pem::Pem;
use crate::tickets::TicketKeys;
use boring::sha::Sha256;
use boring::x509::X509;
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// The options of a server, from [`TlsConfig::server`]. Nothing is read or checked before [`build`](Self::build).
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// let (chain, key) = identity();
/// let builder = TlsConfig::server(Pem::text(chain), Pem::text(key)).alpn(["h2", "http/1.1"]);
/// let tls = builder.build()?;
/// let refused = builder.suites(["RC4-MD5"]).build().unwrap_err();
/// assert!(refused.to_string().contains("suites"));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    common: Common,
    default: Host,
    hosts: Vec<(String, Host)>,
}

/// Who made the tickets that may come back: kept over a reload that changes nothing about who is let in.
#[derive(Clone, Debug)]
pub(crate) struct Tickets {
    pub(crate) keys: Arc<TicketKeys>,
    /// A digest of every host's verification and versions.
    pub(crate) rules: [u8; 32],
}

impl ServerBuilder {
    pub(crate) fn new(chain: Pem, key: Pem) -> Self {
        Self { common: Common::default(), default: Host::new(chain, key), hosts: Vec::new() }
    }

    common_options!();

    /// A host with a certificate of its own: for clients that ask for `name` (SNI), in any case of its letters, also with a
    /// dot at its end. `*.name` is for any one label before it; an exact name wins. Clients that ask for no name or another one get the default
    /// certificate and the server's own options.
    ///
    /// A host decides who may connect under its name. What a client then asks for in HTTP's `Host` is for the handler to
    /// check, against [`TlsFacts::server_name`](crate::TlsFacts::server_name).
    #[must_use]
    pub fn host(mut self, name: impl Into<String>, host: Host) -> Self {
        self.hosts.push((name.into(), host));
        self
    }

    /// Asks clients for a certificate of one of these authorities; [`ClientAuth::Required`] refuses those without. No
    /// revocation is checked. Clients are told the authorities' names, which may have 60 KiB. Default: does not ask.
    #[must_use]
    pub fn client_auth(mut self, auth: ClientAuth, authorities: Pem) -> Self {
        self.default.auth = Some((auth, Some(authorities)));
        self
    }

    /// An OCSP response for the default certificate, DER, handed to clients that ask for it. Default: none.
    #[must_use]
    pub fn ocsp_staple(mut self, response: impl Into<Vec<u8>>) -> Self {
        self.default.staple = Some(response.into());
        self
    }

    /// Reads the files, checks every option and makes the configuration.
    ///
    /// # Errors
    /// [`TlsError::Config`], which names the option.
    pub fn build(&self) -> io::Result<TlsConfig> {
        Ok(TlsConfig::new(self.live(None)?))
    }

    /// `before`: the tickets of the build that this one replaces.
    pub(crate) fn live(&self, before: Option<&Tickets>) -> Result<Live, TlsError> {
        let shared = Shared::new(&self.common)?;
        let versions = shared.versions();
        let default = self.default.read("certificate", versions, None)?;
        let mut named: Vec<(String, HostParts, Option<Vec<u8>>)> = Vec::new();
        for (name, host) in &self.hosts {
            let name = table_name(name)?;
            if named.iter().any(|(other, ..)| *other == name) {
                return Err(TlsError::config("host", format!("`{name}` is there twice")));
            }
            let parts = host.read("host", versions, Some((&name, &default)))?;
            if let Some(mute) = [parts.versions.min, parts.versions.max].into_iter().find(|v| !shared.speaks(*v)) {
                return Err(TlsError::config("host", format!("`{name}`: {mute}: `suites` lists none of that version")));
            }
            named.push((name, parts, host.staple()?));
        }

        let mut rules = Sha256::new();
        rules.update(&default.session_id_context);
        // In the order of the names, not of the calls.
        let mut contexts: Vec<_> = named.iter().map(|(_, parts, _)| parts.session_id_context).collect();
        contexts.sort_unstable();
        contexts.iter().for_each(|context| rules.update(context));
        let tickets = if self.common.resumption { Some(tickets(rules.finish(), before)?) } else { None };
        let keys = tickets.as_ref().map(|tickets| &tickets.keys);

        let mut table = Table::new(self.default.staple()?);
        for (name, parts, staple) in named {
            let (verify, versions) = (verify_mode(parts.auth), parts.versions);
            let context = shared.server(parts, keys, None).map_err(|error| at_host(error, &name))?;
            table.insert(&name, Entry { context, verify, versions, staple });
        }
        let context = shared.server(default, keys, Some(table))?;
        Ok(Live {
            role: Role::Server { context, tickets },
            handshake_timeout: self.common.handshake_timeout,
            max_handshakes: self.common.max_handshakes,
            ktls: self.common.ktls,
        })
    }
}

/// Those of before, where the same clients are let in as before.
fn tickets(rules: [u8; 32], before: Option<&Tickets>) -> Result<Tickets, TlsError> {
    if let Some(before) = before.filter(|before| before.rules == rules) {
        return Ok(before.clone());
    }
    let keys = TicketKeys::new(Instant::now()).map_err(|error| TlsError::config("resumption", error))?;
    Ok(Tickets { keys: Arc::new(keys), rules })
}

/// Says which host an error is about.
fn at_host(error: TlsError, name: &str) -> TlsError {
    match error {
        TlsError::Config { reason, .. } => TlsError::config("host", format!("`{name}`: {reason}")),
        other => other,
    }
}

impl Host {
    /// Reads the files. A host without rules of its own has those of the default.
    fn read(
        &self,
        option: &'static str,
        versions: Versions,
        within: Option<(&str, &HostParts)>,
    ) -> Result<HostParts, TlsError> {
        let name = within.map_or("", |(name, _)| name);
        let named = |error| if within.is_some() { at_host(error, name) } else { error };
        let chain = self.chain.chain(option).map_err(named)?;
        let key = self.key.key(option).map_err(named)?;
        let (auth, authorities) = match (&self.auth, within) {
            (Some((auth, authorities)), _) => {
                let read = |pem: &Pem| pem.bundle("client_auth").map_err(named);
                (*auth, authorities.as_ref().map(read).transpose()?.unwrap_or_default())
            }
            (None, Some((_, default))) => (default.auth, default.authorities.clone()),
            (None, None) => (ClientAuth::Off, Vec::new()),
        };
        let versions =
            Versions { min: self.min_version.unwrap_or(versions.min), max: self.max_version.unwrap_or(versions.max) };
        if versions.min > versions.max {
            let reason = format!("`{name}`: {} is above {}", versions.min, versions.max);
            return Err(TlsError::config("host", reason));
        }
        let session_id_context = rules(name, auth, &authorities, versions).map_err(named)?;
        Ok(HostParts { chain, key, auth, authorities, versions, session_id_context })
    }

    fn staple(&self) -> Result<Option<Vec<u8>>, TlsError> {
        match &self.staple {
            Some(staple) if staple.is_empty() => Err(TlsError::config("ocsp_staple", "the response is empty")),
            staple => Ok(staple.clone()),
        }
    }
}

/// Who is let in at a host, as a session id context: 32 bytes, the most that there may be.
fn rules(name: &str, auth: ClientAuth, authorities: &[X509], versions: Versions) -> Result<[u8; 32], TlsError> {
    let mut digest = Sha256::new();
    digest.update(format!("{name}\n{auth:?}\n{versions:?}\n").as_bytes());
    let mut ders = Vec::new();
    for authority in authorities {
        ders.push(authority.to_der().map_err(|error| TlsError::config("client_auth", error))?);
    }
    ders.sort_unstable();
    ders.iter().for_each(|der| digest.update(der));
    Ok(digest.finish())
}
