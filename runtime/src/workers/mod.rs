//! Workers: futures that any of several threads may poll, and closures that may block.
//!
//! Two pools a runtime, started at first use. [`spawn`] gives a `Send` future to the async workers: threads that share
//! a run queue and must not block. [`spawn_blocking`] gives a closure to a thread of its own: a job never waits behind
//! another one while [`WorkersConfig::max_blocking`] threads are not all busy. A connection works on all of them as it
//! does on its reactor: a handler that moves to a worker reads, flushes and closes there.
//!
//! ```no_run
//! use epoxide::{Connection, Runtime, workers};
//!
//! async fn serve(mut conn: Connection) -> std::io::Result<()> {
//!     while let Some(request) = conn.read_idle().await? {
//!         let answer = workers::spawn_blocking(move || request.len().to_string()).await?;
//!         conn.send_all(answer.as_bytes()).await?;
//!     }
//!     Ok(())
//! }
//!
//! fn main() -> std::io::Result<()> {
//!     let mut server = Runtime::builder();
//!     server.listen("127.0.0.1:8080", |conn: Connection| async move {
//!         // The whole connection moves to a worker.
//!         workers::spawn(serve(conn)).detach();
//!     });
//!     server.run()
//! }
//! ```
//!
//! Both are for reactor threads, workers, and threads that have [entered](crate::ReactorHandle::enter) a runtime; a
//! [`Workers`] handle works on every thread.
//!
//! When the runtime stops, its reactors end first; then what is spawned here is dropped as their tasks were, and
//! blocking jobs, which nothing can interrupt, have the rest of the grace. What still runs then is reported
//! ([`ShutdownReport::jobs_running`](crate::ShutdownReport::jobs_running)).
//!
//! | file | job | thread class |
//! |---|---|---|
//! | `credit` | the word that decides who runs a blocking job | any thread |
//! | `blocking` | the blocking pool | any thread |
//! | `parking` | where async workers sleep | any thread |
//! | `registry` | which tasks exist | any thread |
//! | `tasks` | the async pool | any thread |
//! | `crew` | threads: start, affinity, signals, end | any thread |
//! | `pools` | both pools of a runtime, and their stop | any thread |
//! | `api` | what users call | any thread |
//! | `config`, `error` | what they are told, what they refuse | pure |
// Laws: 10, 12, 13.

mod api;
mod blocking;
mod config;
mod credit;
mod crew;
mod error;
mod parking;
#[cfg(all(test, loom))]
mod parking_loom;
pub(crate) mod pools;
mod registry;
mod tasks;

pub use api::{Entered, Workers, WorkersReport, spawn, spawn_blocking};
pub use config::WorkersConfig;
pub use error::SubmitError;
pub use error::SubmitError::PoolFull;
