//! The server of `raw` on pipes: heads are looked for in the view over what was received, and nothing is copied or counted
//! by hand.

use clap::Parser;
use epoxide_pipes::{Duplex, Sequence};
use epoxide_samples::cli::AnswerArgs;
use epoxide_samples::http::{self, END, HEAD_DEADLINE, MAX_HEAD, TOO_LARGE};
use epoxide_samples::server;
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
    server::run("pipe", &args.common.server, "/", move |conn| answer_all(Duplex::new(conn), answer))
}

/// Gives every request the same answer until the client leaves, or stalls in a head for longer than [`HEAD_DEADLINE`].
///
/// A drain ends it between requests. The deadline costs nothing while heads come whole.
///
/// # Errors
/// Why the connection ended, if not by the client's FIN.
async fn answer_all(mut pipe: Duplex, answer: &'static [u8]) -> io::Result<()> {
    loop {
        let result = pipe.input.read_idle().await?;
        if result.end && result.buffer.is_empty() {
            return Ok(());
        }
        let (requests, used) = heads(result.buffer);
        if requests == 0 {
            // A head that has begun: the rest of it within bounds. Nothing is consumed, so the next round finds it whole.
            match pipe.input.read_until(END, MAX_HEAD, HEAD_DEADLINE).await {
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                    return refuse(pipe).await;
                }
                Err(error) => return Err(error),
            }
        }
        pipe.input.advance(used);
        for _ in 0..requests {
            pipe.output.stage(answer)?;
        }
        if pipe.output.flush().await?.completed {
            return Ok(());
        }
    }
}

#[cold]
async fn refuse(mut pipe: Duplex) -> io::Result<()> {
    pipe.output.stage(TOO_LARGE)?;
    pipe.output.shutdown().await
}

/// How many heads end in `view`, and where the last one does.
#[inline]
fn heads(view: Sequence<'_>) -> (usize, usize) {
    let (mut requests, mut rest) = (0, view);
    while let Some(at) = rest.find(END) {
        requests += 1;
        rest = rest.from(at + END.len());
    }
    (requests, rest.position())
}
