//! What seeds have found: each with its story, and the seed that finds it when the fix is taken out.
#![cfg(epoxide_chaos)]

use epoxide_tests_chaos::suite::run_one;
use epoxide_tests_chaos::workloads::ALL;

/// A process has one plan at a time, and trials count its threads.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn replay(workload: &str, seeds: &[u64]) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let workload = ALL.into_iter().find(|known| known.name == workload).expect("a workload of this name");
    for seed in seeds {
        for _ in 0..5 {
            if let Err(story) = run_one(workload, *seed, &[]) {
                panic!("{story}");
            }
        }
    }
}

/// A send that failed with an errno that leaves the socket alive (ENOBUFS, ENOMEM) ended the connection and freed what was
/// queued; the descriptor was then closed like any other, so that the peer saw a clean FIN behind a cut body.
/// Found on the first run: half of all plans with `SendNoBuffers` failed, in four workloads.
#[test]
fn a_failed_send_on_a_live_socket_is_not_a_clean_end() {
    replay("echo", &[109, 159]);
    replay("halves", &[51, 109, 135, 159]);
    replay("shared", &[33, 159]);
}

/// A connection that epoll would not take (ENOMEM, ENOSPC) was closed with a FIN before any handler saw it: to its client
/// an empty answer, and a proxy passed that on.
#[test]
fn a_connection_that_cannot_be_registered_is_reset() {
    replay("stop", &[29]);
    replay("relay", &[29]);
}
