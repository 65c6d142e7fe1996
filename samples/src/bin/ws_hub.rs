//! A WebSocket hub: every message that a member sends goes to all members, the sender included.
//!
//! The protocol is tungstenite's, over bytes in memory (`epoxide_samples::ws`). A message is encoded once and broadcast on
//! the thread that received it; answers (pongs, the close) are control frames of the member's own writer. A member that
//! does not keep up is disconnected with 1013, one that does not answer pings is let go, and a stop says 1001 to all.

use clap::Parser;
use epoxide::{Connection, ReadHalf, Runtime, SendOutcome, SharedLimits, time};
use epoxide_pipes::Hub;
use epoxide_pipes::hub::{HubOptions, Member, websocket_close};
use epoxide_samples::cli::ServerArgs;
use epoxide_samples::http::HEAD_DEADLINE;
use epoxide_samples::ws::{CheckOrigin, Event, Session, encode};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tungstenite::Message;

#[derive(Parser, Debug)]
#[command(about = "A WebSocket hub at /ws: every message goes to all members. Any WebSocket client will do.")]
struct Args {
    #[command(flatten)]
    server: ServerArgs,
    /// Only pages of this origin may connect, e.g. `https://example.org`; programs that are no browsers may as well.
    #[arg(long)]
    origin: Option<String>,
    /// Seconds between two pings; a member that answers none for two of them is let go.
    #[arg(long, default_value_t = 20)]
    ping: u64,
    /// KiB that may wait for a member; beyond, it is disconnected.
    #[arg(long, default_value_t = 4096)]
    backlog: usize,
    /// All members see all messages in one order.
    #[arg(long)]
    sequenced: bool,
}

#[derive(Clone)]
struct App {
    hub: Hub,
    limits: SharedLimits,
    check: CheckOrigin,
    ping: Duration,
    counts: Arc<Counts>,
}

/// Handlers that were entered and left.
#[derive(Default)]
struct Counts {
    entered: AtomicU64,
    left: AtomicU64,
}

/// Also when the handler is dropped half way.
struct Inside(Arc<Counts>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.left.fetch_add(1, Relaxed);
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse();
    let bytes = args.backlog.saturating_mul(1024);
    let limits = SharedLimits { bytes, ..SharedLimits::default() };
    let mut options = HubOptions { sequenced: args.sequenced, ..HubOptions::websocket() };
    options.backlog.bytes = bytes;
    let app = App {
        hub: Hub::new(options)?,
        limits,
        check: CheckOrigin { allowed: args.origin, path: "/ws" },
        ping: Duration::from_secs(args.ping.max(1)),
        counts: Arc::default(),
    };
    let (hub, counts) = (app.hub.clone(), app.counts.clone());
    let mut server = Runtime::builder();
    if args.server.reactors > 0 {
        server.reactors(args.server.reactors);
    }
    server.listen(args.server.target(), move |conn| serve(conn, app.clone()));
    let runtime = server.build()?;
    let (addr, handles) = (runtime.local_addrs()[0], runtime.handles());
    println!(
        "[ws_hub] {} reactors on {addr}; try in two terminals: python3 -m websockets ws://{addr}/ws  \
         (or in a browser's console: new WebSocket('ws://{addr}/ws'); Ctrl-C says 1001 to all)",
        handles.len()
    );
    let report = runtime.run(Duration::from_secs(5))?;
    println!("[ws_hub] stopped in {:?}, {} connections cut", report.took, report.cut);
    let (mut accepted, mut closed) = (0, 0);
    for handle in &handles {
        accepted += handle.stats().accepted;
        closed += handle.stats().closed;
    }
    println!("accepted {accepted}\nclosed {closed}");
    println!("entered {}\nleft {}", counts.entered.load(Relaxed), counts.left.load(Relaxed));
    println!("{}", hub.stats());
    Ok(())
}

async fn serve(mut conn: Connection, app: App) -> io::Result<()> {
    app.counts.entered.fetch_add(1, Relaxed);
    let _inside = Inside(app.counts.clone());
    let mut session = Session::new(app.check.clone());
    conn.set_deadline(Some(Instant::now() + HEAD_DEADLINE), "handshake");
    loop {
        let Some(data) = conn.read_idle().await? else { return Ok(()) };
        session.feed(&data);
        drop(data);
        let (event, answer) = session.event();
        conn.send_all(&answer).await?;
        match event {
            Event::Open => break,
            Event::End => return Ok(()),
            _ => {}
        }
    }
    conn.set_deadline(None, "handshake");
    // A member may be silent for hours; one that is gone is found by pings.
    let _silent = conn.suspend_read_timeout();
    let (mut reader, writer) = conn.into_shared(app.limits);
    let member = app.hub.join(writer)?;
    let result = messages(&mut reader, &member, session, &app).await;
    // First out of the hub: nothing may follow the close frame. The writer goes with the member: what is queued, then FIN.
    member.leave().await;
    if matches!(result, Ok(End::Draining)) {
        let _ = member.send_control(websocket_close(1001));
    } else if let Ok(End::Said(last)) = &result
        && !last.is_empty()
    {
        let _ = member.send_control(last.clone());
    }
    result.map(drop)
}

/// How the messages of a member end.
enum End {
    /// It left, or was let go.
    Gone,
    Draining,
    /// This is to be said last.
    Said(Vec<u8>),
}

async fn messages(reader: &mut ReadHalf, member: &Member, mut session: Session, app: &App) -> io::Result<End> {
    let ping = encode(&Message::Ping(Vec::new().into()));
    let mut unanswered = 0;
    loop {
        // Also what came with the handshake.
        loop {
            let (event, answer) = session.event();
            match event {
                Event::More => {
                    control(member, answer);
                    break;
                }
                Event::End => return Ok(End::Said(answer)),
                Event::Message(message) => {
                    control(member, answer);
                    // On a reactor: in turns, so that its other connections have theirs.
                    app.hub.broadcast_paced(encode(&message)).await?;
                }
                _ => control(member, answer),
            }
        }
        match time::timeout(app.ping, reader.read_idle()).await {
            Ok(read) => match read? {
                Some(data) => {
                    unanswered = 0;
                    session.feed(&data);
                }
                None => return Ok(if reader.is_draining() { End::Draining } else { End::Gone }),
            },
            Err(_) if unanswered == 2 => return Ok(End::Gone),
            Err(_) => {
                unanswered += 1;
                control(member, ping.clone());
            }
        }
    }
}

/// A member that has no room even for these is about to go anyway.
fn control(member: &Member, frame: Vec<u8>) {
    if !frame.is_empty()
        && let SendOutcome::Refused(..) = member.send_control(frame)
    {
        member.writer().close_handle().close();
    }
}
