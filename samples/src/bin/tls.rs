//! `raw` over TLS: requests framed by their blank line, one fixed answer each, straight from the session.
//!
//! `ci/certs` makes the certificates. HTTP/1.1 is agreed on where a client asks (ALPN), tickets resume sessions.

use clap::Parser;
use epoxide_samples::https;
use epoxide_tls::Ktls;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTPS request with a fixed body, straight from the TLS session.")]
struct Args {
    #[command(flatten)]
    common: https::TlsAnswerArgs,
}

fn main() -> io::Result<()> {
    https::run_answering("tls", &Args::parse().common, Ktls::Off, https::answer_all)
}
