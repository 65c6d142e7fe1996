//! `axum_app` over TLS: HTTP/2 where the client offers it (ALPN), else HTTP/1.1; WebSockets over the latter.
//!
//! `ci/certs` makes the certificates. Ctrl-C drains: WebSockets are closed with 1001, sessions with a close_notify.

use clap::Parser;
use epoxide_pipes::HttpOptions;
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{axum_app, https, server};
use epoxide_tls::{TlsReadHalf, TlsWriteHalf, serve_https};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "An axum application over TLS, HTTP/1.1 and HTTP/2, without tokio's runtime.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    certs: https::CertArgs,
    #[command(flatten)]
    app: axum_app::AppArgs,
}

fn main() -> io::Result<()> {
    let Args { server, certs, app } = Args::parse();
    let tls = https::build(&certs.server().alpn(["h2", "http/1.1"]))?;
    let service = axum_app::service::<TlsReadHalf, TlsWriteHalf>(app);
    let hint = |addr: std::net::SocketAddr| {
        let also = axum_app::also(&format!("https://localhost:{}", addr.port()));
        format!("{}api/hello   {also}", certs.curl("", "localhost", addr))
    };
    server::run_saying("https_axum", &server, hint, |builder| {
        builder.listen(server.target(), move |connection| {
            serve_https(connection, tls.clone(), service.clone(), HttpOptions::default())
        });
    })
}
