//! The smallest HTTP server: requests framed by their blank line, one fixed answer each.
//!
//! Two pipelined requests get two answers. A client that stalls in the middle of a head is closed after 30 s. Ctrl-C
//! drains: idle connections end at once, busy ones get their answer.

use clap::Parser;
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{http, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request with a fixed body, straight from the connection.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// The body: 'ok', a number of bytes, or 'bench' for the answer that the benchmark's peers give.
    #[arg(long, env = "PLAYGROUND_BODY", default_value = "ok")]
    body: String,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer: &'static [u8] = http::answer(&args.body)?;
    server::run("raw", &args.server, "/", move |conn| http::answer_all(conn, answer, http::HEAD_DEADLINE))
}
