//! Server-Sent Events: whoever asks for /events hears everything that anybody posts to /publish, or types on stdin.
//!
//! Events go through a `Hub`: encoded once, and sent to every listener of every reactor directly, on the thread that
//! publishes (a reactor for a POST, a plain thread for stdin). A listener that does not read misses whole events and costs
//! the others nothing.

use clap::Parser;
use epoxide::{Connection, ReadHalf, SharedLimits, SharedWriter, time};
use epoxide_pipes::Hub;
use epoxide_pipes::hub::HubOptions;
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::http::{END, HEAD_DEADLINE, MAX_HEAD, TOO_LARGE, response};
use epoxide_samples::say::say;
use epoxide_samples::server;
use std::io::{self, BufRead};
use std::time::{Duration, Instant};

#[derive(Parser, Debug)]
#[command(about = "Server-Sent Events: GET /events listens, POST /publish (or a line on stdin) speaks.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Seconds between two comments that keep a quiet stream alive.
    #[arg(long, default_value_t = 15)]
    ping: u64,
    /// KiB that may wait for a listener; beyond, it misses events.
    #[arg(long, default_value_t = 256)]
    backlog: usize,
}

/// Bytes of a posted text.
const MAX_BODY: usize = 64 * 1024;
const EVENTS: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n\r\n";

#[derive(Clone)]
struct App {
    hub: Hub,
    limits: SharedLimits,
    ping: Duration,
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let limits = SharedLimits { bytes: args.backlog.saturating_mul(1024), ..SharedLimits::default() };
    let app = App { hub: Hub::new(HubOptions::sse())?, limits, ping: Duration::from_secs(args.ping.max(1)) };
    let hub = app.hub.clone();
    let mut server = args.server.builder();
    server.listen(args.server.target(), move |conn| serve(conn, app.clone()));
    let runtime = server.build()?;
    let typed = hub.clone();
    // Not joined: nothing ends a read of stdin.
    std::thread::spawn(move || {
        // Not `lines`: that ends at the first line that is not UTF-8.
        for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
            let _ = publish(&typed, &String::from_utf8_lossy(&line));
        }
    });
    server::run_runtime("sse", runtime, Duration::from_secs(5), |addr| {
        format!(
            "try in two terminals: curl -N http://{addr}/events  and: curl -d hello http://{addr}/publish  \
             (lines typed here are published too; Ctrl-C drains)"
        )
    })?;
    say(format_args!("{}", hub.stats()));
    Ok(())
}

/// One event: each line of the text is a `data:` line of it. Says how many listeners it went out to.
fn publish(hub: &Hub, text: &str) -> io::Result<usize> {
    let mut event = String::with_capacity(text.len() + 16);
    // Of nothing, one empty line: an event without data is none.
    let lines = text.lines().chain(text.is_empty().then_some(""));
    for line in lines {
        event.push_str("data: ");
        // A lone CR would end the line for the listener.
        event.extend(line.chars().filter(|c| *c != '\r'));
        event.push('\n');
    }
    event.push('\n');
    let tally = hub.broadcast(event)?;
    Ok(tally.sent + tally.queued)
}

async fn serve(mut conn: Connection, app: App) -> io::Result<()> {
    let mut bytes = Vec::new();
    loop {
        let Some(head) = read_head(&mut conn, &mut bytes).await? else { return Ok(()) };
        let head_text = String::from_utf8_lossy(&bytes[..head]).into_owned();
        let Some(length) = body_length(&head_text) else {
            // Where the next request begins is anybody's guess.
            return conn.send_all(&response("400 Bad Request", b"a body needs one plain Content-Length\n")).await;
        };
        let mut words = head_text.split(' ');
        match (words.next(), words.next()) {
            (Some("GET"), Some("/events")) => return listen(conn, app).await,
            (Some("POST"), Some("/publish")) => {
                if length > MAX_BODY {
                    return conn.send_all(&response("413 Content Too Large", b"at most 64 KiB\n")).await;
                }
                let end = head + length;
                while bytes.len() < end {
                    let Some(data) = conn.read().await? else { return Ok(()) };
                    bytes.extend_from_slice(&data);
                }
                let listeners = publish(&app.hub, &String::from_utf8_lossy(&bytes[head..end]))?;
                bytes.drain(..end);
                conn.set_deadline(None, "request");
                conn.send_all(&response("200 OK", format!("to {listeners} listeners\n").as_bytes())).await?;
            }
            _ => {
                let answer = response("404 Not Found", b"GET /events, POST /publish\n");
                if length > 0 {
                    // Its body is not read, and must not be taken for a request.
                    return conn.send_all(&answer).await;
                }
                bytes.drain(..head);
                conn.set_deadline(None, "request");
                conn.send_all(&answer).await?;
            }
        }
    }
}

/// Until a whole head is there; its length. `None`: the client is done, or the server drains.
async fn read_head(conn: &mut Connection, bytes: &mut Vec<u8>) -> io::Result<Option<usize>> {
    if !bytes.is_empty() {
        // It came with the one before.
        conn.set_deadline(Some(Instant::now() + HEAD_DEADLINE), "request");
    }
    loop {
        if let Some(at) = memchr::memmem::find(bytes, END) {
            return Ok(Some(at + END.len()));
        }
        if bytes.len() > MAX_HEAD {
            conn.send_all(TOO_LARGE).await?;
            return Ok(None);
        }
        let data = if bytes.is_empty() { conn.read_idle().await? } else { conn.read().await? };
        let Some(data) = data else { return Ok(None) };
        if bytes.is_empty() {
            conn.set_deadline(Some(Instant::now() + HEAD_DEADLINE), "request");
        }
        bytes.extend_from_slice(&data);
    }
}

/// How long the body is that a head announces; `None` when somebody else might think otherwise (RFC 9112, 5.1 and 6).
fn body_length(head: &str) -> Option<usize> {
    let mut length = None;
    for line in head.split("\r\n").skip(1).take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':')?;
        if name.is_empty() || line.bytes().any(|b| b.is_ascii_control() && b != b'\t') || name.contains([' ', '\t']) {
            return None;
        }
        if name.eq_ignore_ascii_case("transfer-encoding") {
            return None;
        }
        if name.eq_ignore_ascii_case("content-length") {
            let value = value.trim();
            let number = value.bytes().all(|b| b.is_ascii_digit()).then(|| value.parse().ok()).flatten()?;
            if length.replace(number).is_some() {
                return None;
            }
        }
    }
    Some(length.unwrap_or(0))
}

/// The connection is a stream of events from now on.
async fn listen(mut conn: Connection, app: App) -> io::Result<()> {
    conn.set_deadline(None, "request");
    conn.send_all(EVENTS).await?;
    // Who listens says nothing.
    let _silent = conn.suspend_read_timeout();
    let (mut reader, writer) = conn.into_shared(app.limits);
    let member = app.hub.join(writer.clone())?;
    let end = hear_nothing(&mut reader, &writer, app.ping).await;
    drop(member);
    end
}

async fn hear_nothing(reader: &mut ReadHalf, writer: &SharedWriter, ping: Duration) -> io::Result<()> {
    loop {
        match time::timeout(ping, reader.read_idle()).await {
            // A comment: a peer that is gone is found by it.
            Err(_) => drop(writer.send_control(&b":\n\n"[..])),
            Ok(read) => match read? {
                Some(_) => {}
                None => return Ok(()),
            },
        }
    }
}
