//! Tasks of workers that the events of one wait make runnable: their workers are woken once, behind the events, and all
//! of them run.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use epoxide::Connection;
use epoxide_tests_e2e::{Case, Peer, assert_pool_quiet, echo_in_one_wait, moved_to_workers, rounds, wait_until};

const SOON: Duration = Duration::from_secs(10);
/// More than a reactor puts off (32), by far.
const MANY: usize = 100;

/// Opens `n` connections whose handlers are parked on workers.
fn parked(case: &Case, n: usize, both: Option<Arc<Barrier>>) -> (epoxide_tests_e2e::Server, Vec<Peer>) {
    let server = moved_to_workers(case, move |mut connection: Connection| {
        let both = both.clone();
        async move {
            while let Some(received) = connection.read().await? {
                if let Some(both) = &both {
                    // Blocks this worker until the other one is in a handler, too.
                    both.wait();
                }
                connection.send_all(&received).await?;
            }
            Ok(())
        }
    });
    let peers: Vec<_> = (0..n).map(|_| Peer::connect(server.addr())).collect();
    assert!(wait_until(SOON, || server.stats().parks >= n as u64), "the reads do not park");
    (server, peers)
}

#[test]
fn every_task_of_a_batch_is_run() {
    let case = Case::start_rounds();
    let (server, mut peers) = parked(&case, MANY, None);
    let passes = server.stats().passes;
    let turns = rounds();
    for turn in 0..turns {
        echo_in_one_wait(&server, &mut peers, turn as u8);
    }
    let passes = server.stats().passes - passes;
    assert!(passes < (turns * MANY / 4) as u64, "vacuity: {passes} passes for {turns} turns of {MANY} events");
    drop(peers);
    assert_pool_quiet(&server, 0);
}

/// One wake for two tasks: the worker that gets up wakes the other one, without which neither answers.
#[test]
fn both_workers_get_up_for_two_tasks_of_a_batch() {
    let case = Case::start_rounds();
    let (server, mut peers) = parked(&case, 2, Some(Arc::new(Barrier::new(2))));
    for turn in 0..rounds() {
        echo_in_one_wait(&server, &mut peers, turn as u8);
    }
    drop(peers);
    assert_pool_quiet(&server, 0);
}
