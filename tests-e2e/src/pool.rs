//! Job: servers whose handlers run on the worker pool.
//! State owned: none. Thread class: any thread, blocking.

use std::io;
use std::time::Duration;

use epoxide::Connection;
use epoxide::workers::{self, WorkersConfig};

use crate::{Case, Server, loopback, wait_until};

/// A server whose handlers move to one of two workers.
pub fn moved_to_workers<F>(case: &Case, handler: impl Fn(Connection) -> F + Clone + Send + 'static) -> Server
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    Server::start(case, |b| {
        b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        b.listen(loopback(), move |connection: Connection| {
            let served = workers::spawn(handler(connection));
            async move { served.detach() }
        });
    })
}

/// The pool has nothing left and counted this many panics.
pub fn assert_pool_quiet(server: &Server, panics: u64) {
    let pool = server.reactor().workers();
    assert!(wait_until(Duration::from_secs(10), || pool.report().tasks == 0), "{:?}", pool.report());
    assert_eq!(pool.report().panics, panics, "panics in handlers on the pool");
}
