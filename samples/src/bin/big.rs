//! A server of large answers: 100 KiB for every request, byte i of the body is i mod 251, so that a shift or a gap
//! anywhere shows.

use clap::Parser;
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{http, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request with a large body: byte i is i mod 251.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Bytes of the body, up to 8 MiB.
    #[arg(long, env = "PLAYGROUND_BODY", default_value_t = 100 * 1024, value_parser = clap::value_parser!(u32).range(..=8 << 20))]
    body: u32,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let body: Vec<u8> = (0..args.body).map(|i| (i % 251) as u8).collect();
    let answer: &'static [u8] = http::response("200 OK", &body).leak();
    server::run("big", &args.server, "/ --output big.bin", move |conn| {
        http::answer_all(conn, answer, http::HEAD_DEADLINE)
    })
}
