//! The server of `pipe` over TLS: the pipes do not know what carries them.

use clap::Parser;
use epoxide_pipes::Duplex;
use epoxide_samples::{http_pipe, https};
use epoxide_tls::Ktls;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTPS request with a fixed body, through a pipe reader and a pipe writer.")]
struct Args {
    #[command(flatten)]
    common: https::TlsAnswerArgs,
}

fn main() -> io::Result<()> {
    https::run_answering("tls_pipes", &Args::parse().common, Ktls::Off, |conn, answer| {
        http_pipe::answer_all(Duplex::new(conn), answer)
    })
}
