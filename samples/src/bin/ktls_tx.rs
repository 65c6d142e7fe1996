//! `tls` with kernel TLS for what is sent (`modprobe tls`): received records are decrypted here.
//!
//! A kernel without TLS is no error: the standard error says so once, and everything is done here.

use clap::Parser;
use epoxide_samples::https;
use epoxide_tls::Ktls;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTPS request with a fixed body; the kernel encrypts.")]
struct Args {
    #[command(flatten)]
    common: https::TlsAnswerArgs,
}

fn main() -> io::Result<()> {
    https::run_answering("ktls_tx", &Args::parse().common, Ktls::Tx, https::answer_all)
}
