//! Job: servers that share the writer of every connection.
//! State owned: none. Thread class: any thread.

use std::io;
use std::sync::mpsc::{Receiver, channel};

use epoxide::{Connection, ReactorConfig, SharedLimits, SharedWriter};

use crate::{Case, Server, loopback};

/// A server that shares every connection, hands the writer out, and reads until the peer's end.
pub fn sharing(case: &Case, limits: SharedLimits) -> (Server, Receiver<SharedWriter>) {
    sharing_with(case, limits, ReactorConfig::default())
}

/// The same with reactors of this kind.
pub fn sharing_with(case: &Case, limits: SharedLimits, config: ReactorConfig) -> (Server, Receiver<SharedWriter>) {
    let (writers, shared) = channel();
    let server = Server::start(case, |b| {
        b.config(config);
        b.listen(loopback(), move |connection: Connection| {
            let writers = writers.clone();
            async move {
                // Little room in the kernel: everything is queued sooner or later.
                connection.set_send_buffer_size(16 * 1024)?;
                let (mut reader, writer) = connection.into_shared(limits);
                let _ = writers.send(writer);
                while reader.read().await?.is_some() {}
                io::Result::Ok(())
            }
        });
    });
    (server, shared)
}
