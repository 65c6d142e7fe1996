//! A closed-loop HTTP/1 load client: every connection sends its requests, waits for all answers, and sends again.
//!
//! Built on the same runtime as the servers: a reactor per thread, each with its share of the connections. Ctrl-C ends
//! it early, with the summary.

use clap::Parser;
use epoxide::{Connection, ReactorConfig, ReactorHandle, Runtime, spawn_local, time};
use epoxide_samples::cli::host_and_port;
use epoxide_samples::report::Tally;
use epoxide_samples::responses::Responses;
use epoxide_samples::say::say;
use epoxide_samples::server::count;
use std::io::{self, ErrorKind};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

#[derive(Parser, Clone, Debug)]
#[command(about = "A closed-loop HTTP/1 load client; prints requests/s every second and latencies at the end.")]
struct Args {
    /// HOST:PORT of the server.
    #[arg(long, default_value = "127.0.0.1:8080", value_parser = host_and_port)]
    addr: String,
    /// What to ask for; begins with a slash.
    #[arg(long, default_value = "/", value_parser = path)]
    path: String,
    /// Connections, over all threads.
    #[arg(short, long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: u32,
    /// Seconds of load.
    #[arg(short, long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    duration: u64,
    /// Requests that each connection sends before it waits for their answers.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pipeline: u32,
    /// Threads, a reactor each.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Seconds until a connect or an answer is given up.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

fn path(path: &str) -> Result<String, &'static str> {
    if path.starts_with('/') { Ok(path.to_owned()) } else { Err("a path begins with a slash") }
}

/// Failures in a row until a client gives up: a server that is not there is not asked for ever.
const MAX_FAILURES: u32 = 10;

/// One for each reactor.
type Shared = Arc<Mutex<Tally>>;

fn main() -> io::Result<ExitCode> {
    let args = Args::parse();
    let patience = Duration::from_secs(args.timeout);
    let config = ReactorConfig { read_timeout: patience, send_timeout: patience, ..ReactorConfig::default() };
    let runtime = Runtime::builder().reactors(args.threads as usize).config(config).build()?;
    say(format_args!(
        "[load] {} to http://{}{} for {} s, {} at a time, {}   (Ctrl-C ends it with the summary)",
        count(args.connections as usize, "connection"),
        args.addr,
        args.path,
        args.duration,
        args.pipeline,
        count(args.threads as usize, "thread")
    ));
    let begun = Instant::now();
    let until = begun + Duration::from_secs(args.duration);
    let handles = runtime.handles();
    let mut tallies = Vec::new();
    let mut parts = Vec::new();
    for (index, handle) in handles.iter().enumerate() {
        let clients = share(args.connections, args.threads, index as u32);
        let (tally, args) = (Shared::default(), args.clone());
        tallies.push(tally.clone());
        parts.push(handle.spawn_with(move || run_part(args, clients, until, tally)).map_err(io::Error::other)?);
    }
    let (watched, all) = (tallies.clone(), handles.clone());
    // The runtime notices its end a moment later; the rate is over the time of the load.
    let ended = Arc::new(OnceLock::new());
    let end = ended.clone();
    let conductor = async move {
        drop(spawn_local(progress(watched, begun)));
        for part in parts {
            let _ = part.await;
        }
        let _ = end.set(Instant::now());
        all.iter().for_each(ReactorHandle::stop);
    };
    drop(handles[0].spawn(conductor).map_err(io::Error::other)?);
    runtime.run(Duration::from_secs(1))?;
    let mut sum = Tally::default();
    tallies.iter().for_each(|tally| sum.add(&lock(tally)));
    say(format_args!("{}", sum.summary(ended.get().map_or_else(|| begun.elapsed(), |end| *end - begun))));
    Ok(if sum.answers() > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn lock(tally: &Shared) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The connections of one thread.
fn share(connections: u32, threads: u32, index: u32) -> u32 {
    connections / threads + u32::from(index < connections % threads)
}

/// Prints a line each second, for as long as the reactor lives.
async fn progress(tallies: Vec<Shared>, begun: Instant) {
    let mut ticks = time::interval_at(begun + Duration::from_secs(1), Duration::from_secs(1));
    let mut before = 0;
    loop {
        ticks.tick().await;
        let (mut answers, mut failures) = (0, 0);
        for tally in &tallies {
            let tally = lock(tally);
            answers += tally.answers();
            failures += tally.refused + tally.cut;
        }
        let seconds = begun.elapsed().as_secs();
        say(format_args!("[load] {seconds:>3} s  {:>9} requests/s  {failures} failures", answers - before));
        before = answers;
    }
}

async fn run_part(args: Args, clients: u32, until: Instant, tally: Shared) {
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", args.path, args.addr);
    let batch: Arc<[u8]> = request.repeat(args.pipeline as usize).into_bytes().into();
    let args = Arc::new(args);
    let clients: Vec<_> =
        (0..clients).map(|_| spawn_local(client(args.clone(), batch.clone(), until, tally.clone()))).collect();
    for client in clients {
        let _ = client.await;
    }
}

/// One client: connects, and again when the server closes, until the time is over.
async fn client(args: Arc<Args>, batch: Arc<[u8]>, until: Instant, tally: Shared) {
    let mut failures = 0;
    while Instant::now() < until && failures < MAX_FAILURES {
        let answers = lock(&tally).answers();
        match time::timeout(Duration::from_secs(args.timeout), epoxide::connect(args.addr.as_str())).await {
            Ok(Ok(conn)) => {
                lock(&tally).connections += 1;
                match ask(conn, args.pipeline, &batch, until, &tally).await {
                    Ok(Next::Again) => {}
                    Ok(Next::Over) => return,
                    Err(error) => {
                        let mut tally = lock(&tally);
                        tally.cut += 1;
                        tally.note(&error);
                    }
                }
            }
            Ok(Err(error)) => refused(&tally, &error),
            Err(elapsed) => refused(&tally, &elapsed.into()),
        }
        failures = if lock(&tally).answers() > answers { 0 } else { failures + 1 };
    }
}

fn refused(tally: &Shared, error: &io::Error) {
    let mut tally = lock(tally);
    tally.refused += 1;
    tally.note(error);
}

/// What comes after a connection that ended in good order.
enum Next {
    /// The server closed it between two batches.
    Again,
    /// The time is over, or Ctrl-C came.
    Over,
}

/// The loop on one connection.
async fn ask(mut conn: Connection, pipeline: u32, batch: &[u8], until: Instant, tally: &Shared) -> io::Result<Next> {
    let mut responses = Responses::default();
    while Instant::now() < until && !conn.is_draining() {
        let sent = Instant::now();
        conn.send_all(batch).await?;
        let mut left = pipeline;
        while left > 0 {
            let Some(data) = conn.read().await? else {
                // The server may close an idle connection just as we use it again.
                return if left == pipeline { Ok(Next::Again) } else { Err(ErrorKind::UnexpectedEof.into()) };
            };
            let after = sent.elapsed();
            let mut tally = lock(tally);
            responses.feed(&data, |status| {
                left = left.saturating_sub(1);
                tally.answered(status, after);
            })?;
        }
    }
    conn.shutdown().await?;
    Ok(Next::Over)
}
