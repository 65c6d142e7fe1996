//! The server of `raw` with a bounce: after each read the connection goes to a worker, which answers, and comes back.
//!
//! The read parks on the reactor and resumes there; the flush is made by the worker, on its own thread.

use clap::Parser;
use epoxide::{Connection, RecvBuf, workers};
use epoxide_samples::cli::{AnswerArgs, WorkerArgs};
use epoxide_samples::http::{self, Framing};
use epoxide_samples::server;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request from a worker: reads on the reactor, hops over after each read.")]
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
    server::run_with("hop", &args.common.server, "/", set_up, move |conn| serve(conn, answer))
}

async fn serve(mut conn: Connection, answer: &'static [u8]) -> io::Result<()> {
    let mut framing = Framing::default();
    while let Some(data) = framing.read(&mut conn).await? {
        // A handle's first `?` is the task's end (a panic, a stop), the second one is what the task returned.
        let Some(back) = workers::spawn(respond(conn, framing, data, answer)).await?? else { return Ok(()) };
        (conn, framing) = back;
    }
    Ok(())
}

/// On a worker. `None`: the connection is over.
async fn respond(
    mut conn: Connection,
    mut framing: Framing,
    data: RecvBuf,
    answer: &'static [u8],
) -> io::Result<Option<(Connection, Framing)>> {
    let Some(requests) = framing.feed(&conn, &data) else {
        conn.send_all(http::TOO_LARGE).await?;
        return Ok(None);
    };
    drop(data);
    for _ in 0..requests {
        conn.stage(answer)?;
    }
    conn.flush().await?;
    Ok(Some((conn, framing)))
}
