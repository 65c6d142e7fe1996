//! An HTTP/1 reverse proxy: every request goes to one server behind, over connections that are kept.
//!
//! Each reactor has a client with a pool of its own. Ctrl-C drains.

use clap::Parser;
use epoxide_pipes::{ClientOptions, HttpClient};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{http_proxy, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Passes every HTTP request on to another server, over pooled connections.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// The server behind, as HOST:PORT.
    #[arg(long)]
    upstream: String,
}

fn main() -> io::Result<()> {
    let Args { server: args, upstream } = Args::parse();
    server::run_built("http_proxy", &args, "/", |server| {
        server.listen_with(args.target(), move |reactor| {
            let upstream = upstream.clone();
            let client = HttpClient::new(reactor.clone(), ClientOptions::default()).expect("the defaults work");
            move |connection| http_proxy::serve(connection, client.clone(), upstream.clone())
        });
    })
}
