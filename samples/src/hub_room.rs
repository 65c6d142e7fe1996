//! What `ws_hub` and `wss_hub` do: every message that a member sends goes to all members, the sender included.
//!
//! The protocol is tungstenite's, over bytes in memory (`ws`). A message is encoded once and broadcast on the thread that
//! received it; over TLS each member's copy is encrypted there, too. Answers (pongs, the close) are control frames of the
//! member's own writer.
//!
//! State: the hub, counts. Thread class: any thread.

use crate::cli::ServerArgs;
use crate::http::HEAD_DEADLINE;
use crate::say::say;
use crate::server;
use crate::ws::{CheckOrigin, Event, Session, encode};
use clap::Args;
use epoxide::{Connection, RecvBuf, SendOutcome, SharedLimits, SharedWriter, WriteHalf, time};
use epoxide_pipes::Hub;
use epoxide_pipes::hub::{HubOptions, Member, websocket_close};
use epoxide_pipes::transport::{Receive, Transmit, Transport};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tungstenite::Message;

/// What the hubs can be told.
#[derive(Args, Clone, Debug)]
pub struct HubArgs {
    /// Where and how wide.
    #[command(flatten)]
    pub server: ServerArgs,
    /// Only pages of this origin may connect, e.g. `https://example.org`; programs that are no browsers may as well.
    #[arg(long)]
    pub origin: Option<String>,
    /// Seconds between two pings; a member that answers none for two of them is let go.
    #[arg(long, default_value_t = 20)]
    pub ping: u64,
    /// KiB that may wait for a member; beyond, it is disconnected.
    #[arg(long, default_value_t = 4096)]
    pub backlog: usize,
    /// All members see all messages in one order.
    #[arg(long)]
    pub sequenced: bool,
}

/// What every connection of a hub shares.
#[derive(Clone)]
pub struct App {
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

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("hub", &self.hub).finish_non_exhaustive()
    }
}

/// The half that a hub makes a member of.
pub trait Share: Transmit {
    /// See [`WriteHalf::into_shared`].
    ///
    /// # Errors
    /// What was staged could not be sent.
    fn share(self, limits: SharedLimits) -> io::Result<SharedWriter>;
}

impl Share for WriteHalf {
    fn share(self, limits: SharedLimits) -> io::Result<SharedWriter> {
        Ok(self.into_shared(limits))
    }
}

#[cfg(feature = "tls")]
impl Share for epoxide_tls::TlsWriteHalf {
    fn share(self, limits: SharedLimits) -> io::Result<SharedWriter> {
        self.into_shared(limits)
    }
}

/// Runs a hub until Ctrl-C, then prints its counters. `handler` makes what serves the connections, by [`join`]; `hint` says
/// how to try it.
///
/// # Errors
/// What kept the server from starting, or the fault by which a reactor ended; an option that cannot work.
pub fn run<H, F>(
    name: &str,
    args: HubArgs,
    hint: impl FnOnce(SocketAddr) -> String,
    handler: impl FnOnce(App) -> H,
) -> io::Result<()>
where
    H: Fn(Connection) -> F + Clone + Send + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
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
    let mut server = args.server.builder();
    server.listen(args.server.target(), handler(app));
    let runtime = server.build()?;
    let handles = runtime.handles();
    server::run_runtime(name, runtime, Duration::from_secs(5), hint)?;
    let (mut accepted, mut closed) = (0, 0);
    for handle in &handles {
        accepted += handle.stats().accepted;
        closed += handle.stats().closed;
    }
    say(format_args!("accepted {accepted}\nclosed {closed}"));
    say(format_args!("entered {}\nleft {}", counts.entered.load(Relaxed), counts.left.load(Relaxed)));
    say(format_args!("{}", hub.stats()));
    Ok(())
}

/// What is there, or the next that comes; `None` at the end, and at a drain.
async fn receive(reader: &mut impl Receive) -> io::Result<Option<RecvBuf>> {
    reader.begin_wait();
    poll_fn(|cx| reader.poll_receive_idle(cx)).await
}

/// For browsers: a page that joins.
const PAGE: &str = include_str!("hub_room.html");
/// How they ask for it: in one piece.
const ASKS_FOR_THE_PAGE: &[u8] = b"GET / HTTP/1.";

fn page() -> Vec<u8> {
    let length = PAGE.len();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n";
    format!("{head}Content-Length: {length}\r\n\r\n{PAGE}").into_bytes()
}

/// The WebSocket's handshake. `None`: it came to nothing, and that was said.
async fn open(
    reader: &mut impl Receive,
    writer: &mut impl Transmit,
    check: CheckOrigin,
) -> io::Result<Option<Session>> {
    let mut session = Session::new(check);
    let mut first = true;
    loop {
        let Some(data) = receive(reader).await? else { return Ok(None) };
        let (event, answer) = if std::mem::take(&mut first) && data.starts_with(ASKS_FOR_THE_PAGE) {
            (Event::End, page())
        } else {
            session.feed(&data);
            session.event()
        };
        drop(data);
        writer.stage(&answer)?;
        poll_fn(|cx| writer.poll_flush(cx)).await?;
        match event {
            Event::Open => return Ok(Some(session)),
            Event::End => return Ok(None),
            _ => {}
        }
    }
}

/// Serves a connection: a member from its WebSocket's handshake to its end.
///
/// # Errors
/// Why the connection ended, if not by the client's FIN.
pub async fn join<T>(conn: T, app: App) -> io::Result<()>
where
    T: Transport,
    T::Writer: Share,
{
    app.counts.entered.fetch_add(1, Relaxed);
    let _inside = Inside(app.counts.clone());
    let (mut reader, mut writer) = conn.into_halves();
    let opened = time::timeout(HEAD_DEADLINE, open(&mut reader, &mut writer, app.check.clone())).await;
    let Ok(session) = opened else { return Err(io::ErrorKind::TimedOut.into()) };
    let Some(session) = session? else { return Ok(()) };
    // A member may be silent for hours; one that is gone is found by pings.
    let _silent = reader.suspend_read_timeout();
    let member = app.hub.join(writer.share(app.limits)?)?;
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

async fn messages(reader: &mut impl Receive, member: &Member, mut session: Session, app: &App) -> io::Result<End> {
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
        match time::timeout(app.ping, receive(reader)).await {
            Ok(read) => match read? {
                Some(data) => {
                    unanswered = 0;
                    session.feed(&data);
                }
                None => return Ok(if reader.draining().has_begun() { End::Draining } else { End::Gone }),
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
