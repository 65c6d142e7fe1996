//! [`TlsConfig`]: what connections are secured with, shared by all threads.
//!
//! State: the build in force, behind a mutex held to clone an `Arc`; counts. Who touches it: handshakes at their start,
//! reloads. Thread class: any thread. Laws: 16 (`max_handshakes`, counted).

use crate::client::ClientBuilder;
use crate::connection::TlsConnection;
use crate::context::host_index;
use crate::error::{TlsError, words};
use crate::ffi;
use crate::handshake::Handshake;
use crate::ktls::{Ktls, Uses, heard};
use crate::pem::Pem;
use crate::resume::{self, Sessions};
use crate::server::{ServerBuilder, Tickets};
use boring::error::ErrorStack;
use boring::ssl::{Ssl, SslContext};
use boring::x509::verify::X509CheckFlags;
use epoxide::{ConnectAddr, Connection};
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What connections are secured with, on the server's or on the client's side. Cheap to clone; clones share reloads, limits
/// and counts. Use one for all reactors.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// let (chain, key) = identity();
/// let tls = TlsConfig::server(Pem::text(chain), Pem::text(key)).build()?;
/// let (chain, key) = identity(); // a new certificate
/// tls.reload(&TlsConfig::server(Pem::text(chain), Pem::text(key)))?; // for handshakes from now on
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct TlsConfig {
    shared: Arc<Shared>,
}

struct Shared {
    live: Mutex<Arc<Live>>,
    under_way: AtomicUsize,
    refused: AtomicU64,
    uses: Uses,
}

/// One build: immutable, kept by the sessions that began under it.
pub(crate) struct Live {
    pub(crate) role: Role,
    pub(crate) handshake_timeout: Duration,
    pub(crate) max_handshakes: usize,
    pub(crate) ktls: Ktls,
}

pub(crate) enum Role {
    Server { context: SslContext, tickets: Option<Tickets> },
    Client { context: SslContext, sessions: Option<Arc<Sessions>>, verify: bool },
}

impl Live {
    /// Before a handshake: is the kernel to have the keys? Then BoringSSL tells them.
    fn listen(&self, ssl: &mut Ssl) -> Ktls {
        if self.ktls != Ktls::Off {
            heard::listen(ssl);
        }
        self.ktls
    }
}

