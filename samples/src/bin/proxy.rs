//! A TCP relay: every connection is connected on to one address, and each side's end is passed on by itself.
//!
//! With `--http` (feature `http`) it is a reverse proxy for HTTP/1 instead: requests go over connections that are kept.

use clap::Parser;
use epoxide_samples::cli::{ServerArgs, host_and_port};
use epoxide_samples::upstream::Upstream;
use epoxide_samples::{relay, server};
use std::io;
use std::sync::Arc;

#[derive(Parser, Debug)]
#[command(about = "Relays TCP connections to another address, with back-pressure and half-closes.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Where to relay to, HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:8081", value_parser = host_and_port)]
    to: String,
    /// HTTP instead of TCP: requests are passed on over pooled connections.
    #[cfg(feature = "http")]
    #[arg(long)]
    http: bool,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    #[cfg(feature = "http")]
    if args.http {
        return epoxide_samples::http_proxy::run("proxy", &args.server, args.to);
    }
    let to = Arc::new(Upstream::new("proxy", args.to.clone()));
    server::run_saying(
        "proxy",
        &args.server,
        |addr| server::with_a_server_at(&args.to, format!("curl http://{addr}/")),
        |server| {
            server.listen(args.server.target(), move |near| relay::on_to(near, to.clone()));
        },
    )
}
