//! Job: hand-overs between reactors, workers and threads that sleep in between. There is no connection, so no tick of
//! the sweep: a wake that is lost stays lost.
//! State owned: none. Thread class: the driver's thread; parties run anywhere.

use std::time::Duration;

use epoxide::ReactorHandle;
use epoxide_tests_e2e::Rng;

use super::workers::chain;
use crate::trial::{Note, Trial};

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    trial.start(|_| ())?;
    let mut posts = Vec::new();
    let mut chains = Vec::new();
    for i in 0..4 {
        let (place, rng, all) = (trial.anywhere(), trial.fork(), trial.runtime().handles());
        chains.push(trial.party(format!("chain {i}"), place, move |note| chain(all, 60, rng, note)));
        let (place, rng, all) = (trial.anywhere(), trial.fork(), trial.runtime().handles());
        posts.push(trial.party(format!("poster {i}"), place, move |note| post(all, rng, note)));
    }
    for party in chains {
        let sum = trial.join(party)?;
        if sum != Ok(60) {
            return Err(format!("WRONG: a chain of 60 tasks came to {sum:?}"));
        }
    }
    for party in posts {
        trial.join(party)??;
    }
    trial.finish()
}

/// One closure after the other, each awaited: the reactor it goes to has often just fallen asleep.
async fn post(all: Vec<ReactorHandle>, mut rng: Rng, note: Note) -> Result<(), String> {
    for round in 0..300_usize {
        note.say(format!("post {round}"));
        let reactor = &all[rng.below(all.len() as u64) as usize];
        let answer = match rng.below(3) {
            0 => reactor.run_here(move || round).map_err(|_| "refused")?.await,
            1 => reactor.spawn(async move { round }).map_err(|_| "refused")?.await,
            _ => all[0].workers().spawn(async move { round }).map_err(|_| "refused")?.await,
        };
        if !matches!(answer, Ok(number) if number == round) {
            return Err(format!("WRONG: post {round} came to {answer:?}"));
        }
        if rng.below(20) == 0 {
            epoxide::time::sleep(Duration::from_micros(rng.below(500))).await;
        }
    }
    Ok(())
}
