//! `serve_https`: the handshake, then HTTP in the version that it agreed on.
//!
//! Job: from what the handshake agreed on (ALPN) to the options of `serve_http`, which does the rest. State: none. Thread
//! class: any thread, one task. Laws kept: 6, 16, by what it calls.

use crate::config::TlsConfig;
use crate::connection::TlsConnection;
use crate::facts::TlsFacts;
use epoxide::{CloseReason, Connection};
use epoxide_pipes::{HttpOptions, HttpVersions, serve_http, serve_http_send};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Request, Response};
use std::error::Error;
use std::io;

type BoxError = Box<dyn Error + Send + Sync>;

/// Shakes hands as a server, then serves HTTP in the version that was agreed on (ALPN): `h2` is HTTP/2, `http/1.1` and no
/// protocol at all are HTTP/1. Offer them by `.alpn(["h2", "http/1.1"])`.
///
/// Everything else is as in [`serve_http`]: limits and clocks, of which those of a head begin
/// behind the handshake, the drain, and upgrades (the stream is an
/// [`upgraded_stream::<TlsReadHalf, TlsWriteHalf>`](epoxide_pipes::upgraded_stream)). The session ends with a close_notify.
///
/// ```no_run
/// # async fn answer(_: hyper::Request<hyper::body::Incoming>) -> Result<hyper::Response<String>, std::io::Error> {
/// #     Ok(hyper::Response::new(String::new()))
/// # }
/// use epoxide_pipes::HttpOptions;
/// use epoxide_tls::{Pem, TlsConfig, serve_https};
///
/// # fn main() -> std::io::Result<()> {
/// let chain = Pem::path("chain.pem");
/// let tls = TlsConfig::server(chain, Pem::path("key.pem")).alpn(["h2", "http/1.1"]).build()?;
/// let mut server = epoxide::Runtime::builder();
/// server.listen("127.0.0.1:8443", move |connection| {
///     serve_https(connection, tls.clone(), hyper::service::service_fn(answer), HttpOptions::default())
/// });
/// server.run()
/// # }
/// ```
///
/// A service that is to know who asks (a client's certificate, the server's name) shakes hands itself and then serves:
/// `let conn = tls.accept(connection).await?;`, `let options = conn.facts().http_options(options)?;` and
/// `serve_http(conn, service, options).await`.
///
/// # Errors
/// Those of [`TlsConfig::accept`] and of [`TlsFacts::http_options`], then those of
/// [`serve_http`]. A drain before the client's first byte is none.
///
/// # Panics
/// When the service does: over HTTP/1 that resets the connection; over HTTP/2 it ends the stream alone.
///
/// # Cancel safety
/// Dropping the future ends the connection, in the middle of an answer too.
pub async fn serve_https<S, B>(
    connection: Connection,
    tls: TlsConfig,
    service: S,
    options: HttpOptions,
) -> io::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    match shake(connection, tls, options).await? {
        Some((connection, options)) => serve_http(connection, service, options).await,
        None => Ok(()),
    }
}

/// [`serve_https`] for services whose futures and bodies are `Send`, on every thread: see
/// [`serve_http_send`].
///
/// # Errors
/// As [`serve_https`].
///
/// # Panics
/// As [`serve_https`].
///
/// # Cancel safety
/// As [`serve_https`].
pub async fn serve_https_send<S, B>(
    connection: Connection,
    tls: TlsConfig,
    service: S,
    options: HttpOptions,
) -> io::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    match shake(connection, tls, options).await? {
        Some((connection, options)) => serve_http_send(connection, service, options).await,
        None => Ok(()),
    }
}

/// `None`: the drain came before the client's first byte, so nobody asked for anything.
async fn shake(
    connection: Connection,
    tls: TlsConfig,
    options: HttpOptions,
) -> io::Result<Option<(TlsConnection, HttpOptions)>> {
    match tls.accept(connection).await {
        Ok(connection) => {
            let options = connection.facts().http_options(options)?;
            Ok(Some((connection, options)))
        }
        Err(error) if CloseReason::of(&error) == Some(CloseReason::Draining) => Ok(None),
        Err(error) => Err(error),
    }
}

impl TlsFacts {
    /// `options` for the version of HTTP that was agreed on: `h2` is HTTP/2; `http/1.1`, `http/1.0` and no protocol at all
    /// are HTTP/1, for HTTP/2 over TLS is always agreed on (RFC 9113, section 3.2).
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] when another protocol was agreed on, or a version that `options` exclude.
    pub fn http_options(&self, options: HttpOptions) -> io::Result<HttpOptions> {
        let agreed = match self.alpn() {
            Some(b"h2") => HttpVersions::Http2,
            Some(b"http/1.1" | b"http/1.0") | None => HttpVersions::Http1,
            Some(other) => {
                let text = format!("the client and `alpn` agreed on `{}`, which is no HTTP", other.escape_ascii());
                return Err(io::Error::new(io::ErrorKind::Unsupported, text));
            }
        };
        if options.versions() == HttpVersions::Auto || options.versions() == agreed {
            return Ok(options.with_versions(agreed));
        }
        let name = self.alpn().map_or_else(|| "no protocol".to_owned(), |name| format!("`{}`", name.escape_ascii()));
        let text = format!(
            "the client and `alpn` agreed on {name}, which is {agreed:?}, and `versions` of HttpOptions allow {:?} only",
            options.versions()
        );
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }
}
