//! Job: a stop or a drain at a random moment of an echo: everything settles, and what is cut does not look whole.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::time::Duration;

use super::{start_clients, start_echo};
use crate::trial::{Place, Trial};

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let (echo, addr) = start_echo(trial)?;
    let clients = start_clients(trial, addr, 6, true, 4)?;
    // Connects and sleeps that meet the end.
    let mut late = Vec::new();
    for i in 0..4 {
        let (place, reactor) = (trial.anywhere(), trial.runtime().handles()[i % 2].clone());
        let wait = Duration::from_micros(trial.rng.below(8000));
        late.push((
            place,
            trial.party(format!("late connect {i}"), place, move |note| async move {
                epoxide::time::sleep(wait).await;
                note.say("connecting late");
                reactor.connect(addr).await.map(drop).is_ok()
            }),
        ));
    }
    // sleep: the random moment.
    std::thread::sleep(Duration::from_micros(trial.rng.below(10_000)));
    let grace = Duration::from_millis([0, 0, 5, 50][trial.rng.below(4) as usize]);
    let stop = trial.runtime().shutdown(grace);
    let stop = trial.party(format!("the stop within {grace:?}"), Place::Thread, |note| {
        note.say("shutting down");
        stop
    });
    let _ = trial.join(stop)?;
    for client in clients {
        client.judge_cut(trial, &echo.ledger)?;
    }
    for (place, party) in late {
        // On a thread of its own nobody may drop it: it must have settled.
        match place {
            Place::Thread => drop(trial.join(party)?),
            _ => drop(trial.join_if_any(party)?),
        }
    }
    drop(echo);
    trial.finish_stopped()
}
