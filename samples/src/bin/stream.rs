//! The server of `raw` written for any stream that has the traits of `futures-io`; here it is a `ByteStream`.

use clap::Parser;
use epoxide::{Connection, time};
use epoxide_pipes::ByteStream;
use epoxide_samples::cli::AnswerArgs;
use epoxide_samples::heads::Heads;
use epoxide_samples::http::{self, HEAD_DEADLINE, MAX_HEAD, TOO_LARGE};
use epoxide_samples::server;
use futures_io::{AsyncBufRead, AsyncWrite};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Instant;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request with a fixed body, through the IO traits of futures-io.")]
struct Args {
    #[command(flatten)]
    common: AnswerArgs,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer: &'static [u8] = http::answer(&args.common.body)?;
    server::run("stream", &args.common.server, "/", move |connection: Connection| {
        let stream = ByteStream::new(connection);
        let draining = stream.draining();
        answer_all(stream, draining, answer)
    })
}

/// Knows nothing of epoxide's types: any stream with the traits, and any future that says when to stop.
async fn answer_all<S>(mut stream: S, draining: impl Future, answer: &'static [u8]) -> io::Result<()>
where
    S: AsyncBufRead + AsyncWrite + Unpin,
{
    let mut draining = pin!(draining);
    let mut heads = Heads::default();
    // Bytes of a head that has begun and not ended, and when it must have.
    let (mut partial, mut deadline) = (0, Instant::now());
    loop {
        let received = poll_fn(|cx| {
            // Between requests, and only there, a drain ends it.
            if partial == 0 && draining.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok((0, 0, false)));
            }
            Pin::new(&mut stream).poll_fill_buf(cx).map_ok(|bytes| {
                let requests = heads.feed(bytes);
                (bytes.len(), requests, requests > 0 && heads.ended(bytes))
            })
        });
        let left = deadline.saturating_duration_since(Instant::now());
        let (n, requests, whole) = if partial == 0 { received.await? } else { time::timeout(left, received).await?? };
        if n == 0 {
            return poll_fn(|cx| Pin::new(&mut stream).poll_close(cx)).await;
        }
        Pin::new(&mut stream).consume(n);
        if partial == 0 || requests > 0 {
            (partial, deadline) = (0, Instant::now() + HEAD_DEADLINE);
        }
        partial = if whole { 0 } else { partial + n };
        if partial > MAX_HEAD {
            write_all(&mut stream, TOO_LARGE).await?;
            return poll_fn(|cx| Pin::new(&mut stream).poll_close(cx)).await;
        }
        for _ in 0..requests {
            write_all(&mut stream, answer).await?;
        }
    }
}

async fn write_all<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> io::Result<()> {
    let mut left = bytes;
    while !left.is_empty() {
        let n = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, left)).await?;
        left = &left[n..];
    }
    Ok(())
}
