//! B9's server: every request is answered with 64 MiB out of memory, staged without a copy.
//!
//! State: none. Thread class: reactor.

use bytes::Bytes;
use clap::Parser;
use epoxide::{Connection, ReactorConfig};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::http::{self, Framing};
use epoxide_samples::server;
use std::io;

/// As the peers: byte i of the body is i mod 251.
const BODY: usize = 64 << 20;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request with 64 MiB.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Bytes that a flush may send before others get their turn; as `ReactorConfig` has it if not given.
    #[arg(long)]
    flush_budget: Option<usize>,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let body: Vec<u8> = (0..BODY).map(|i| (i % 251) as u8).collect();
    let answer = Bytes::from(http::response("200 OK", &body));
    drop(body);
    let mut config = ReactorConfig { max_staged: 2 * BODY, ..ReactorConfig::default() };
    config.flush_budget = args.flush_budget.unwrap_or(config.flush_budget);
    let set_up = move |builder: &mut epoxide::Builder| {
        builder.config(config);
    };
    server::run_with("bulk", &args.server, "/ --output bulk.bin", set_up, move |conn| answer_all(conn, answer.clone()))
}

async fn answer_all(mut conn: Connection, answer: Bytes) -> io::Result<()> {
    let mut framing = Framing::default();
    while let Some(data) = framing.read(&mut conn).await? {
        let Some(requests) = framing.feed(&conn, &data) else { return conn.send_all(http::TOO_LARGE).await };
        drop(data);
        for _ in 0..requests {
            conn.stage_bytes(answer.clone())?;
            conn.flush().await?;
        }
    }
    Ok(())
}
