//! The server of `raw` with every handler on the async workers: the whole connection moves there.
//!
//! A worker makes the recv and the send on its own thread. The reactor only accepts, and tells a worker when a read that
//! found nothing has something, and lets the workers go first (`--moderation`): B4 of ci/bench has both.

use clap::Parser;
use epoxide::{ReactorConfig, workers};
use epoxide_samples::cli::{AnswerArgs, WorkerArgs};
use epoxide_samples::{http, server};
use std::io;
use std::time::Duration;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request from the worker pool: the connection moves there once.")]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
    #[command(flatten)]
    workers: WorkerArgs,
    /// May a worker try one recv before a read parks (`ReactorConfig::optimistic_reads`)?
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    optimistic: bool,
    /// For how many microseconds the reactor may sleep before it waits, so that one wait brings several requests
    /// (`ReactorConfig::moderation`): at most 50. More than 0 also keeps it from interrupting a worker on its CPU.
    #[arg(long, default_value_t = 50)]
    moderation: u64,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer = http::answer(&args.common.body)?;
    let set_up = |server: &mut epoxide::Builder| {
        args.workers.set_up(server);
        server.config(ReactorConfig {
            optimistic_reads: args.optimistic,
            moderation: Duration::from_micros(args.moderation),
            ..ReactorConfig::default()
        });
    };
    server::run_with("threadpool", &args.common.server, "/", set_up, move |conn| async move {
        // The reactor's task ends here; the worker's goes on with the connection.
        workers::spawn(http::answer_all(conn, answer, http::HEAD_DEADLINE)).detach();
        io::Result::Ok(())
    })
}
