//! Job: what is attacked, and what several workloads share: an echoing handler that moves about, and clients whose
//! halves run apart.
//! State owned: none. Thread class: handlers and parties run anywhere.

mod churn;
mod echo;
mod file;
mod halves;
mod hub;
mod pipes;
mod rehome;
mod shared;
mod stale;
mod stop;
mod timers;
#[cfg(feature = "tls")]
mod tls;
#[cfg(feature = "tls")]
mod tls_threads;
mod unruly;
mod wakes;
mod workers;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use epoxide::{Connection, ReactorHandle, workers as pool};
use epoxide_tests_e2e::{Rng, loopback};

use crate::plan::Kind;
use crate::stream::{self, Got, Sink, Source};
use crate::trial::{Note, Party, Trial};
use crate::verdict::{Ledger, Served};

/// A workload: starts the runtime of the trial, attacks it, judges, and lets the trial do its accounts.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Its name on the command line.
    pub name: &'static str,
    /// One run. An error says what is wrong.
    pub run: fn(&mut Trial) -> Result<(), String>,
}

/// All of them; those of TLS only with the feature `tls`, which needs BoringSSL.
pub const ALL: &[Workload] = &[
    Workload { name: "echo", run: echo::echo },
    Workload { name: "relay", run: echo::relay },
    Workload { name: "churn", run: churn::run },
    Workload { name: "timers", run: timers::run },
    Workload { name: "workers", run: workers::run },
    Workload { name: "wakes", run: wakes::run },
    Workload { name: "shared", run: shared::run },
    Workload { name: "halves", run: halves::run },
    Workload { name: "file", run: file::run },
    Workload { name: "hub", run: hub::run },
    Workload { name: "pipes", run: pipes::run },
    Workload { name: "rehome", run: rehome::run },
    Workload { name: "stale", run: stale::run },
    Workload { name: "stop", run: stop::run },
    Workload { name: "unruly", run: unruly::run },
    #[cfg(feature = "tls")]
    Workload { name: "tls", run: tls::run },
    #[cfg(feature = "tls")]
    Workload { name: "tls_threads", run: tls_threads::run },
];

/// Fails by design under every plan that cuts a recv short: so that the report and the shrinking are tested. Not among
/// [`ALL`].
pub const FAILS: Workload = Workload { name: "fails", run: fails };

fn fails(trial: &mut Trial) -> Result<(), String> {
    let is_cut_short = trial.plan.rules.iter().any(|(_, rule)| rule.kind == Kind::RecvShort);
    if is_cut_short { Err("this workload fails by design".into()) } else { Ok(()) }
}

/// The reactors of a trial, for handlers: known once the runtime has started.
pub(crate) type Reactors = Arc<OnceLock<Vec<ReactorHandle>>>;

/// What a handler needs to echo.
#[derive(Clone)]
pub(crate) struct Echo {
    pub(crate) ledger: Ledger,
    pub(crate) reactors: Reactors,
    pub(crate) seed: u64,
    pub(crate) board: crate::trial::Board,
}

impl Echo {
    pub(crate) fn new(trial: &mut Trial) -> Self {
        Self {
            ledger: Ledger::default(),
            reactors: Reactors::default(),
            seed: trial.rng.next_u64(),
            board: trial.board.clone(),
        }
    }

    /// To be called when the runtime has started.
    pub(crate) fn started(&self, trial: &Trial) {
        let _ = self.reactors.set(trial.runtime().handles());
    }

