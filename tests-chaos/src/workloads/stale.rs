//! Job: slots that change hands quickly while events come late: what belonged to a client that has gone must not end its
//! successor. The successor is a shared writer without a reader, which a stale FIN would end.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::net::SocketAddr;
use std::time::Duration;

use epoxide::{Connection, ReactorHandle, SendOutcome, SharedLimits, time};
use epoxide_tests_e2e::{Rng, loopback};

use crate::stream::byte;
use crate::trial::{Note, Trial};

/// Bytes of a frame, and frames of a subscription.
const FRAME: usize = 40;
const FRAMES: usize = 8;
const KEY: u64 = 77;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    trial.start(|b| {
        b.listen(loopback(), serve);
    })?;
    let addr = trial.runtime().local_addrs()[0];
    let strict = !trial.plan.is_harsh();
    let mut parties = Vec::new();
    for i in 0..4 {
        let (place, rng) = (trial.anywhere(), trial.fork());
        let reactor = trial.runtime().handles()[i % 2].clone();
        parties.push(trial.party(format!("pair {i}"), place, move |note| pairs(reactor, addr, strict, rng, note)));
    }
    for party in parties {
        trial.join(party)??;
    }
    trial.finish()
}

/// Whoever says something is sent frames and not read from any more; whoever does not is let go.
async fn serve(connection: Connection) {
    let (mut reader, writer) = connection.into_shared(SharedLimits::default());
    if !matches!(reader.read().await, Ok(Some(_))) {
        return;
    }
    drop(reader);
    for number in 0..FRAMES {
        let frame: Vec<u8> = (0..FRAME).map(|at| byte(KEY, number * FRAME + at)).collect();
        if let SendOutcome::Refused(..) = writer.send(frame) {
            return;
        }
        time::sleep(Duration::from_micros(300)).await;
    }
}

/// One that comes and goes, then one that stays a while, over and over.
async fn pairs(reactor: ReactorHandle, addr: SocketAddr, strict: bool, mut rng: Rng, note: Note) -> Result<(), String> {
    for round in 0..15 {
        note.say(format!("round {round}: coming and going"));
        if let Ok(mut guest) = reactor.connect(addr).await {
            if rng.below(2) == 0 {
                let _ = guest.shutdown().await;
                while let Ok(Some(_)) = guest.read().await {}
            }
            drop(guest);
        }
        note.say(format!("round {round}: staying"));
        match stays(&reactor, addr, round, &note).await {
            Ok(()) => {}
            Err(what) if what.starts_with("WRONG") || strict => return Err(format!("round {round}: {what}")),
            Err(_) => {}
        }
    }
    Ok(())
}

async fn stays(reactor: &ReactorHandle, addr: SocketAddr, round: usize, note: &Note) -> Result<(), String> {
    let mut connection = reactor.connect(addr).await.map_err(|error| error.to_string())?;
    connection.send_all(b"x").await.map_err(|error| error.to_string())?;
    let mut at = 0;
    loop {
        note.say(format!("round {round}: {at} of {} bytes came", FRAME * FRAMES));
        match connection.read().await.map_err(|error| error.to_string())? {
            Some(got) => {
                crate::stream::check(KEY, at, &got).map_err(|what| format!("WRONG: {what}"))?;
                at += got.len();
            }
            None if at == FRAME * FRAMES => return Ok(()),
            None => return Err(format!("a clean end after {at} of {} bytes", FRAME * FRAMES)),
        }
    }
}
