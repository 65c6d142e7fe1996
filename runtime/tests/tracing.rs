//! The feature `tracing`: what happens to connections, tasks and reactors reaches a subscriber, and a subscriber that
//! panics harms nothing.
//!
//! One test: a subscriber is the whole process's.

use epoxide::{Connection, ReactorConfig, Runtime};
use std::fmt::{self, Debug};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

static SEEN: Mutex<Vec<(Level, String)>> = Mutex::new(Vec::new());
static PANICS: AtomicBool = AtomicBool::new(false);

/// Keeps every event of the target `epoxide` as one line.
struct Keep;

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        use fmt::Write;
        let _ = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Keep {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "epoxide"
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        SEEN.lock().unwrap_or_else(PoisonError::into_inner).push((*event.metadata().level(), line.0));
        assert!(!PANICS.load(Ordering::Relaxed), "a subscriber that panics");
    }
}

/// Waits until an event of this level has come whose line holds all these texts.
#[track_caller]
fn expect(level: Level, texts: &[&str]) {
    let begun = Instant::now();
    loop {
        let seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if seen.iter().any(|(of, line)| *of == level && texts.iter().all(|text| line.contains(text))) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "no {level} with {texts:?} among {seen:#?}");
        // sleep: between two looks.
        thread::sleep(Duration::from_millis(5));
    }
}

async fn serve(mut connection: Connection) -> io::Result<()> {
    while let Some(data) = connection.read().await? {
        match data[0] {
            b'p' => panic!("as the client asked"),
            b'e' => return Err(io::Error::other("an error as asked")),
            b's' => {
                let _ = connection.stage(&[0; 101]);
            }
            // sleep: the reactor is to be held.
            b'h' => thread::sleep(Duration::from_millis(150)),
            _ => {}
        }
        connection.send_all(b"ok").await?;
    }
    Ok(())
}

fn client(runtime: &Runtime, ask: &[u8]) -> TcpStream {
    let mut client = TcpStream::connect(runtime.local_addrs()[0]).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.write_all(ask).unwrap();
    let _ = client.read(&mut [0; 8]);
    client
}

fn start() -> Runtime {
    let mut builder = Runtime::builder();
    builder.reactors(1).max_connections(2).config(ReactorConfig {
        read_timeout: Duration::from_millis(300),
        max_staged: 100,
        stall_threshold: Duration::from_millis(50),
        ..ReactorConfig::default()
    });
    builder.listen("127.0.0.1:0", serve);
    builder.build().unwrap()
}

#[test]
fn what_a_runtime_does_reaches_a_subscriber() {
    tracing::subscriber::set_global_default(Keep).unwrap();
    let runtime = start();
    let here = file!();

    let quiet = client(&runtime, b"?");
    expect(Level::DEBUG, &["connection accepted", "reactor=0", "listener=0"]);
    expect(Level::DEBUG, &["timed out", "read timeout"]);
    expect(Level::DEBUG, &["connection ended", "Timeout(Read)"]);
    drop(quiet);
    drop(client(&runtime, b"p"));
    expect(Level::ERROR, &["task panicked", here, "as the client asked"]);
    drop(client(&runtime, b"e"));
    expect(Level::DEBUG, &["handler failed", "an error as asked"]);
    drop(client(&runtime, b"s"));
    expect(Level::INFO, &["refused by a limit", "max_staged", "asked=101"]);
    drop(client(&runtime, b"h"));
    expect(Level::WARN, &["stall", here, "held the loop"]);

    let crowd = [client(&runtime, b"?"), client(&runtime, b"?")];
    let third = TcpStream::connect(runtime.local_addrs()[0]).unwrap();
    expect(Level::INFO, &["listener paused: max_connections", "listener=0"]);
    drop(crowd);
    expect(Level::INFO, &["listener resumed", "listener=0"]);
    drop(third);

    assert_eq!(runtime.stats().panics, 1, "the one that was asked for");
    runtime.shutdown_blocking(Duration::from_secs(20)).unwrap();
    expect(Level::INFO, &["drain begins", "reactor=0"]);
    expect(Level::INFO, &["stop begins", "connections="]);
    expect(Level::INFO, &["stopped", "cut=0"]);
    drop(runtime);

    // The same, each event a panic.
    PANICS.store(true, Ordering::Relaxed);
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clear();
    let runtime = start();
    let mut client = client(&runtime, b"?");
    client.write_all(b"?").unwrap();
    assert_eq!(client.read(&mut [0; 8]).unwrap(), 2, "served beside a subscriber that panics");
    expect(Level::DEBUG, &["connection accepted"]);
    drop(client);
    let report = runtime.shutdown_blocking(Duration::from_secs(20)).unwrap();
    expect(Level::INFO, &["stopped"]);
    assert!(report.graceful, "{report:?}");
    assert_eq!(runtime.stats().panics, 0, "they count as nobody's");
}
