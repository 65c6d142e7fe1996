//! Client certificates: known clients are greeted by name, anonymous ones are answered 403 or not let in at all.

use clap::Parser;
use epoxide_samples::https;
use epoxide_tls::Ktls;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Greets clients by the name in their certificate; one without gets 403.")]
struct Args {
    #[command(flatten)]
    common: https::GreetArgs,
}

fn main() -> io::Result<()> {
    https::run_greeting("mtls", &Args::parse().common, Ktls::Off)
}
