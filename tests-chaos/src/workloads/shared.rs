//! Job: publishers on several threads share one writer: whole frames, each publisher's in order, none lost.
//! State owned: none. Thread class: the driver's thread; publishers and parties run anywhere.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use epoxide::{Connection, ReadHalf, Refusal, SendOutcome, SharedLimits, SharedWriter};
use epoxide_tests_e2e::{Rng, loopback};

use super::connect_all;
use crate::stream::{End, byte};
use crate::trial::{Note, Trial};

/// Publisher, number, length of the rest: one, four and four bytes.
const HEAD: usize = 9;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let (writers, shared) = channel();
    let writers = Arc::new(std::sync::Mutex::new(writers));
    let limits = SharedLimits {
        frames: [2, 16, 1024][trial.rng.below(3) as usize],
        bytes: [2000, 1 << 20][trial.rng.below(2) as usize],
        age: Duration::ZERO,
        half_open: false,
    };
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| {
            let writers = writers.clone();
            async move {
                let Ok(client) = connection.peer_addr() else { return };
                let (mut reader, writer) = connection.into_shared(limits);
                let _ = writers.lock().map(|writers| writers.send((client, writer)));
                while let Ok(Some(_)) = reader.read().await {}
            }
        });
    })?;
    let strict = !trial.plan.is_harsh();
    let addr = trial.runtime().local_addrs()[0];
    let count = 1 + trial.rng.below(3) as usize;
    let mut readers = Vec::new();
    for connection in connect_all(trial, addr, count, true)? {
        let Ok(name) = connection.local_addr() else { continue };
        // The write half stays: our FIN would end what we want to read.
        let (reader, writer) = connection.into_split();
        let place = trial.anywhere();
        let got = trial.party(format!("reader {name}"), place, move |note| async move {
            let got = read_frames(reader, note).await;
            drop(writer);
            got
        });
        readers.push((name, got));
    }
    let mut published = Vec::new();
    for _ in 0..readers.len() {
        let Some((client, writer)) = next(&shared, strict, trial)? else { break };
        let publishers = 1 + trial.rng.below(4) as usize;
        for p in 0..publishers {
            let (place, rng, writer) = (trial.anywhere(), trial.fork(), writer.clone());
            let frames = 20 + trial.rng.below(200) as u32;
            let sent = trial.party(format!("publisher {p} to {client}"), place, move |note| {
                publish(writer, p as u8, frames, rng, note)
            });
            published.push((client, p, sent));
        }
        // The publishers hold the last clones: the FIN goes out behind their frames.
        drop(writer);
    }
    let mut promised = Vec::new();
    for (client, p, party) in published {
        promised.push((client, p, trial.join(party)?));
    }
    // Whoever is accepted from here on, by the drain perhaps, is let go.
    drop(shared);
    for (name, party) in readers {
        let (counts, end) = trial.join(party)?;
        let of =
            |p: usize| promised.iter().find(|(client, number, _)| *client == name && *number == p).map(|(.., n)| n);
        for (p, count) in counts.iter().enumerate() {
            let accepted = of(p).map_or(0, |sent: &Result<u32, String>| match sent {
                Ok(n) => *n,
                Err(_) => u32::MAX,
            });
            let wrong = match end {
                End::Corrupt(_) => true,
                // All that was accepted, unless a publisher met the end: then its refusal told it so.
                End::Fin => accepted < u32::MAX && *count != accepted,
                End::Error(..) => strict,
            };
            if wrong {
                return Err(format!(
                    "WRONG: {name} got {count} frames of publisher {p}, which sent {:?}; end {end:?}",
                    of(p)
                ));
            }
        }
        let failed = promised.iter().any(|(client, _, sent)| *client == name && sent.is_err());
        if strict && (failed || end != End::Fin) {
            return Err(format!("LOST: {name} ended with {end:?}, its publishers: {promised:?}"));
        }
    }
    trial.finish()
}

type Accepted = (std::net::SocketAddr, SharedWriter);

fn next(shared: &Receiver<Accepted>, strict: bool, trial: &Trial) -> Result<Option<Accepted>, String> {
    match shared.recv_timeout(Duration::from_secs(5)) {
        Ok(accepted) => Ok(Some(accepted)),
        Err(_) if strict => Err(format!("HANG: a connection was never accepted\n{}", trial.diagnosis())),
        Err(_) => Ok(None),
    }
}

/// Sends so many frames; waits where the limits say so. How many were accepted, all of them unless the connection ended.
async fn publish(writer: SharedWriter, publisher: u8, frames: u32, mut rng: Rng, note: Note) -> Result<u32, String> {
    for number in 0..frames {
        note.say(format!("frame {number} of {frames}"));
        let most = [10, 300, 3000][rng.below(3) as usize];
        let rest = rng.below(most) as usize;
        let mut frame = vec![publisher];
        frame.extend_from_slice(&number.to_le_bytes());
        frame.extend_from_slice(&(rest as u32).to_le_bytes());
        frame.extend((0..rest).map(|at| byte(u64::from(publisher) << 32 | u64::from(number), at)));
        let mut frame = Bytes::from(frame);
        loop {
            match writer.send(frame) {
                SendOutcome::Sent | SendOutcome::Queued => break,
                SendOutcome::Refused(Refusal::Closed(reason), _) => {
                    return Err(format!("{number} accepted, then {reason}"));
                }
                SendOutcome::Refused(_, back) => {
                    frame = back;
                    note.say(format!("waiting with frame {number} of {frames}"));
                    writer.flush().await.map_err(|error| format!("{number} accepted, then {error}"))?;
                }
            }
        }
    }
    if rng.below(2) == 0 {
        note.say("flushing at the end");
        writer.flush().await.map_err(|error| error.to_string())?;
    }
    Ok(frames)
}

/// Whole frames in each publisher's order, until the end: how many of each.
async fn read_frames(mut reader: ReadHalf, note: Note) -> ([u32; 8], End) {
    let mut counts = [0_u32; 8];
    let mut held = Vec::new();
    loop {
        note.say(format!("frames so far: {counts:?}, {} bytes held", held.len()));
        match reader.read().await {
            Ok(Some(got)) => held.extend_from_slice(&got),
            Ok(None) if held.is_empty() => return (counts, End::Fin),
            Ok(None) => return (counts, End::Corrupt(format!("a clean end inside a frame: {} bytes", held.len()))),
            Err(error) => return (counts, End::of(&error)),
        }
        let mut used = 0;
        while held.len() - used >= HEAD {
            let frame = &held[used..];
            let word = |at: usize| u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
            let (publisher, number, rest) = (frame[0] as usize, word(1), word(5) as usize);
            if publisher >= 8 || rest > 3000 || number != counts[publisher] {
                return (counts, End::Corrupt(format!("frame {number} of publisher {publisher}, length {rest}")));
            }
            if frame.len() < HEAD + rest {
                break;
            }
            let key = (publisher as u64) << 32 | u64::from(number);
            if let Some(at) = (0..rest).find(|at| frame[HEAD + at] != byte(key, *at)) {
                return (counts, End::Corrupt(format!("byte {at} of frame {number} of publisher {publisher}")));
            }
            counts[publisher] += 1;
            used += HEAD + rest;
        }
        held.drain(..used);
    }
}
