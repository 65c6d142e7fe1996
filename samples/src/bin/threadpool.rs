//! The server of `raw` with every handler on the async workers: the whole connection moves there.
//!
//! A worker makes the recv and the send on its own thread. The reactor only accepts, and tells a worker when a read that
//! found nothing has something.

use clap::Parser;
use epoxide::workers::{self, WorkersConfig};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{http, server};
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request from the worker pool: the connection moves there once.")]
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
    server::run_with("threadpool", &args.server, "/", set_up, move |conn| async move {
        // The reactor's task ends here; the worker's goes on with the connection.
        workers::spawn(http::answer_all(conn, answer, http::HEAD_DEADLINE)).detach();
        io::Result::Ok(())
    })
}
