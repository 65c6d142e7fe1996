//! A TLS terminator: every session is relayed as plain TCP to one address, with back-pressure; each side's end is passed on
//! by itself, close_notify for FIN and FIN for close_notify. A truncated session becomes a reset.

use clap::Parser;
use epoxide_samples::cli::{ServerArgs, host_and_port};
use epoxide_samples::upstream::Upstream;
use epoxide_samples::{https, relay, server};
use std::io;
use std::sync::Arc;

#[derive(Parser, Debug)]
#[command(about = "Terminates TLS and relays to another address in plain TCP.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    certs: https::CertArgs,
    /// Where to relay to, HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:8081", value_parser = host_and_port)]
    to: String,
}

fn main() -> io::Result<()> {
    let Args { server: args, certs, to } = Args::parse();
    let config = https::build(&certs.server())?;
    let hint = |addr| server::with_a_server_at(&to, certs.curl("", "localhost", addr));
    let far = Arc::new(Upstream::new("tls_proxy", to.clone()));
    https::run("tls_proxy", &args, config, hint, move |near| relay::on_to(near, far.clone()))
}