/// A place among the handshakes under way, given back when dropped.
pub(crate) struct Place(Arc<Shared>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Place {
    /// The counts of kernel TLS.
    pub(crate) fn uses(&self) -> &Uses {
        &self.0.uses
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.live().role {
            Role::Server { .. } => "server",
            Role::Client { .. } => "client",
        };
        f.debug_struct("TlsConfig").field("role", &role).finish_non_exhaustive()
    }
}

impl TlsConfig {
    /// The options of a server with this certificate chain (leaf first, at most 64 KiB) and this private key.
    pub fn server(chain: Pem, key: Pem) -> ServerBuilder {
        ServerBuilder::new(chain, key)
    }

    /// The options of a client. By default it verifies the server's certificate against the system's roots, and its name.
    pub fn client() -> ClientBuilder {
        ClientBuilder::new()
    }

    pub(crate) fn new(live: Live) -> Self {
        let live = Mutex::new(Arc::new(live));
        let shared = Shared { live, under_way: AtomicUsize::new(0), refused: AtomicU64::new(0), uses: Uses::default() };
        Self { shared: Arc::new(shared) }
    }

    fn live(&self) -> Arc<Live> {
        self.shared.live.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces a server's options, files read anew. Connections keep what they agreed on, also a handshake under way; later
    /// ones get the new. All of it or nothing: an error leaves the old in force.
    ///
    /// Tickets stay good unless who is let in has changed: a client authority, a host's rules, a version. Then the ticket
    /// keys and the session id contexts are new, and every client makes a full handshake.
    ///
    /// # Errors
    /// [`TlsError::Config`]; also when this is a client's configuration.
    pub fn reload(&self, options: &ServerBuilder) -> io::Result<()> {
        let before = self.live();
        let Role::Server { tickets, .. } = &before.role else {
            return Err(TlsError::config("reload", "this is a client's configuration: use reload_client").into());
        };
        self.replace(options.live(tickets.as_ref())?);
        Ok(())
    }

    /// Replaces a client's options, files read anew; as [`reload`](Self::reload). Sessions to resume are forgotten.
    ///
    /// # Errors
    /// [`TlsError::Config`]; also when this is a server's configuration.
    pub fn reload_client(&self, options: &ClientBuilder) -> io::Result<()> {
        let Role::Client { .. } = &self.live().role else {
            return Err(TlsError::config("reload_client", "this is a server's configuration: use reload").into());
        };
        self.replace(options.live()?);
        Ok(())
    }

    fn replace(&self, live: Live) {
        let old =
            std::mem::replace(&mut *self.shared.live.lock().unwrap_or_else(PoisonError::into_inner), Arc::new(live));
        drop(old);
    }

    /// Makes the server's side of a handshake on an accepted connection. Nothing may have been read or staged before.
    ///
    /// Whoever awaits the future makes the handshake, on its thread. It has `handshake_timeout`, as the connection's
    /// deadline, and on a reactor takes one of the 32 steps that all handshakes may make in one pass.
    ///
    /// # Errors
    /// The future's: [`TlsError`], or why the connection ended. A fatal alert goes out before it is reported.
    ///
    /// # Cancel safety
    /// Dropping the future lets the connection go.
    pub fn accept(&self, conn: Connection) -> Handshake {
        let live = self.live();
        let Role::Server { context, .. } = &live.role else {
            return Handshake::failed(conn, TlsError::config("accept", "this is a client's configuration"));
        };
        let Some(place) = self.place(&live) else { return Handshake::refused(conn, live.max_handshakes) };
        match Ssl::new(context) {
            Ok(mut ssl) => {
                let ktls = live.listen(&mut ssl);
                Handshake::accept(conn, ssl, place, live.handshake_timeout, ktls)
            }
            Err(error) => Handshake::failed(conn, TlsError::Handshake { reason: words(&error) }),
        }
    }

    /// Makes the client's side of a handshake on a connection. `host` is the name that the server is asked for (SNI) and
    /// that its certificate must have; an IP address is not asked for, but must be in the certificate.
    ///
    /// # Errors
    /// As [`accept`](Self::accept).
    ///
    /// # Cancel safety
    /// Dropping the future lets the connection go.
    pub fn connect_over(&self, conn: Connection, host: &str) -> Handshake {
        let live = self.live();
        let Role::Client { context, sessions, verify } = &live.role else {
            return Handshake::failed(conn, TlsError::config("connect", "this is a server's configuration"));
        };
        let Some(place) = self.place(&live) else { return Handshake::refused(conn, live.max_handshakes) };
        match client_session(context, sessions.as_ref(), *verify, host) {
            Ok(mut ssl) => {
                let ktls = live.listen(&mut ssl);
                Handshake::connect(conn, ssl, place, live.handshake_timeout, ktls)
            }
            Err(error) => {
                let reason = format!("`{host}` is no host name: {}", words(&error));
                Handshake::failed(conn, TlsError::config("connect", reason))
            }
        }
    }

    /// Connects to `addr` and makes the client's side of a handshake; see [`connect_over`](Self::connect_over).
    ///
    /// # Errors
    /// Those of [`epoxide::connect`], then those of the handshake.
    ///
    /// # Cancel safety
    /// Dropping the future lets the connection go.
    pub async fn connect(&self, addr: impl Into<ConnectAddr>, host: &str) -> io::Result<TlsConnection> {
        let conn = epoxide::connect(addr).await?;
        self.connect_over(conn, host).await
    }

    /// Handshakes under way.
    pub fn handshakes(&self) -> usize {
        self.shared.under_way.load(Ordering::Relaxed)
    }

    /// Connections that were reset because `max_handshakes` were under way.
    pub fn refused_handshakes(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Sessions for which the kernel does all that it was asked for ([`Ktls`]), in all.
    pub fn ktls_sessions(&self) -> u64 {
        self.shared.uses.kernel.load(Ordering::Relaxed)
    }

    /// Sessions for which the kernel was asked in vain, for one direction or both: this process does it. In all.
    pub fn ktls_fallbacks(&self) -> u64 {
        self.shared.uses.fallbacks.load(Ordering::Relaxed)
    }

    fn place(&self, live: &Live) -> Option<Place> {
        let below = |n: usize| (n < live.max_handshakes).then_some(n + 1);
        if self.shared.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, below).is_err() {
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(Place(self.shared.clone()))
    }
}

/// A client's session, before its handshake.
fn client_session(
    context: &SslContext,
    sessions: Option<&Arc<Sessions>>,
    verify: bool,
    host: &str,
) -> Result<Ssl, ErrorStack> {
    let mut ssl = Ssl::new(context)?;
    let ip: Option<IpAddr> = host.parse().ok();
    if ip.is_none() {
        ssl.set_hostname(host)?;
    }
    if verify {
        let param = ssl.param_mut();
        // A name in the subject is none (RFC 9525, 2).
        param.set_hostflags(X509CheckFlags::NO_PARTIAL_WILDCARDS | X509CheckFlags::NEVER_CHECK_SUBJECT);
        match ip {
            Some(ip) => param.set_ip(ip)?,
            None => param.set_host(host)?,
        }
    }
    if let (Some(sessions), Some(index)) = (sessions, host_index()) {
        ssl.set_ex_data(index, host.into());
        resume::keep(&mut ssl, sessions.clone());
        if let Some(session) = sessions.take(host) {
            ffi::resume(&mut ssl, &session)?;
        }
    }
    Ok(ssl)
}
