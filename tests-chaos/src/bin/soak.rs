//! A mixed load on one long-lived runtime, for `ci/soak`: does anything grow?
//!
//! Job: handlers of every kind, clients that come, check what they get, and go in every way; a sample of what the process
//! holds each second. State owned: the load. Thread class: the main thread; clients run on reactors, workers and threads.
//!
//! A sample is a line: seconds, resident bytes, descriptors, buffers lent, buffers in all, tasks, connections, sessions.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::Parser;
use epoxide::{Connection, ReactorHandle, Runtime, SharedLimits, Stats, time, workers as pool};
use epoxide_pipes::hub::HubOptions;
use epoxide_pipes::{Duplex, Hub};
use epoxide_tests_e2e::{Rng, block_within, echo, loopback, our_fds, pattern, resident_bytes};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A mixed load for so many minutes, with a sample a second on standard output.
#[derive(Parser)]
struct Args {
    /// How long.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Clients at once.
    #[arg(long, default_value_t = 24)]
    clients: u64,
}

/// Within this every answer comes, however busy the machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the file, and of one ping at most: more might fill both directions' socket buffers.
const FILE: usize = 200_000;
const PING: u64 = 40_000;
/// Bytes of a broadcast frame.
const FRAME: usize = 64;

static OVER: AtomicBool = AtomicBool::new(false);
static SESSIONS: AtomicU64 = AtomicU64::new(0);
static WRONG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let (runtime, hub) = match server() {
        Ok(ready) => ready,
        Err(error) => {
            eprintln!("soak: the runtime does not start: {error}");
            return std::process::ExitCode::from(2);
        }
    };
    let addrs = runtime.local_addrs();
    let clients = start_clients(&runtime, &addrs, args.clients);
    publish(&runtime, hub);
    let begun = Instant::now();
    let end = begun + Duration::from_secs_f64(args.minutes * 60.0);
    while Instant::now() < end && wrong().is_empty() {
        // sleep: between two samples.
        std::thread::sleep(Duration::from_secs(1));
        sample(begun, &runtime.stats());
    }
    OVER.store(true, Ordering::Release);
    let late = Instant::now() + PATIENCE;
    while clients.load(Ordering::Acquire) > 0 && Instant::now() < late {
        // sleep: the clients end by themselves.
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = clients.load(Ordering::Acquire);
    let handle = runtime.handle();
    let stopped = runtime.shutdown_blocking(Duration::from_secs(10));
    drop(runtime);
    let stats = handle.stats();
    let sessions = SESSIONS.load(Ordering::Relaxed);
    println!("end: {sessions} sessions, {left} clients left, {} buffers lent", stats.buffers_outstanding);
    if let Err(error) = &stopped {
        eprintln!("WRONG: the stop: {error}");
    }
    for what in wrong().iter().take(5) {
        eprintln!("WRONG: {what}");
    }
    let bad = !wrong().is_empty() || left > 0 || stats.buffers_outstanding > 0 || stopped.is_err();
    std::process::ExitCode::from(u8::from(bad))
}

fn wrong() -> std::sync::MutexGuard<'static, Vec<String>> {
    WRONG.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sample(begun: Instant, stats: &Stats) {
    println!(
        "sample {:.1} {} {} {} {} {} {} {}",
        begun.elapsed().as_secs_f64(),
        resident_bytes().unwrap_or(0),
        our_fds("self").map_or(0, |fds| fds.len()),
        stats.buffers_outstanding,
        stats.buffers_allocated,
        stats.tasks,
        stats.open,
        SESSIONS.load(Ordering::Relaxed),
    );
    let _ = io::stdout().flush();
}

/// Every kind of handler: echoes on the reactor, on a worker, through pipes and across reactors, a file, a broadcast.
fn server() -> io::Result<(Runtime, Hub)> {
    let hub = Hub::new(HubOptions::default())?;
    let file = file()?;
    let reactors = Arc::new(OnceLock::<Vec<ReactorHandle>>::new());
    let mut builder = Runtime::builder();
    builder.reactors(2);
    builder.listen(loopback(), echo);
    builder.listen(loopback(), |connection: Connection| async move {
        let _ = pool::spawn(echo(connection)).await;
    });
    builder.listen(loopback(), piped);
    let homes = reactors.clone();
    builder.listen(loopback(), move |connection: Connection| wandering(connection, homes.clone()));
    builder.listen(loopback(), move |connection: Connection| gives(connection, file.clone()));
    let members = hub.clone();
    builder.listen(loopback(), move |connection: Connection| joins(connection, members.clone()));
    #[cfg(feature = "tls")]
    {
        let server = epoxide_tests_chaos::identity::configs().map_err(io::Error::other)?.0;
        builder.listen(loopback(), move |connection: Connection| secret(connection, server.clone()));
    }
    let runtime = builder.build()?;
    let _ = reactors.set(runtime.handles());
    Ok((runtime, hub))
}

