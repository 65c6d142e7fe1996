//! The server of `raw` with a bounce: after each read the connection goes to a worker, which answers, and comes back.
//!
//! The read parks on the reactor and resumes there; the flush is made by the worker, on its own thread.

use clap::Parser;
use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, RecvBuf};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::http::{self, Framing};
use epoxide_samples::server;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request from a worker: reads on the reactor, hops over after each read.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// The body: 'ok', a number of bytes, or 'bench' for the answer that the benchmark's peers give.
    #[arg(long, env = "PLAYGROUND_BODY", default_value = "ok")]
    body: String,
    /// Async workers; 0 is one per CPU.
    #[arg(long, env = "PLAYGROUND_WORKERS", default_value_t = 0)]
    workers: usize,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer = http::answer(&args.body)?;
    let set_up = |server: &mut epoxide::Builder| {
        server.workers(WorkersConfig { threads: args.workers, ..WorkersConfig::default() });
    };
    server::run_with("hop", &args.server, "/", set_up, move |conn| serve(conn, answer))
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
