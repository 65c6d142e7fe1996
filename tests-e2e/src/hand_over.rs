//! Job: connections in the hands of the test, and files to be sent over them.
//! State owned: none. Thread class: any thread.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use epoxide::Connection;

use crate::{Case, Server, loopback};

/// A file that has no name.
///
/// # Panics
/// When it cannot be made.
pub fn nameless_file(bytes: &[u8]) -> Arc<OwnedFd> {
    let path = std::env::temp_dir().join(format!("epoxide-send-file-{}-{:p}", std::process::id(), bytes));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).expect("a temporary file");
    fs::remove_file(&path).expect("it was just made");
    file.write_all(bytes).expect("there is room");
    Arc::new(OwnedFd::from(file))
}

/// A server that hands its connections to the test, with little room in the kernel.
pub fn hand_over(case: &Case) -> (Server, Receiver<Connection>) {
    let (connections, accepted) = channel();
    let server = Server::start(case, |b| {
        b.listen(loopback(), move |connection: Connection| {
            let connections = connections.clone();
            async move {
                let _ = connection.set_send_buffer_size(16 * 1024);
                let _ = connections.send(connection);
            }
        });
    });
    (server, accepted)
}
