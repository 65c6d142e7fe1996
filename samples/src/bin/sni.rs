//! Three certificates on one port: which one a client gets is decided by the name that it asks for.

use clap::Parser;
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{http, https};
use epoxide_tls::Host;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Serves a.localhost, b.localhost and, to everybody else, localhost; each answer names its host.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    certs: https::CertArgs,
}

fn main() -> io::Result<()> {
    let Args { server, certs } = Args::parse();
    let host = |name: &str| Host::new(certs.pem(&format!("{name}.pem")), certs.pem(&format!("{name}.key")));
    let options = certs.server().host("a.localhost", host("a.localhost")).host("b.localhost", host("b.localhost"));
    let config = https::build(&options)?;
    let hint = |addr| certs.curl("", "a.localhost", addr);
    https::run("sni", &server, config, hint, |conn| async move {
        let name = conn.facts().server_name().unwrap_or("no name").to_owned();
        https::answer_all(conn, &http::response("200 OK", format!("you asked for {name}\n").as_bytes())).await
    })
}
