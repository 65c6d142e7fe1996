//! BoringSSL contexts from checked options.
//!
//! Job: one function for what all contexts have, one for servers, one for clients; so hosts of a table cannot drift apart.
//! State: none; a context is immutable once built. Thread class: any thread.

use crate::error::{TlsError, words};
use crate::ktls::{Ktls, heard};
use crate::options::{Checked, ClientAuth, Common, TlsVersion, Versions};
use crate::resume::Sessions;
use crate::tickets::TicketKeys;
use crate::{ffi, hosts};
use boring::error::ErrorStack;
use boring::ex_data::Index;
use boring::pkey::{PKey, Private};
use boring::ssl::{
    AlpnError, SelectCertError, Ssl, SslContext, SslContextBuilder, SslMethod, SslOptions, SslSessionCacheMode,
    SslVerifyMode,
};
use boring::x509::X509;
use boring::x509::store::{X509Store, X509StoreBuilder};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// A host of a server, read and checked.
pub(crate) struct HostParts {
    pub(crate) chain: Vec<X509>,
    pub(crate) key: PKey<Private>,
    pub(crate) auth: ClientAuth,
    pub(crate) authorities: Vec<X509>,
    pub(crate) versions: Versions,
    /// Tells this host's sessions from those of others, and of other rules for who is let in.
    pub(crate) session_id_context: [u8; 32],
}

/// What all contexts of one build share.
pub(crate) struct Shared {
    checked: Checked,
    key_log: Option<Arc<Mutex<File>>>,
    /// The kernel is to know the secrets.
    ktls: bool,
}

impl Shared {
    pub(crate) fn new(common: &Common) -> Result<Self, TlsError> {
        let checked = common.check()?;
        let key_log = match &common.key_log {
            None => None,
            Some(path) => {
                // For its owner alone, whatever the umask says.
                let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
                let refuse = |error| TlsError::config("key_log", format!("{}: {error}", path.display()));
                Some(Arc::new(Mutex::new(file.map_err(refuse)?)))
            }
        };
        Ok(Self { checked, key_log, ktls: common.ktls != Ktls::Off })
    }

    pub(crate) fn versions(&self) -> Versions {
        self.checked.versions
    }

    /// Is there a suite of this version?
    pub(crate) fn speaks(&self, version: TlsVersion) -> bool {
        self.checked.speaks(version)
    }

    fn builder(&self, versions: Versions) -> Result<SslContextBuilder, TlsError> {
        let mut context = SslContextBuilder::new(SslMethod::tls()).map_err(|error| refused("context", &error))?;
        set_versions(&mut context, versions).map_err(|error| refused("min_version", &error))?;
        if !self.checked.tls12.is_empty() {
            context.set_strict_cipher_list(&self.checked.tls12).map_err(|error| refused("suites", &error))?;
        }
        if let Some(suites) = self.checked.tls13.as_deref().filter(|suites| !suites.is_empty())
            && !ffi::set_tls13_suites(&mut context, suites)
        {
            return Err(TlsError::config("suites", format!("BoringSSL refuses the TLS 1.3 suites {suites:x?}")));
        }
        let ktls = self.ktls;
        if self.key_log.is_some() || ktls {
            let file = self.key_log.clone();
            context.set_keylog_callback(move |ssl, line| {
                if ktls {
                    heard::key_line(ssl, line);
                }
                let Some(file) = &file else { return };
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                // A full disk must not end connections; the log is for looking at.
                let _ = file.write_all(format!("{line}\n").as_bytes());
            });
        }
        Ok(context)
    }

    /// The context of one host; `table` for the default one, which the others are looked up in.
    pub(crate) fn server(
        &self,
        host: HostParts,
        keys: Option<&Arc<TicketKeys>>,
        table: Option<hosts::Table>,
    ) -> Result<SslContext, TlsError> {
        if host.versions.max == TlsVersion::V1_2 && !self.checked.has_suite_for(&host.key) {
            let reason =
                format!("`{}`: none works with the certificate's key, and only TLS 1.2 is spoken", self.checked.tls12);
            return Err(TlsError::config("suites", reason));
        }
        let mut context = self.builder(host.versions)?;
        set_identity(&mut context, host.chain, &host.key, "certificate")?;
        context.set_options(SslOptions::CIPHER_SERVER_PREFERENCE);
        // Sessions are in the tickets; nothing is kept here.
        context.set_session_cache_mode(SslSessionCacheMode::OFF);
        context.set_session_id_context(&host.session_id_context).map_err(|error| refused("resumption", &error))?;
        match keys {
            Some(keys) => ffi::set_ticket_keys(&mut context, keys.clone()),
            None => {
                context.set_options(SslOptions::NO_TICKET);
            }
        }
        context.set_verify(verify_mode(host.auth));
        if host.auth != ClientAuth::Off {
            check_names(&host.authorities)?;
            for authority in &host.authorities {
                context.add_client_ca(authority).map_err(|error| refused("client_auth", &error))?;
            }
            let store = store(host.authorities).map_err(|error| refused("client_auth", &error))?;
            context.set_verify_cert_store(store).map_err(|error| refused("client_auth", &error))?;
        }
        if !self.checked.alpn.is_empty() {
            let ours = self.checked.alpn.clone();
            context.set_alpn_select_callback(move |_, theirs| {
                // This side's order decides. What comes out must be a part of what the client offered.
                let common = entries(&ours).find_map(|name| entries(theirs).find(|offered| *offered == name));
                common.ok_or(AlpnError::NOACK)
            });
        }
        if let Some(table) = table {
            context.set_select_certificate_callback(move |mut hello| {
                table.apply(hello.ssl_mut()).map_err(|_| SelectCertError::ERROR)
            });
        }
        Ok(context.build())
    }