    /// Echoes, on its reactor or elsewhere, and reports.
    pub(crate) async fn serve(self, connection: Connection) {
        // Reset while it waited in the queue: nobody asks for a report.
        let Ok(client) = connection.peer_addr() else { return };
        let mut rng = Rng::new(self.seed ^ u64::from(client.port()));
        let note = self.board.line(format!("handler of {client}"));
        let elsewhere = rng.below(5);
        let rounds = 1 + rng.below(20) as usize;
        let served = match elsewhere {
            0 | 1 => echo_some(connection, usize::MAX, rng, &note).await.1,
            2 => hop(connection, rounds, rng, &self.reactors, &note).await,
            3 => {
                let note = note.clone();
                let task = pool::spawn(async move { echo_some(connection, usize::MAX, rng, &note).await.1 });
                task.await.unwrap_or(Some(Served::Cut))
            }
            _ => {
                let other = self.reactors.get().and_then(|all| all.last().cloned());
                let note = note.clone();
                let task = move || async move { echo_some(connection, usize::MAX, rng, &note).await.1 };
                match other.and_then(|reactor| reactor.spawn_with(task).ok()) {
                    Some(task) => task.await.unwrap_or(Some(Served::Cut)),
                    // It came back, with the connection in it, and was let go here.
                    None => Some(Served::LetGo),
                }
            }
        };
        note.say("");
        self.ledger.report(client, served.unwrap_or(Served::LetGo));
    }
}

/// Echoes a few rounds here, a few there.
async fn hop(connection: Connection, rounds: usize, mut rng: Rng, reactors: &Reactors, note: &Note) -> Option<Served> {
    let mut connection = connection;
    loop {
        let (to, next) = (rng.below(3), Rng::new(rng.next_u64()));
        let line = note.clone();
        let work = move || async move { echo_some(connection, rounds, next, &line).await };
        let done = match (to, reactors.get()) {
            (1, _) => pool::spawn(work()).await.ok(),
            (2, Some(all)) => match all[rng.below(all.len() as u64) as usize].spawn_with(work) {
                Ok(task) => task.await.ok(),
                // It came back, with the connection in it, and is let go here.
                Err(_) => return Some(Served::LetGo),
            },
            _ => Some(work().await),
        };
        match done {
            Some((Some(back), None)) => connection = back,
            Some((_, served)) => return served,
            None => return Some(Served::Cut),
        }
    }
}

/// Echoes so many reads; gives the connection back unless it is done.
pub(crate) async fn echo_some(
    mut connection: Connection,
    rounds: usize,
    mut rng: Rng,
    note: &Note,
) -> (Option<Connection>, Option<Served>) {
    let mut total = 0;
    for _ in 0..rounds {
        note.say(format!("reading after {total}"));
        let got = match connection.read().await {
            Ok(Some(got)) => got,
            Ok(None) => {
                note.say(format!("shutting down after {total}"));
                let served = match connection.shutdown().await {
                    Ok(()) => Served::Whole,
                    Err(error) => Served::WriteFailed(error.to_string()),
                };
                return (None, Some(served));
            }
            Err(error) => return (None, Some(Served::ReadFailed(error.to_string()))),
        };
        total += got.len();
        note.say(format!("flushing {} up to {total}", got.len()));
        let staged = if rng.below(2) == 0 { connection.stage(&got) } else { connection.stage_bytes(got.freeze()) };
        let flushed = match staged {
            Ok(()) => connection.flush().await,
            Err(limit) => Err(std::io::Error::other(limit.to_string())),
        };
        if let Err(error) = flushed {
            return (None, Some(Served::WriteFailed(error.to_string())));
        }
    }
    (Some(connection), None)
}

/// A client that sends a stream and gets one back, its halves apart.
pub(crate) struct Client {
    name: String,
    pub(crate) addr: SocketAddr,
    len: usize,
    sent: Party<Result<(), String>>,
    got: Party<Got>,
}

/// Connects clients, all at once, from anywhere. With `all` a gentle plan must let every one of them through.
pub(crate) fn connect_all(
    trial: &mut Trial,
    to: SocketAddr,
    count: usize,
    all: bool,
) -> Result<Vec<Connection>, String> {
    let mut parties = Vec::new();
    for i in 0..count {
        let place = trial.anywhere();
        let reactor = trial.runtime().handles()[trial.rng.below(2) as usize].clone();
        parties.push(trial.party(format!("connect {i}"), place, |note| {
            note.say("connecting");
            async move { reactor.connect(to).await }
        }));
    }
    let mut connections = Vec::new();
    for party in parties {
        match trial.join(party)? {
            Ok(connection) => connections.push(connection),
            Err(error) if trial.plan.is_harsh() || !all => drop(error),
            Err(error) => return Err(format!("LOST: a connect failed though the plan loses nothing: {error}")),
        }
    }
    Ok(connections)
}

