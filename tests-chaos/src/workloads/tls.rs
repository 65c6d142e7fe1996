//! Job: streams that come back over TLS, sessions whose halves run apart; and what the TLS workloads share: handshakes from
//! anywhere, and sessions as streams.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::io;
use std::net::SocketAddr;

use epoxide::{Connection, workers as pool};
use epoxide_tests_e2e::{Rng, loopback};
use epoxide_tls::{TlsConfig, TlsConnection, TlsReadHalf, TlsWriteHalf};

use super::{Echo, connect_all, length, start_halves};
use crate::identity::configs;
use crate::stream::halves;
use crate::trial::{Note, Trial};
use crate::verdict::Served;

halves! {
    TlsWriteHalf {
        fn renew(&mut self, rng: &mut Rng) -> io::Result<()> {
            match rng.below(12) {
                0 => self.update_keys(true),
                1 => self.update_keys(false),
                _ => Ok(()),
            }
        }
    }
    TlsReadHalf
}

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let (server, client) = configs()?;
    let echo = Echo::new(trial);
    let handler = echo.clone();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| serve(handler.clone(), server.clone(), connection));
    })?;
    echo.started(trial);
    let addr = trial.runtime().local_addrs()[0];
    let strict = !trial.plan.is_harsh();
    let count = 1 + trial.rng.below(4) as usize;
    let mut clients = Vec::new();
    for (i, (addr, session)) in shake(trial, &client, addr, count, "chaos", strict)?.into_iter().enumerate() {
        let len = length(&mut trial.rng);
        let (reader, writer) = session.into_split();
        clients.push(start_halves(trial, i, addr, reader, writer, len));
    }
    for client in clients {
        client.judge(trial, &echo.ledger, strict)?;
    }
    drop(echo);
    trial.finish()
}

/// Connects so many clients and makes their side of the handshakes, from anywhere. With `strict` all must come through.
pub(super) fn shake(
    trial: &mut Trial,
    config: &TlsConfig,
    to: SocketAddr,
    count: usize,
    host: &str,
    strict: bool,
) -> Result<Vec<(SocketAddr, TlsConnection)>, String> {
    let mut parties = Vec::new();
    for connection in connect_all(trial, to, count, true)? {
        let Ok(addr) = connection.local_addr() else { continue };
        let (place, shaking) = (trial.anywhere(), config.connect_over(connection, host));
        let party = trial.party(format!("handshake of {addr}"), place, |note| {
            note.say("shaking hands");
            shaking
        });
        parties.push((addr, party));
    }
    let mut sessions = Vec::new();
    for (addr, party) in parties {
        match trial.join(party)? {
            Ok(session) => sessions.push((addr, session)),
            Err(error) if strict => return Err(format!("LOST: the handshake of {addr} failed: {error}")),
            Err(_) => {}
        }
    }
    Ok(sessions)
}

/// Shakes hands and echoes, on its reactor or elsewhere, and reports.
async fn serve(echo: Echo, config: TlsConfig, connection: Connection) {
    // Reset while it waited in the queue: nobody asks for a report.
    let Ok(client) = connection.peer_addr() else { return };
    let mut rng = Rng::new(echo.seed ^ u64::from(client.port()));
    let note = echo.board.line(format!("handler of {client}"));
    note.say("shaking hands");
    let line = note.clone();
    let (shakes_on_pool, serves_on_pool) = (rng.below(2) == 0, rng.below(2) == 0);
    let shaking = config.accept(connection);
    let shaken = if shakes_on_pool { pool::spawn(shaking).await.ok() } else { Some(shaking.await) };
    let served = match shaken {
        Some(Ok(session)) if serves_on_pool => {
            pool::spawn(async move { back(session, rng, &line).await }).await.unwrap_or(Served::Cut)
        }
        Some(Ok(session)) => back(session, rng, &line).await,
        Some(Err(error)) => Served::ReadFailed(error.to_string()),
        None => Served::Cut,
    };
    note.say("");
    echo.ledger.report(client, served);
}

/// Sends back what comes, with new keys now and then.
async fn back(mut session: TlsConnection, mut rng: Rng, note: &Note) -> Served {
    let mut total = 0;
    loop {
        note.say(format!("reading after {total}"));
        let got = match session.read().await {
            Ok(Some(got)) => got,
            Ok(None) => break,
            Err(error) => return Served::ReadFailed(error.to_string()),
        };
        total += got.len();
        note.say(format!("flushing {} up to {total}", got.len()));
        let renewed = if rng.below(20) == 0 { session.update_keys(rng.below(2) == 0) } else { Ok(()) };
        let staged = if rng.below(2) == 0 { session.stage(&got) } else { session.stage_bytes(got.freeze()) };
        let flushed = match (renewed, staged) {
            (Ok(()), Ok(())) => session.flush().await,
            (Err(error), _) => Err(error),
            (_, Err(limit)) => Err(io::Error::other(limit.to_string())),
        };
        if let Err(error) = flushed {
            return Served::WriteFailed(error.to_string());
        }
    }
    note.say(format!("shutting down after {total}"));
    match session.shutdown().await {
        Ok(()) => Served::Whole,
        Err(error) => Served::WriteFailed(error.to_string()),
    }
}
