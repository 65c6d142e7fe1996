//! Job: publishers on several threads broadcast to members through a hub: whole frames, each publisher's in order, all of
//! them to every member whose connection holds.
//! State owned: none. Thread class: the driver's thread; publishers and parties run anywhere.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use epoxide::{Connection, SharedLimits};
use epoxide_pipes::Hub;
use epoxide_pipes::hub::{BacklogLimits, BroadcastError, HubOptions};
use epoxide_tests_e2e::{Rng, loopback, wait_until};

use super::connect_all;
use super::shared::{frame, read_frames};
use crate::stream::End;
use crate::trial::{Note, Place, Trial};

/// Nobody is slow: what is missing is lost.
const ROOM: usize = 1 << 28;
/// Longer than what a plan's jumps of the clock add up to (16 s): the close must not cut.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let strict = !trial.plan.is_harsh();
    let backlog = BacklogLimits { frames: ROOM, bytes: ROOM, age: Duration::ZERO };
    let options = HubOptions { sequenced: trial.rng.below(2) == 0, backlog, bytes: ROOM, ..HubOptions::default() };
    let hub = Hub::new(options).map_err(|error| error.to_string())?;
    // Taken out before the first broadcast: who comes later would miss its beginning.
    let open = Arc::new(Mutex::new(Some(hub.clone())));
    let joins = open.clone();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| member(connection, joins.clone()));
    })?;
    let addr = trial.runtime().local_addrs()[0];
    let count = 1 + trial.rng.below(5) as usize;
    let mut readers = Vec::new();
    for connection in connect_all(trial, addr, count, true)? {
        let Ok(name) = connection.local_addr() else { continue };
        // The write half stays: our FIN would end what we want to read.
        let (reader, writer) = connection.into_split();
        let place = trial.anywhere();
        readers.push(trial.party(format!("member {name}"), place, move |note| async move {
            let got = read_frames(reader, note).await;
            drop(writer);
            got
        }));
    }
    let patience = Duration::from_secs(if strict { 10 } else { 1 });
    if !wait_until(patience, || hub.len() == readers.len()) && strict {
        return Err(format!("LOST: {} of {} have joined\n{}", hub.len(), readers.len(), trial.diagnosis()));
    }
    drop(open.lock().unwrap_or_else(PoisonError::into_inner).take());
    let mut publishers = Vec::new();
    for p in 0..1 + trial.rng.below(3) as u8 {
        let (place, rng, hub) = (trial.anywhere(), trial.fork(), hub.clone());
        let frames = 20 + trial.rng.below(100) as u32;
        let published = trial.party(format!("publisher {p}"), place, move |note| publish(hub, p, frames, rng, note));
        publishers.push((frames, published));
    }
    let mut sent = [0; 8];
    for (p, (frames, party)) in publishers.into_iter().enumerate() {
        trial.join(party)?.map_err(|error| format!("WRONG: an open hub with room refused publisher {p}: {error:?}"))?;
        sent[p] = frames;
    }
    let close = trial.party("the close", Place::Thread, move |_| async move { hub.close(PATIENCE).await });
    let closed = trial.join(close)?;
    for party in readers {
        let (counts, end) = trial.join(party)?;
        let wrong = match end {
            End::Corrupt(_) => true,
            // One that never joined was let go with nothing.
            End::Fin => counts != sent && (strict || counts != [0; 8]),
            End::Error(..) => strict,
        };
        if wrong {
            return Err(format!("WRONG: of {sent:?} frames a member got {counts:?}, then {end:?}; {closed:?}"));
        }
    }
    trial.finish()
}

async fn member(connection: Connection, open: Arc<Mutex<Option<Hub>>>) {
    let limits = SharedLimits { frames: ROOM, bytes: ROOM, age: Duration::ZERO, half_open: false };
    let (mut reader, writer) = connection.into_shared(limits);
    let joined = open.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|hub| hub.join(writer));
    let Some(Ok(_member)) = joined else { return };
    while let Ok(Some(_)) = reader.read().await {}
}

async fn publish(hub: Hub, publisher: u8, frames: u32, mut rng: Rng, note: Note) -> Result<(), BroadcastError> {
    for number in 0..frames {
        note.say(format!("frame {number} of {frames}"));
        let frame = frame(publisher, number, &mut rng);
        match rng.below(2) {
            0 => hub.broadcast(frame)?,
            _ => hub.broadcast_paced(frame).await?,
        };
    }
    Ok(())
}
