//! The server of `raw` where every request awaits a job of the blocking pool: what a file, a database driver or a
//! long computation needs.
//!
//! The handler stays on its reactor, which serves others meanwhile.
//!
//! A library that needs tokio works in such handlers too, when a tokio runtime stands by and every thread enters it:
//! ```ignore
//! let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
//! let hosted = tokio.handle().clone();
//! let mut server = epoxide::Runtime::builder();
//! server.enter(move |thread| {
//!     let _entered = hosted.enter();
//!     thread();
//! });
//! // In a handler: tokio::time::sleep(..).await, tokio::spawn(..), a database driver's pool.
//! ```

use clap::Parser;
use epoxide::{Connection, workers};
use epoxide_samples::cli::AnswerArgs;
use epoxide_samples::http::{self, Framing};
use epoxide_samples::server;
use std::io;

#[derive(Parser, Debug)]
#[command(about = "Awaits a job of the blocking pool for every HTTP request.")]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer = http::answer(&args.common.body)?;
    server::run("taskrun", &args.common.server, "/", move |conn| serve(conn, answer))
}

async fn serve(mut conn: Connection, answer: &'static [u8]) -> io::Result<()> {
    let mut framing = Framing::default();
    while let Some(data) = framing.read(&mut conn).await? {
        let Some(requests) = framing.feed(&conn, &data) else { return conn.send_all(http::TOO_LARGE).await };
        drop(data);
        for _ in 0..requests {
            // Here a job would block; this one only hands over what is known.
            let body = workers::spawn_blocking(move || answer).await?;
            conn.stage(body)?;
        }
        conn.flush().await?;
    }
    Ok(())
}