    /// The context of a client. `roots`: `None` verifies nothing.
    pub(crate) fn client(
        &self,
        roots: Option<Vec<X509>>,
        identity: Option<(Vec<X509>, PKey<Private>)>,
        sessions: Option<&Arc<Sessions>>,
    ) -> Result<SslContext, TlsError> {
        let mut context = self.builder(self.checked.versions)?;
        match roots {
            None => context.set_verify(SslVerifyMode::NONE),
            Some(roots) => {
                context.set_verify(SslVerifyMode::PEER);
                let store = store(roots).map_err(|error| refused("roots", &error))?;
                context.set_verify_cert_store(store).map_err(|error| refused("roots", &error))?;
            }
        }
        if let Some((chain, key)) = identity {
            set_identity(&mut context, chain, &key, "client_certificate")?;
        }
        if !self.checked.alpn.is_empty() {
            context.set_alpn_protos(&self.checked.alpn).map_err(|error| refused("alpn", &error))?;
        }
        match sessions.cloned() {
            None => {
                context.set_options(SslOptions::NO_TICKET);
            }
            Some(sessions) => {
                context.set_session_cache_mode(SslSessionCacheMode::CLIENT | SslSessionCacheMode::NO_INTERNAL);
                context.set_new_session_callback(move |ssl, session| {
                    if let Some(host) = host_index().and_then(|index| ssl.ex_data(index)) {
                        sessions.put(host, session);
                    }
                });
            }
        }
        Ok(context.build())
    }
}

/// Where a client's session keeps the name of its host.
pub(crate) fn host_index() -> Option<Index<Ssl, Box<str>>> {
    static INDEX: LazyLock<Option<Index<Ssl, Box<str>>>> = LazyLock::new(|| Ssl::new_ex_index().ok());
    *INDEX
}

pub(crate) fn verify_mode(auth: ClientAuth) -> SslVerifyMode {
    match auth {
        ClientAuth::Off => SslVerifyMode::NONE,
        ClientAuth::Optional => SslVerifyMode::PEER,
        ClientAuth::Required => SslVerifyMode::PEER | SslVerifyMode::FAIL_IF_NO_PEER_CERT,
    }
}

fn set_versions(context: &mut SslContextBuilder, versions: Versions) -> Result<(), ErrorStack> {
    context.set_min_proto_version(Some(versions.min.wire()))?;
    context.set_max_proto_version(Some(versions.max.wire()))
}

/// Certificate chain and key; they must belong together.
fn set_identity(
    context: &mut SslContextBuilder,
    chain: Vec<X509>,
    key: &PKey<Private>,
    option: &'static str,
) -> Result<(), TlsError> {
    let refuse = |error| refused(option, &error);
    let mut chain = chain.into_iter();
    if let Some(leaf) = chain.next() {
        context.set_certificate(&leaf).map_err(refuse)?;
    }
    for issuer in chain {
        context.add_extra_chain_cert(issuer).map_err(refuse)?;
    }
    context.set_private_key(key).map_err(refuse)?;
    context.check_private_key().map_err(refuse)
}

/// Names of authorities that clients are told: they go into one extension of 64 KiB, beside others.
const MAX_NAMES: usize = 60 * 1024;

/// A server that asks for certificates says whose (RFC 8446, 4.2.4): with more names than fit no handshake would succeed.
fn check_names(authorities: &[X509]) -> Result<(), TlsError> {
    let mut bytes = 0;
    for authority in authorities {
        bytes += 2 + authority.subject_name().to_der().map_err(|error| refused("client_auth", &error))?.len();
    }
    if bytes > MAX_NAMES {
        let n = authorities.len();
        let reason =
            format!("the names of {n} authorities have {bytes} bytes and are told to clients: at most {MAX_NAMES}");
        return Err(TlsError::config("client_auth", reason));
    }
    Ok(())
}

fn store(authorities: Vec<X509>) -> Result<X509Store, ErrorStack> {
    let mut store = X509StoreBuilder::new()?;
    for authority in authorities {
        store.add_cert(authority)?;
    }
    Ok(store.build())
}

/// The names in a list of protocols, as BoringSSL has checked it.
fn entries(mut wire: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (len, rest) = wire.split_first()?;
        let (name, rest) = rest.split_at_checked(usize::from(*len))?;
        wire = rest;
        Some(name)
    })
}

fn refused(option: &'static str, error: &ErrorStack) -> TlsError {
    TlsError::config(option, words(error))
}
