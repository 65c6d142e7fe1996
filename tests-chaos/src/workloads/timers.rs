//! Job: waits of every kind, everywhere, while the clocks jump: none is early, all end.
//! State owned: none. Thread class: the driver's thread; parties run anywhere.

use std::time::Duration;

use epoxide::{chaos, time};
use epoxide_tests_e2e::Rng;

use crate::stream::once;
use crate::trial::{Note, Trial};

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    trial.start(|_| ())?;
    let mut parties = Vec::new();
    for i in 0..12 {
        let (place, rng) = (trial.anywhere(), trial.fork());
        parties.push(trial.party(format!("waiter {i}"), place, move |note| waits(rng, note)));
    }
    for party in parties {
        trial.join(party)??;
    }
    trial.finish()
}

async fn waits(mut rng: Rng, note: Note) -> Result<(), String> {
    for round in 0..25 {
        let wait = Duration::from_micros(rng.below(6000));
        let due = chaos::now() + wait;
        let kind = rng.below(7);
        note.say(format!("round {round}: wait {kind} of {wait:?}"));
        match kind {
            0 => time::sleep(wait).await,
            1 => time::sleep_until(due).await,
            2 => {
                let late = time::timeout(wait, std::future::pending::<()>()).await;
                if late.is_ok() {
                    return Err("a future that never ends ended".into());
                }
            }
            3 => {
                // Given up, then another one at once: the first must not end the second.
                let _ = once(time::sleep(wait / 2)).await;
                time::sleep(wait).await;
            }
            4 => {
                // Moved nearer while it waits.
                let mut sleep = Box::pin(time::sleep(Duration::from_secs(3600)));
                let _ = once(sleep.as_mut()).await;
                sleep.as_mut().get_mut().reset(due);
                sleep.await;
            }
            5 => {
                let mut ticks = time::interval(wait.max(Duration::from_micros(500)));
                ticks.tick().await;
                ticks.tick().await;
                continue;
            }
            _ => {
                let ready = time::timeout(Duration::from_secs(3600), std::future::ready(7)).await;
                if ready != Ok(7) {
                    return Err(format!("a future that is ready ended with {ready:?}"));
                }
                continue;
            }
        }
        if chaos::now() < due {
            return Err(format!("EARLY: wait {kind} of {wait:?} ended {:?} early", due - chaos::now()));
        }
    }
    Ok(())
}
