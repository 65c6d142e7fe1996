//! Job: streams that come back while their connections go from reactor to reactor.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::time::Duration;

use epoxide::{Connection, RehomeError, spawn_local};
use epoxide_tests_e2e::{Rng, loopback};

use super::{Echo, echo_some, start_clients};
use crate::stream::once;
use crate::trial::{Note, Trial};
use crate::verdict::Served;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let strict = !trial.plan.is_harsh();
    let echo = Echo::new(trial);
    let handler = echo.clone();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| serve(handler.clone(), connection, strict));
    })?;
    echo.started(trial);
    let addr = trial.runtime().local_addrs()[0];
    for client in start_clients(trial, addr, 6, true, 1)? {
        client.judge(trial, &echo.ledger, strict)?;
    }
    if strict && trial.runtime().stats().rehomed == 0 {
        return Err("VACUOUS: nothing has moved".into());
    }
    drop(echo);
    trial.finish()
}

async fn serve(echo: Echo, connection: Connection, strict: bool) {
    // Reset while it waited in the queue: nobody asks for a report.
    let Ok(client) = connection.peer_addr() else { return };
    let mut rng = Rng::new(echo.seed ^ u64::from(client.port()));
    let note = echo.board.line(format!("handler of {client}"));
    if !strict && rng.below(4) == 0 {
        // In the middle of a move, perhaps.
        let (handle, wait) = (connection.close_handle(), Duration::from_micros(rng.below(5_000)));
        spawn_local(async move {
            epoxide::time::sleep(wait).await;
            handle.reset();
        })
        .detach();
    }
    let served = wander(&echo, connection, rng, &note).await;
    note.say("");
    echo.ledger.report(client, served);
}

/// Moves, then echoes a few rounds, there or from where it began.
async fn wander(echo: &Echo, mut connection: Connection, mut rng: Rng, note: &Note) -> Served {
    let mut turns = 0;
    // Accepted before the trial knows its reactors: the next round moves.
    loop {
        turns += 1;
        if let Some(reactors) = echo.reactors.get() {
            let from = connection.reactor();
            let others: Vec<_> = reactors.iter().filter(|reactor| **reactor != from).collect();
            let target = others[rng.below(others.len() as u64) as usize];
            note.say(format!("moving to {target:?}"));
            // Given up half way: it stays, or has moved.
            let moved = match rng.below(4) {
                0 if turns > 1 => once(connection.rehome(target)).await,
                _ => Some(connection.rehome(target).await),
            };
            match moved {
                Some(Ok(())) => assert_eq!(connection.reactor(), *target, "moved, and it is elsewhere"),
                Some(Err(RehomeError::Stopped)) => panic!("a running reactor says that it has stopped"),
                // It stays; if it has ended, the next read says so.
                None | Some(Err(_)) => assert_eq!(connection.reactor(), from, "not moved, and it is elsewhere"),
            }
        }
        let (rounds, next, line) = (1 + rng.below(3) as usize, Rng::new(rng.next_u64()), note.clone());
        let done = if rng.below(2) == 0 {
            let there = connection.reactor();
            match there.spawn_with(move || async move { echo_some(connection, rounds, next, &line).await }) {
                Ok(task) => task.await,
                // It came back, with the connection in it, and is let go here.
                Err(_) => return Served::LetGo,
            }
        } else {
            Ok(echo_some(connection, rounds, next, &line).await)
        };
        match done {
            Ok((Some(back), None)) => connection = back,
            Ok((_, served)) => return served.unwrap_or(Served::LetGo),
            Err(_) => return Served::Cut,
        }
    }
}