/// A runtime that echoes, and where.
pub(crate) fn start_echo(trial: &mut Trial) -> Result<(Echo, SocketAddr), String> {
    let echo = Echo::new(trial);
    let handler = echo.clone();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| handler.clone().serve(connection));
    })?;
    echo.started(trial);
    let addr = trial.runtime().local_addrs()[0];
    Ok((echo, addr))
}

/// Connects up to `most` clients, as [`connect_all`] does, and starts their halves; their streams are `factor` times as
/// long as usual.
pub(crate) fn start_clients(
    trial: &mut Trial,
    to: SocketAddr,
    most: u64,
    all: bool,
    factor: usize,
) -> Result<Vec<Client>, String> {
    let count = 1 + trial.rng.below(most) as usize;
    let connections = connect_all(trial, to, count, all)?;
    let mut clients = Vec::new();
    for (i, connection) in connections.into_iter().enumerate() {
        let len = length(&mut trial.rng) * factor;
        clients.extend(start_client(trial, i, connection, len));
    }
    Ok(clients)
}

/// Starts both halves of a client. `None`: it was reset before it had an address.
fn start_client(trial: &mut Trial, i: usize, connection: Connection, len: usize) -> Option<Client> {
    let addr = connection.local_addr().ok()?;
    let (reader, writer) = connection.into_split();
    Some(start_halves(trial, i, addr, reader, writer, len))
}

/// Starts the halves of a client that is there.
pub(crate) fn start_halves(
    trial: &mut Trial,
    i: usize,
    addr: SocketAddr,
    reader: impl Source + 'static,
    writer: impl Sink + 'static,
    len: usize,
) -> Client {
    let key = trial.rng.next_u64();
    let name = format!("client {i} at {addr}");
    let sent = sender(trial, &name, writer, key, len);
    let got = receiver(trial, &name, reader, key);
    Client { name, addr, len, sent, got }
}

pub(crate) fn sender(
    trial: &mut Trial,
    name: &str,
    mut writer: impl Sink + 'static,
    key: u64,
    len: usize,
) -> Party<Result<(), String>> {
    let (place, rng) = (trial.anywhere(), trial.fork());
    trial.party(format!("{name} sends"), place, |note| async move {
        stream::send(&mut writer, key, len, rng, note).await.map_err(|error| error.to_string())
    })
}

pub(crate) fn receiver(trial: &mut Trial, name: &str, mut reader: impl Source + 'static, key: u64) -> Party<Got> {
    let (place, rng) = (trial.anywhere(), trial.fork());
    trial.party(
        format!("{name} receives"),
        place,
        |note| async move { stream::receive(&mut reader, key, rng, note).await },
    )
}

/// A length: mostly small, sometimes past every buffer.
pub(crate) fn length(rng: &mut Rng) -> usize {
    let most = [10, 1000, 30_000, 300_000][rng.below(4) as usize];
    1 + rng.below(most) as usize
}

impl Client {
    /// Waits for both halves and judges.
    pub(crate) fn judge(self, trial: &Trial, ledger: &Ledger, strict: bool) -> Result<(), String> {
        let sent = trial.join(self.sent)?;
        let got = trial.join(self.got)?;
        settle(ledger, self.addr, &got);
        crate::verdict::echoed(&self.name, strict, self.len, &sent, &got, ledger.of(self.addr).as_ref())
    }

    /// The same where the runtime may have been stopped under it.
    pub(crate) fn judge_cut(self, trial: &Trial, ledger: &Ledger) -> Result<(), String> {
        let sent = trial.join_if_any(self.sent)?.unwrap_or_else(|| Err("dropped".into()));
        let Some(got) = trial.join_if_any(self.got)? else { return Ok(()) };
        crate::verdict::echoed(&self.name, false, self.len, &sent, &got, ledger.of(self.addr).as_ref())
    }
}

/// A handler reports after its last call: the client may be ahead.
fn settle(ledger: &Ledger, client: SocketAddr, got: &Got) {
    if got.end == stream::End::Fin {
        let _ = epoxide_tests_e2e::wait_until(std::time::Duration::from_secs(2), || ledger.of(client).is_some());
    }
}
