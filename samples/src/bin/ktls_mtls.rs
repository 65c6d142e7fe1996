//! `mtls` with kernel TLS both ways: who is let in is decided in the handshake, which is made here; the rest is the kernel's.

use clap::Parser;
use epoxide_samples::https;
use epoxide_tls::Ktls;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Greets clients by the name in their certificate, over kernel TLS; one without gets 403.")]
struct Args {
    #[command(flatten)]
    common: https::GreetArgs,
}

fn main() -> io::Result<()> {
    https::run_greeting("ktls_mtls", &Args::parse().common, Ktls::TxRx)
}
