//! `raw` over TLS: requests framed by their blank line, one fixed answer each, straight from the session.
//!
//! `ci/certs` makes the certificates. HTTP/1.1 is agreed on where a client asks (ALPN), tickets resume sessions.

use clap::Parser;
use epoxide_samples::{http, https};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTPS request with a fixed body, straight from the TLS session.")]
struct Args {
    #[command(flatten)]
    common: https::TlsAnswerArgs,
}

fn main() -> io::Result<()> {
    let Args { common } = Args::parse();
    let answer: &'static [u8] = http::answer(&common.answer.body)?;
    let config = https::build(&common.certs.server().alpn(["http/1.1"]))?;
    let hint = |addr| common.certs.curl("", "localhost", addr);
    https::run("tls", &common.answer.server, config, hint, move |conn| https::answer_all(conn, answer))
}
