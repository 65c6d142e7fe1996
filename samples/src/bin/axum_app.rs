//! An axum application without tokio's runtime: JSON, a streamed body, a WebSocket echo, and a page that uses them.
//!
//! Ctrl-C drains: WebSockets are closed with 1001. `https_axum` is the same over TLS.

use clap::Parser;
use epoxide::{ReadHalf, WriteHalf};
use epoxide_pipes::{HttpOptions, serve_http};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{axum_app, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "An axum application without tokio's runtime; open it in a browser.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    app: axum_app::AppArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let service = axum_app::service::<ReadHalf, WriteHalf>(args.app);
    let hint = |addr| format!("curl http://{addr}/api/hello   {}", axum_app::also(&format!("http://{addr}")));
    server::run_saying("axum_app", &args.server, hint, |builder| {
        builder.listen(args.server.target(), move |connection| {
            serve_http(connection, service.clone(), HttpOptions::default())
        });
    })
}
