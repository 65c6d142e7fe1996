//! The server of `raw` on pipes: one view over what was received, consumed head by head.

use clap::Parser;
use epoxide_pipes::Duplex;
use epoxide_samples::cli::AnswerArgs;
use epoxide_samples::{http, http_pipe, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request with a fixed body, through a pipe reader and a pipe writer.")]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer: &'static [u8] = http::answer(&args.common.body)?;
    server::run("pipe", &args.common.server, "/", move |conn| {
        http_pipe::answer_all(Duplex::new(conn), answer, http::HEAD_DEADLINE)
    })
}
