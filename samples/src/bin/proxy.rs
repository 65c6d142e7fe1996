//! A TCP relay: every connection is connected on to one address, and each side's end is passed on by itself.

use clap::Parser;
use epoxide::{ConnectOptions, Connection, connect_with};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::{relay, server};
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
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    server::run("proxy", &args.server, "/", move |near| serve(near, args.to.clone()))
}

async fn serve(mut near: Connection, to: String) -> io::Result<()> {
    let options = ConnectOptions { timeout: Duration::from_secs(10), ..ConnectOptions::default() };
    match connect_with(to.as_str(), options).await {
        Ok(far) => relay::both_ways(near, far).await,
        Err(error) => {
            near.reset();
            Err(error)
        }
    }
}
