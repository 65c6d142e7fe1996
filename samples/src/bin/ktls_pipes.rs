//! `tls_pipes` with kernel TLS both ways: the pipes do not know who encrypts.

use clap::Parser;
use epoxide_pipes::Duplex;
use epoxide_samples::{http_pipe, https};
use epoxide_tls::Ktls;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTPS request with a fixed body, through pipes over kernel TLS.")]
struct Args {
    #[command(flatten)]
    common: https::TlsAnswerArgs,
}

fn main() -> io::Result<()> {
    https::run_answering("ktls_pipes", &Args::parse().common, Ktls::TxRx, |conn, answer| {
        http_pipe::answer_all(Duplex::new(conn), answer)
    })
}
