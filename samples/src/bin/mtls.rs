//! Client certificates: known clients are greeted by name, anonymous ones are answered 403 or not let in at all.

use clap::Parser;
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{http, https};
use epoxide_tls::ClientAuth;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Greets clients by the name in their certificate; one without gets 403.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    certs: https::CertArgs,
    /// Refuses clients without a certificate in the handshake.
    #[arg(long)]
    require: bool,
}

fn main() -> io::Result<()> {
    let Args { server, certs, require } = Args::parse();
    let auth = if require { ClientAuth::Required } else { ClientAuth::Optional };
    let config = https::build(&certs.server().client_auth(auth, certs.pem("ca.pem")))?;
    let client = |name| certs.certs.join(name).display().to_string();
    let identity = format!("--cert {} --key {} ", client("alice.pem"), client("alice.key"));
    let hint = |addr| certs.curl(&identity, "localhost", addr);
    https::run("mtls", &server, config, hint, |conn| async move {
        let answer = match (conn.facts().peer_certificate(), conn.facts().peer_common_name()) {
            (None, _) => http::response("403 Forbidden", b"show a certificate\n"),
            (Some(_), name) => {
                http::response("200 OK", format!("hello {}\n", name.unwrap_or("you without a name")).as_bytes())
            }
        };
        https::answer_all(conn, &answer).await
    })
}
