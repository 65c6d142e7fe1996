//! The smallest HTTP server: requests framed by their blank line, one fixed answer each.
//!
//! Two pipelined requests get two answers. Ctrl-C drains: idle connections end at once, busy ones get their answer.

use clap::Parser;
use epoxide::{Connection, Runtime};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::heads::Heads;
use std::io;
use std::time::Duration;

#[derive(Parser, Debug)]
#[command(about = "Answers every HTTP request with a fixed body, straight from the connection.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// The body: 'ok', a number of bytes, or 'bench' for the answer that the benchmark's peers give.
    #[arg(long, env = "PLAYGROUND_BODY", default_value = "ok")]
    body: String,
}

/// Bytes of a request head; more without a blank line is refused.
const MAX_HEAD: usize = 64 * 1024;

fn main() -> io::Result<()> {
    let args = Args::parse();
    let answer: &'static [u8] = answer(&args.body)?.leak();
    let mut server = Runtime::builder();
    if args.server.reactors > 0 {
        server.reactors(args.server.reactors);
    }
    server.listen(args.server.target(), move |conn| serve(conn, answer));
    let runtime = server.build()?;
    let addr = runtime.local_addrs()[0];
    println!(
        "[raw] {} reactors on {addr}; try: curl http://{addr}/   (Ctrl-C drains and prints the counters)",
        runtime.handles().len()
    );
    let handles = runtime.handles();
    let report = runtime.run(Duration::from_secs(30))?;
    println!("[raw] stopped in {:?}, {} connections cut", report.took, report.cut);
    for handle in handles {
        println!("{}", handle.stats());
    }
    Ok(())
}

async fn serve(mut conn: Connection, answer: &'static [u8]) -> io::Result<()> {
    let mut heads = Heads::default();
    let mut partial = 0;
    while let Some(data) = conn.read_idle().await? {
        let requests = heads.feed(&data);
        partial = if requests == 0 { partial + data.len() } else { 0 };
        drop(data);
        if partial > MAX_HEAD {
            conn.send_all(
                b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            )
            .await?;
            return Ok(());
        }
        for _ in 0..requests {
            conn.stage(answer)?;
        }
        conn.flush().await?;
    }
    Ok(())
}

fn answer(body: &str) -> io::Result<Vec<u8>> {
    let body = match body {
        "ok" => b"ok".to_vec(),
        "bench" => b"Hello, World!".to_vec(),
        number => match number.parse::<usize>() {
            Ok(0) => Vec::new(),
            Ok(n) => [vec![b'x'; n - 1], vec![b'\n']].concat(),
            Err(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("--body {number}: 'ok', 'bench' or a number of bytes"),
                ));
            }
        },
    };
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", body.len());
    Ok([head.into_bytes(), body].concat())
}
