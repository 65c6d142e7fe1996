//! Job: run a future on any kind of thread: that of the connection's home, another reactor's, a worker, a plain one.
//! State owned: none. Thread class: any thread but a reactor's.

use std::future::Future;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use epoxide::ReactorHandle;

use crate::{Rng, block_within};

/// Where a future runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A task of the first reactor given.
    Home,
    /// A task of the last one.
    Away,
    /// A task of the async workers.
    Worker,
    /// A thread that epoxide knows nothing of.
    Plain,
}

impl Place {
    /// Every place.
    pub const ALL: [Self; 4] = [Self::Home, Self::Away, Self::Worker, Self::Plain];

    /// One of them.
    pub fn any(rng: &mut Rng) -> Self {
        Self::ALL[rng.below(Self::ALL.len() as u64) as usize]
    }
}

/// Runs `future` there; its output comes when it is done. On a plain thread nothing comes when that takes over `within`.
///
/// # Panics
/// When a reactor or the pool refuses it.
pub fn run_at<F>(place: Place, reactors: &[ReactorHandle], within: Duration, future: F) -> Receiver<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    let (done, dones) = channel();
    let (home, away) = (reactors.first().expect("a reactor"), reactors.last().expect("a reactor"));
    let future = async move {
        let _ = done.send(future.await);
    };
    match place {
        Place::Home => home.spawn(future).expect("the home takes a task").detach(),
        Place::Away => away.spawn(future).expect("the other reactor takes a task").detach(),
        Place::Worker => home.workers().spawn(future).expect("the pool takes a task").detach(),
        Place::Plain => drop(std::thread::spawn(move || block_within(future, within))),
    }
    dones
}
