//! Job: connections that come and go: one request, one answer, and every way to end; connects that are given up.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::io;
use std::net::SocketAddr;

use epoxide::{Connection, ReactorHandle};
use epoxide_tests_e2e::{Rng, loopback};

use crate::stream::once;
use crate::trial::{Note, Trial};

/// A request: what the answer's length is to be, in eight bytes.
const REQUEST: usize = 8;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    trial.start(|b| {
        b.listen(loopback(), serve);
    })?;
    let addr = trial.runtime().local_addrs()[0];
    let mut parties = Vec::new();
    let strict = !trial.plan.is_harsh();
    for i in 0..6 {
        let (place, rng) = (trial.anywhere(), trial.fork());
        let reactor = trial.runtime().handles()[i % 2].clone();
        parties.push(trial.party(format!("visitor {i}"), place, move |note| visits(reactor, addr, strict, rng, note)));
    }
    for party in parties {
        trial.join(party)??;
    }
    trial.finish()
}

/// Answers every request with as many bytes as it asks for.
async fn serve(mut connection: Connection) -> io::Result<()> {
    let mut asked = Vec::new();
    while let Some(got) = connection.read_idle().await? {
        asked.extend_from_slice(&got);
        drop(got);
        while asked.len() >= REQUEST {
            let mut number = [0; REQUEST];
            number.copy_from_slice(&asked[..REQUEST]);
            asked.drain(..REQUEST);
            let len = u64::from_le_bytes(number) as usize;
            connection.send_all(&vec![len as u8; len]).await?;
        }
    }
    Ok(())
}

async fn visits(
    reactor: ReactorHandle,
    addr: SocketAddr,
    strict: bool,
    mut rng: Rng,
    note: Note,
) -> Result<(), String> {
    for round in 0..20 {
        note.say(format!("round {round}: connecting"));
        if rng.below(6) == 0 {
            // Given up, decided or not.
            let _ = once(reactor.connect(addr)).await;
            continue;
        }
        let answered = match reactor.connect(addr).await {
            Ok(connection) => visit(connection, &mut rng, round, &note).await,
            Err(error) => Err(error.to_string()),
        };
        match answered {
            Ok(()) => {}
            Err(what) if what.starts_with("WRONG") || strict => return Err(format!("round {round}: {what}")),
            Err(_) => {}
        }
    }
    Ok(())
}

async fn visit(mut connection: Connection, rng: &mut Rng, round: usize, note: &Note) -> Result<(), String> {
    let failed = |error: io::Error| error.to_string();
    let end = rng.below(7);
    if end == 0 {
        // Leaves without a word.
        return Ok(());
    }
    for _ in 0..=rng.below(3) {
        let most = [10, 1000, 20_000][rng.below(3) as usize];
        let len = rng.below(most) as usize + 1;
        note.say(format!("round {round}: asking for {len}"));
        connection.send_all(&(len as u64).to_le_bytes()).await.map_err(failed)?;
        if end == 1 {
            // Leaves with the answer on its way.
            return Ok(());
        }
        let mut left = len;
        while left > 0 {
            note.say(format!("round {round}: {left} of {len} to come"));
            match connection.read().await.map_err(failed)? {
                Some(got) if got.len() <= left && got.iter().all(|b| *b == len as u8) => left -= got.len(),
                Some(got) => return Err(format!("WRONG: {} bytes came of {left}, or others", got.len())),
                // The handler ends cleanly only when we do, or when its own read or write failed.
                None => return Err(format!("a clean end with {left} of {len} to come")),
            }
        }
    }
    match end {
        2 => connection.reset(),
        3 => connection.close_handle().close(),
        4 => {
            connection.shutdown().await.map_err(failed)?;
            note.say(format!("round {round}: waiting for the end"));
            if connection.read().await.map_err(failed)?.is_some() {
                return Err("WRONG: more came than was asked for".into());
            }
        }
        5 => {
            let (reader, writer) = connection.into_split();
            drop(writer);
            drop(reader);
        }
        _ => drop(connection),
    }
    Ok(())
}
