//! Tasks whose destructors spawn others: a stop ends all the same, and what it did not take is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use epoxide::{JoinError, spawn_local};
use epoxide_tests_e2e::{Case, Server, wait_until};

const SOON: Duration = Duration::from_secs(20);

/// Counts its drops, and spawns so many of its like each time, down to a depth.
struct Spawns {
    drops: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
    each: usize,
    depth: usize,
}

impl Drop for Spawns {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
        if self.depth == 0 {
            return;
        }
        for _ in 0..self.each {
            let (drops, refused) = (Arc::clone(&self.drops), Arc::clone(&self.refused));
            let next = Self { drops, refused: Arc::clone(&refused), each: self.each, depth: self.depth - 1 };
            let handle = spawn_local(async move {
                std::future::pending::<()>().await;
                drop(next);
            });
            if handle.is_finished() {
                let end = epoxide_tests_e2e::block_within(handle, SOON).expect("a refused task has settled");
                assert!(matches!(end, Err(JoinError::Stopped)));
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// How many were dropped, and how many were refused, in the server's count and in the spawners'.
fn stop_with(each: usize, depth: usize) -> (usize, u64, usize) {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let (drops, refused) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let first = Spawns { drops: Arc::clone(&drops), refused: Arc::clone(&refused), each, depth };
    let task = server.reactor().spawn(async move {
        std::future::pending::<()>().await;
        drop(first);
    });
    assert!(wait_until(SOON, || server.stats().tasks == 1));
    let reactor = server.reactor();
    // Without a bound this never returns, and the watchdog ends the test.
    server.stop(Duration::from_millis(10)).unwrap();
    assert!(task.unwrap().is_finished());
    (drops.load(Ordering::Relaxed), reactor.stats().spawns_refused, refused.load(Ordering::Relaxed))
}

#[test]
fn a_task_that_spawns_its_like_when_dropped_does_not_hold_a_stop() {
    for each in [1, 3] {
        let (drops, counted, refused) = stop_with(each, usize::MAX);
        assert!(drops > 1000, "vacuity: {drops} drops");
        assert!(counted > 0 && counted as usize == refused, "{counted} counted, {refused} refused");
    }
}

/// The control: a chain that ends by itself is followed to its end.
#[test]
fn tasks_that_are_spawned_by_destructors_are_dropped_as_well() {
    assert_eq!(stop_with(1, 5000), (5001, 0, 0));
}