fn file() -> io::Result<Arc<OwnedFd>> {
    let mut file = File::from(memfd_create(c"soak", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&pattern(FILE))?;
    Ok(Arc::new(file.into()))
}

async fn piped(connection: Connection) {
    let (mut input, mut output) = Duplex::new(connection).into_parts();
    while let Ok(read) = input.read().await {
        let held = read.buffer.len();
        if held == 0 && read.end {
            break;
        }
        if output.stage_bytes(input.take(held)).is_err() || output.flush().await.is_err() {
            return;
        }
    }
    let _ = output.shutdown().await;
}

/// Echoes, each time on another reactor.
async fn wandering(mut connection: Connection, homes: Arc<OnceLock<Vec<ReactorHandle>>>) {
    while let Ok(Some(got)) = connection.read().await {
        if connection.stage_bytes(got.freeze()).is_err() || connection.flush().await.is_err() {
            return;
        }
        let here = connection.reactor();
        let next = homes.get().and_then(|homes| homes.iter().find(|home| **home != here).cloned());
        if let Some(next) = next
            && connection.rehome(&next).await.is_err()
        {
            return;
        }
    }
    let _ = connection.shutdown().await;
}

async fn gives(mut connection: Connection, file: Arc<OwnedFd>) {
    if connection.send_file(file, ..).await.is_ok() {
        let _ = connection.shutdown().await;
    }
}

async fn joins(connection: Connection, hub: Hub) {
    let (mut reader, writer) = connection.into_shared(SharedLimits::default());
    let Ok(_member) = hub.join(writer) else { return };
    while let Ok(Some(_)) = reader.read().await {}
}

#[cfg(feature = "tls")]
async fn secret(connection: Connection, config: epoxide_tls::TlsConfig) {
    let Ok(mut session) = config.accept(connection).await else { return };
    while let Ok(Some(got)) = session.read().await {
        if session.stage(&got).is_err() || session.flush().await.is_err() {
            return;
        }
    }
    let _ = session.shutdown().await;
}

/// A frame every few milliseconds: the byte of its number, over and over.
fn publish(runtime: &Runtime, hub: Hub) {
    let publishing = async move {
        let mut number = 0_u8;
        while !OVER.load(Ordering::Acquire) {
            let _ = hub.broadcast(vec![number; FRAME]);
            number = number.wrapping_add(1);
            time::sleep(Duration::from_millis(5)).await;
        }
        hub.close(Duration::from_secs(1)).await;
    };
    if let Ok(task) = runtime.handle().spawn(publishing) {
        task.detach();
    }
}

/// Starts clients everywhere; the number of those that are not done.
fn start_clients(runtime: &Runtime, addrs: &[SocketAddr], count: u64) -> Arc<AtomicU64> {
    let running = Arc::new(AtomicU64::new(count));
    for number in 0..count {
        let (addrs, left) = (addrs.to_vec(), running.clone());
        let client = async move {
            let mut rng = Rng::new(number + 1);
            while !OVER.load(Ordering::Acquire) {
                let kind = rng.below(addrs.len() as u64) as usize;
                match time::timeout(PATIENCE, visit(kind, addrs[kind], &mut rng)).await {
                    Ok(Ok(())) => drop(SESSIONS.fetch_add(1, Ordering::Relaxed)),
                    Ok(Err(what)) => wrong().push(format!("kind {kind}: {what}")),
                    Err(_) => wrong().push(format!("kind {kind}: no answer within {PATIENCE:?}")),
                }
            }
            left.fetch_sub(1, Ordering::AcqRel);
        };
        let handles = runtime.handles();
        match number % 4 {
            0 | 1 => drop(handles[number as usize % 2].spawn(client).map(epoxide::JoinHandle::detach)),
            2 => drop(handles[0].workers().spawn(client).map(epoxide::JoinHandle::detach)),
            _ => drop(std::thread::spawn(move || {
                let _entered = handles[0].enter();
                block_within(client, Duration::from_secs(24 * 3600))
            })),
        }
    }
    running
}

/// One session from connect to its end.
async fn visit(kind: usize, addr: SocketAddr, rng: &mut Rng) -> Result<(), String> {
    if kind == 6 {
        #[cfg(feature = "tls")]
        return secret_visit(addr, rng).await;
    }
    let mut connection = epoxide::connect(addr).await.map_err(|error| format!("connect: {error}"))?;
    match kind {
        4 => return fetches(&mut connection, rng).await,
        5 => return listens(&mut connection, rng).await,
        _ => {}
    }
    for _ in 0..=rng.below(20) {
        let len = 1 + rng.below(PING) as usize;
        let ping = rng.bytes(len);
        connection.send_all(&ping).await.map_err(|error| format!("send: {error}"))?;
        if rng.below(60) == 0 {
            // Leaves with the answer on its way.
            return Ok(());
        }
        let mut at = 0;
        while at < ping.len() {
            match connection.read().await {
                Ok(Some(got)) if ping[at..].starts_with(&got) => at += got.len(),
                other => {
                    return Err(format!("byte {at} of {}: {:?}", ping.len(), other.map(|got| got.map(|g| g.len()))));
                }
            }
        }
        if rng.below(8) == 0 {
            time::sleep(Duration::from_micros(rng.below(3000))).await;
        }
    }
    match rng.below(4) {
        0 => connection.reset(),
        1 => connection.close_handle().close(),
        2 => {
            connection.shutdown().await.map_err(|error| format!("shutdown: {error}"))?;
            match connection.read().await {
                Ok(None) => {}
                other => return Err(format!("no clean end: {:?}", other.map(|got| got.map(|g| g.len())))),
            }
        }
        _ => drop(connection),
    }
    Ok(())
}

async fn fetches(connection: &mut Connection, rng: &mut Rng) -> Result<(), String> {
    let until = if rng.below(3) == 0 { rng.below(FILE as u64) as usize } else { FILE };
    let (file, mut at) = (pattern(FILE), 0);
    while at < until {
        match connection.read().await {
            Ok(Some(got)) if file[at..].starts_with(&got) => at += got.len(),
            other => return Err(format!("byte {at} of a file: {:?}", other.map(|got| got.map(|g| g.len())))),
        }
    }
    Ok(())
}

/// Some frames, each behind the one before.
async fn listens(connection: &mut Connection, rng: &mut Rng) -> Result<(), String> {
    let (frames, mut held, mut last) = (1 + rng.below(30), Vec::new(), None);
    for _ in 0..frames {
        while held.len() < FRAME {
            match connection.read().await {
                Ok(Some(got)) => held.extend_from_slice(&got),
                Ok(None) if OVER.load(Ordering::Acquire) => return Ok(()),
                other => return Err(format!("a broadcast: {:?}", other.map(|got| got.map(|g| g.len())))),
            }
        }
        let frame: Vec<u8> = held.drain(..FRAME).collect();
        let is_next = last.is_none_or(|last: u8| frame[0] == last.wrapping_add(1));
        if !is_next || frame.iter().any(|b| *b != frame[0]) {
            return Err(format!("frame {} behind {last:?}", frame[0]));
        }
        last = Some(frame[0]);
    }
    Ok(())
}

#[cfg(feature = "tls")]
async fn secret_visit(addr: SocketAddr, rng: &mut Rng) -> Result<(), String> {
    static CLIENT: OnceLock<Result<epoxide_tls::TlsConfig, String>> = OnceLock::new();
    let made = CLIENT.get_or_init(|| epoxide_tests_chaos::identity::configs().map(|both| both.1));
    let client = made.clone()?;
    let mut session = client.connect(addr, "soak").await.map_err(|error| format!("handshake: {error}"))?;
    for _ in 0..=rng.below(5) {
        let len = 1 + rng.below(PING) as usize;
        let ping = rng.bytes(len);
        if rng.below(10) == 0 {
            session.update_keys(true).map_err(|error| format!("new keys: {error}"))?;
        }
        session.send_all(&ping).await.map_err(|error| format!("send: {error}"))?;
        let mut at = 0;
        while at < ping.len() {
            match session.read().await {
                Ok(Some(got)) if ping[at..].starts_with(&got) => at += got.len(),
                other => return Err(format!("byte {at} of a session: {:?}", other.map(|got| got.map(|g| g.len())))),
            }
        }
    }
    if rng.below(2) == 0 {
        session.shutdown().await.map_err(|error| format!("shutdown: {error}"))?;
        if !matches!(session.read().await, Ok(None)) {
            return Err("no clean end of a session".into());
        }
    }
    Ok(())
}
