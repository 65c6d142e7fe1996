//! What the tests of the pipes share: the same handler on a reactor and on workers. State: none.

use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{Case, Server, loopback};
use std::future::Future;
use std::io;
use std::time::Duration;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// One server with two listeners: the handler runs on the reactor behind the first, on a worker behind the second.
#[allow(dead_code, reason = "not every test file wants it")]
pub(crate) fn everywhere<F>(
    case: &Case,
    config: ReactorConfig,
    handler: impl Fn(Connection) -> F + Clone + Send + 'static,
) -> Server
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    Server::start(case, |b| {
        b.config(config);
        b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        b.listen(loopback(), handler.clone());
        b.listen(loopback(), move |connection: Connection| {
            let served = workers::spawn(handler(connection));
            async move { served.detach() }
        });
    })
}

/// Small buffers, so that few bytes are many of them.
#[allow(dead_code, reason = "not every test file wants it")]
pub(crate) fn small(recv_buffer_size: usize) -> ReactorConfig {
    ReactorConfig { recv_buffer_size, ..ReactorConfig::default() }
}
