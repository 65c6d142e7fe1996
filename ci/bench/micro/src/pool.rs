//! The workloads of the blocking pool.
//!
//! State: none. Thread class: the runtime's thread; the jobs run on its pool.

use crate::rt::Pool;
use std::sync::{Arc, Barrier};

/// Jobs of one burst.
const BURST: u64 = 64;

/// A job at a time: the thread that ran the last one is parked, or about to be.
pub async fn parked<R: Pool>(n: u64) {
    for i in 0..n {
        assert_eq!(R::spawn_blocking(move || i + 1).await, i + 1);
    }
}

/// Bursts of jobs, all submitted before the first is awaited.
pub async fn burst<R: Pool>(n: u64) {
    for _ in 0..n / BURST {
        // Submitted by a task each: a task's first poll submits, its end is the job's.
        let tasks: Vec<_> = (0..BURST)
            .map(|i| {
                R::spawn(async move {
                    assert_eq!(R::spawn_blocking(move || i).await, i);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
    }
}

/// No thread is ever parked: each of N jobs waits until all run.
pub async fn none<R: Pool>(n: u64) {
    let all = Arc::new(Barrier::new(n as usize));
    let tasks: Vec<_> = (0..n)
        .map(|i| {
            let all = all.clone();
            R::spawn(async move {
                let job = move || {
                    all.wait();
                    i
                };
                assert_eq!(R::spawn_blocking(job).await, i);
            })
        })
        .collect();
    for task in tasks {
        task.await;
    }
}
