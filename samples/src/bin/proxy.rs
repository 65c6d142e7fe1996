//! A TCP relay: every connection is connected on to one address, and each side's end is passed on by itself.
//!
//! With `--http` (feature `http`) it is a reverse proxy for HTTP/1 instead: requests go over connections that are kept.

use clap::Parser;
use epoxide::{ConnectOptions, Connection, connect_with, spawn_local};
use epoxide_pipes::{Duplex, PipeReader, PipeWriter};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::server;
use std::io;
use std::time::Duration;

#[derive(Parser, Debug)]
#[command(about = "Relays TCP connections to another address, with back-pressure and half-closes.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Where to relay to, HOST:PORT.
    #[arg(long, default_value = "127.0.0.1:8081")]
    to: String,
    /// HTTP instead of TCP: requests are passed on over pooled connections.
    #[cfg(feature = "http")]
    #[arg(long)]
    http: bool,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    #[cfg(feature = "http")]
    if args.http {
        return epoxide_samples::http_proxy::run("proxy", &args.server, args.to);
    }
    server::run("proxy", &args.server, "/", move |near| serve(near, args.to.clone()))
}

async fn serve(mut near: Connection, to: String) -> io::Result<()> {
    let options = ConnectOptions { timeout: Duration::from_secs(10), ..ConnectOptions::default() };
    match connect_with(to.as_str(), options).await {
        Ok(far) => both_ways(near, far).await,
        Err(error) => {
            near.reset();
            Err(error)
        }
    }
}

/// Relays both ways until both sides have ended. An end (FIN) is passed on by itself, so that the other direction goes
/// on; a broken connection breaks the other one.
///
/// # Errors
/// Why a direction broke.
async fn both_ways(near: Connection, far: Connection) -> io::Result<()> {
    let (near_in, near_out) = Duplex::new(near).into_parts();
    let (far_in, far_out) = Duplex::new(far).into_parts();
    let there = spawn_local(one_way(near_in, far_out));
    let back = one_way(far_in, near_out).await;
    let there = there.await.map_err(|error| io::Error::other(error.to_string()))?;
    there.and(back)
}

async fn one_way(mut from: PipeReader, mut to: PipeWriter) -> io::Result<()> {
    let result = copy(&mut from, &mut to).await;
    if result.is_err() {
        // Half a transfer must not look whole: whoever is left learns that it broke.
        from.close_handle().reset();
        to.close_handle().reset();
    }
    result
}

/// At most one buffer is on its way at a time: a slow receiver slows its sender down.
async fn copy(from: &mut PipeReader, to: &mut PipeWriter) -> io::Result<()> {
    loop {
        let result = from.read().await?;
        let (held, end) = (result.buffer.len(), result.end);
        // The received buffers themselves are sent.
        to.stage_bytes(from.take(held))?;
        if to.flush().await?.completed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if end {
            return to.shutdown().await;
        }
    }
}
