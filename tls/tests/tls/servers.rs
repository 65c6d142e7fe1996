//! Servers under test, and the handlers that they serve with.

use crate::certs::{Identity, authority};
use epoxide::Connection;
use epoxide_tests_e2e::{Case, Server, find_head_end, http_reply, loopback};
use epoxide_tls::{Ktls, ServerBuilder, TlsConfig, TlsConnection};
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// An authority and a server's identity for `localhost`.
pub(crate) struct World {
    pub(crate) authority: Identity,
    pub(crate) server: Identity,
}

impl World {
    pub(crate) fn new() -> Self {
        // A name of its own: two authorities of one name differ in their signatures only.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let authority = authority(&format!("tests {}", NUMBER.fetch_add(1, Ordering::Relaxed)));
        let server = authority.issue("localhost");
        Self { authority, server }
    }

    /// The options of a server with that identity.
    pub(crate) fn options(&self) -> ServerBuilder {
        TlsConfig::server(self.server.chain(), self.server.key()).ktls(ktls_of_run())
    }
}

/// `EPOXIDE_KTLS=tx` (or `txrx`) runs every test under kernel TLS that does not say otherwise: see `ci/ktls`.
pub(crate) fn ktls_of_run() -> Ktls {
    match std::env::var("EPOXIDE_KTLS").as_deref() {
        Ok("tx") => Ktls::Tx,
        Ok("txrx") => Ktls::TxRx,
        Ok(other) => panic!("EPOXIDE_KTLS={other}: tx, txrx, or unset"),
        Err(_) => Ktls::Off,
    }
}

/// "tls-ok" for every request, framed by its blank line.
pub(crate) async fn answer_requests(mut conn: TlsConnection) -> io::Result<()> {
    let reply = http_reply(200, b"tls-ok");
    let mut unparsed = Vec::new();
    while let Some(received) = conn.read_idle().await? {
        unparsed.extend_from_slice(&received);
        drop(received);
        let mut used = 0;
        while let Some(length) = find_head_end(&unparsed[used..]) {
            conn.stage(&reply)?;
            used += length;
        }
        unparsed.drain(..used);
        conn.flush().await?;
    }
    Ok(())
}

/// Sends back what it receives.
pub(crate) async fn echo(mut conn: TlsConnection) -> io::Result<()> {
    while let Some(received) = conn.read().await? {
        conn.stage(&received)?;
        drop(received);
        conn.flush().await?;
    }
    conn.shutdown().await
}

/// How every connection ended: the handshake's error, or what the handler returned.
pub(crate) type Ends = Receiver<io::Result<()>>;

/// A server with one reactor; handlers begin after the handshake.
pub(crate) fn serve<F, Fut>(case: &Case, config: &TlsConfig, handler: F) -> (Server, Ends)
where
    F: Fn(TlsConnection) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    serve_prepared(case, config, |_| {}, handler)
}

/// A server with the default options that hands its sessions out.
pub(crate) fn give_away(case: &Case, world: &World) -> (Server, Receiver<TlsConnection>) {
    let (give, given) = channel();
    let (server, _ends) = serve(case, &world.options().build().unwrap(), move |conn| {
        give.send(conn).unwrap();
        async { Ok(()) }
    });
    (server, given)
}

/// The same as [`serve`]; `prepare` sees each connection before the handshake.
pub(crate) fn serve_prepared<F, Fut>(
    case: &Case,
    config: &TlsConfig,
    prepare: impl Fn(&Connection) + Clone + Send + 'static,
    handler: F,
) -> (Server, Ends)
where
    F: Fn(TlsConnection) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = io::Result<()>> + 'static,
{
    let (tell, ends) = channel();
    let config = config.clone();
    let server = Server::start(case, move |builder| {
        builder.listen(loopback(), move |conn: Connection| {
            let (config, handler, tell) = (config.clone(), handler.clone(), tell.clone());
            prepare(&conn);
            async move {
                let end = match config.accept(conn).await {
                    Ok(conn) => handler(conn).await,
                    Err(error) => Err(error),
                };
                let _ = tell.send(end);
            }
        });
    });
    (server, ends)
}
