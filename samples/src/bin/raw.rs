//! The smallest HTTP server: requests framed by their blank line, one fixed answer each.
//!
//! Two pipelined requests get two answers. A client that stalls in the middle of a head is closed after 30 s. Ctrl-C
//! drains: idle connections end at once, busy ones get their answer.

use clap::Parser;
use epoxide_samples::cli::AnswerArgs;
use epoxide_samples::{http, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request with a fixed body, straight from the connection.")]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer: &'static [u8] = http::answer(&args.common.body)?;
    server::run("raw", &args.common.server, "/", move |conn| http::answer_all(conn, answer, http::HEAD_DEADLINE))
}
