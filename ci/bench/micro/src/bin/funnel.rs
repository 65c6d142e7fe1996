//! The sample `threadpool` with every read and every flush posted to the connection's reactor: what B4 compares with. The
//! same code otherwise.
//!
//! State: none. Thread class: a worker's task, and one of the reactor for each operation.

use clap::Parser;
use epoxide::{Connection, workers};
use epoxide_samples::cli::{AnswerArgs, WorkerArgs};
use epoxide_samples::http::{self, Framing};
use epoxide_samples::server;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request from the worker pool, with each read and flush posted to the reactor.")]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
    #[command(flatten)]
    workers: WorkerArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer = http::answer(&args.common.body)?;
    let set_up = |server: &mut epoxide::Builder| args.workers.set_up(server);
    server::run_with("funnel", &args.common.server, "/", set_up, move |conn| async move {
        workers::spawn(answer_all(conn, answer)).detach();
        io::Result::Ok(())
    })
}

async fn answer_all(mut conn: Connection, answer: &'static [u8]) -> io::Result<()> {
    let reactor = conn.reactor();
    let mut framing = Framing::default();
    loop {
        let post = reactor.spawn(async move {
            let data = framing.read(&mut conn).await;
            (conn, framing, data)
        });
        let data;
        (conn, framing, data) = post.map_err(io::Error::other)?.await?;
        let Some(data) = data? else { return Ok(()) };
        let Some(requests) = framing.feed(&conn, &data) else { return conn.send_all(http::TOO_LARGE).await };
        drop(data);
        for _ in 0..requests {
            conn.stage(answer)?;
        }
        let post = reactor.spawn(async move {
            let flushed = conn.flush().await;
            (conn, flushed)
        });
        let flushed;
        (conn, flushed) = post.map_err(io::Error::other)?.await?;
        flushed?;
    }
}
