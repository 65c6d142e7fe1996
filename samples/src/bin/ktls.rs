//! `tls` with kernel TLS both ways (`modprobe tls`): after the handshake a read is a plain recv(2), a flush a plain send(2).
//!
//! A kernel without TLS is no error: the standard error says so once, and everything is done here.

use clap::Parser;
use epoxide_samples::https;
use epoxide_tls::Ktls;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTPS request with a fixed body; the kernel decrypts and encrypts.")]
struct Args {
    #[command(flatten)]
    common: https::TlsAnswerArgs,
}

fn main() -> io::Result<()> {
    https::run_answering("ktls", &Args::parse().common, Ktls::TxRx, https::answer_all)
}
