//! HTTP/1 and HTTP/2 by hyper on one port: the version is told by how the connection begins.
//!
//! `/` gives the body, `/echo` what it was sent. Ctrl-C drains: HTTP/2 clients are told GOAWAY, their open streams finish.

use bytes::Bytes;
use clap::Parser;
use epoxide_pipes::HttpOptions;
use epoxide_samples::cli::AnswerArgs;
use epoxide_samples::{http, hyper_answers, server};
use std::io;

#[derive(Parser, Debug)]
#[command(
    about = "Answers HTTP/1 and HTTP/2 (prior knowledge) with a fixed body (/) or with what it was sent (/echo)."
)]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let body = Bytes::from(http::body(&args.common.body)?);
    let options = HttpOptions::default();
    server::run("http2", &args.common.server, "/echo -d hello --http2-prior-knowledge", move |conn| {
        hyper_answers::serve(conn, body.clone(), options)
    })
}
