//! HTTP/1 by hyper on connections: one fixed answer, and an echo.
//!
//! `/` gives the body, `/echo` what it was sent. Ctrl-C drains: idle connections end at once, busy ones finish.

use bytes::Bytes;
use clap::Parser;
use epoxide_pipes::{HttpOptions, HttpVersions};
use epoxide_samples::cli::AnswerArgs;
use epoxide_samples::{http, hyper_answers, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers HTTP/1 with a fixed body (/) or with what it was sent (/echo), by hyper.")]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let body = Bytes::from(http::body(&args.common.body)?);
    let options = HttpOptions::builder().versions(HttpVersions::Http1).build()?;
    server::run("http1", &args.common.server, "/echo -d hello", move |conn| {
        hyper_answers::serve(conn, body.clone(), options)
    })
}
