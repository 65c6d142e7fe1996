//! Job: handlers on the pool, jobs that block, and chains of tasks across reactors, workers and threads: every handle
//! settles with its value.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use epoxide::{Connection, ReactorHandle, workers as pool, yield_now};
use epoxide_tests_e2e::{Rng, loopback};

use super::{Echo, start_clients};
use crate::trial::{Note, Trial};
use crate::verdict::Served;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let echo = Echo::new(trial);
    let handler = echo.clone();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| {
            let echo = handler.clone();
            async move {
                let Ok(client) = connection.peer_addr() else { return };
                let served = pool::spawn(by_jobs(connection)).await.unwrap_or(Served::Cut);
                echo.ledger.report(client, served);
            }
        });
    })?;
    echo.started(trial);
    let strict = !trial.plan.is_harsh();
    let addr = trial.runtime().local_addrs()[0];
    let clients = start_clients(trial, addr, 3, true, 1)?;
    let mut chains = Vec::new();
    for i in 0..6 {
        let (place, rng) = (trial.anywhere(), trial.fork());
        let all = trial.runtime().handles();
        chains.push(trial.party(format!("chain {i}"), place, move |note| chain(all, 30, rng, note)));
    }
    for party in chains {
        let sum = trial.join(party)?;
        if sum != Ok(30) {
            return Err(format!("WRONG: a chain of 30 tasks came to {sum:?}"));
        }
    }
    for client in clients {
        client.judge(trial, &echo.ledger, strict)?;
    }
    drop(echo);
    trial.finish()
}

/// Echoes; every piece passes through a job that may block.
async fn by_jobs(mut connection: Connection) -> Served {
    loop {
        let got = match connection.read().await {
            Ok(Some(got)) => got,
            Ok(None) => break,
            Err(error) => return Served::ReadFailed(error.to_string()),
        };
        let Ok(bytes) = pool::spawn_blocking(move || got.to_vec()).await else { return Served::Cut };
        if let Err(error) = connection.send_all(&bytes).await {
            return Served::WriteFailed(error.to_string());
        }
    }
    match connection.shutdown().await {
        Ok(()) => Served::Whole,
        Err(error) => Served::WriteFailed(error.to_string()),
    }
}

/// Task after task, each awaited by the one before, each somewhere else.
pub(super) fn chain(
    all: Vec<ReactorHandle>,
    depth: usize,
    mut rng: Rng,
    note: Note,
) -> Pin<Box<dyn Future<Output = Result<usize, String>> + Send>> {
    Box::pin(async move {
        if depth == 0 {
            return Ok(0);
        }
        note.say(format!("{depth} tasks to go"));
        if rng.below(4) == 0 {
            yield_now().await;
        }
        let (to, pause) = (rng.below(4), Duration::from_micros(rng.below(300)));
        let reactor = all[rng.below(all.len() as u64) as usize].clone();
        let workers = all[0].workers();
        let rest = chain(all, depth - 1, Rng::new(rng.next_u64()), note.clone());
        let stopped = |_| "the runtime took no task".to_owned();
        let below = match to {
            0 => reactor.spawn(rest).map_err(|_| stopped(()))?.await,
            1 => workers.spawn(rest).map_err(|_| stopped(()))?.await,
            2 => {
                // The waker of the blocking job goes home from a thread of its own.
                // sleep: the job takes its time.
                let job = workers.spawn_blocking(move || std::thread::sleep(pause)).map_err(|_| stopped(()))?;
                job.await.map_err(|error| error.to_string())?;
                Ok(rest.await)
            }
            _ => Ok(rest.await),
        };
        note.say(format!("back from {depth}"));
        Ok(1 + below.map_err(|error| error.to_string())??)
    })
}
