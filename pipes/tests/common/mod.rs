//! What the tests of the pipes share: the same handler on a reactor and on workers. State: none.

use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, ReactorConfig};
use epoxide_pipes::{Duplex, PipeReader, PipeWriter, ReadResult};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, loopback, pattern};
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::mpsc::Sender;
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

/// The peer of the traits' tests: how long its body is, the body, the answer to our end; then the rest and its own end.
#[allow(dead_code, reason = "not every test file wants it")]
pub(crate) fn speak(addr: SocketAddr) {
    let body = pattern(200_000);
    let mut peer = Peer::connect(addr);
    peer.send(format!("{}\n", body.len()).as_bytes()).unwrap();
    peer.send(&body).unwrap();
    let (answer, ending) = peer.read_to_end(SOON);
    assert!(answer == [b"200000 bytes\n".as_slice(), &body].concat() && ending == Ending::Eof);
    peer.send(b"the rest").unwrap();
    peer.half_close().unwrap();
}

/// The peer of a server that sends everything back, and its end behind it.
#[allow(dead_code, reason = "not every test file wants it")]
pub(crate) fn is_sent_back(addr: SocketAddr, bytes: usize) {
    let mut peer = Peer::connect(addr);
    peer.send(&pattern(bytes)).unwrap();
    peer.half_close().unwrap();
    assert!(peer.read_to_end(SOON) == (pattern(bytes), Ending::Eof));
}

/// A connection as pipes.
#[allow(dead_code, reason = "not every test file wants it")]
pub(crate) fn halves(connection: Connection) -> (PipeReader, PipeWriter) {
    Duplex::new(connection).into_parts()
}

/// Reads, and says when the read waits.
#[allow(dead_code, reason = "not every test file wants it")]
pub(crate) async fn read_and_tell<'a>(input: &'a mut PipeReader, waits: &Sender<()>) -> io::Result<ReadResult<'a>> {
    let mut read = input.read();
    poll_fn(|cx| {
        let polled = Pin::new(&mut read).poll(cx);
        if polled.is_pending() {
            let _ = waits.send(());
        }
        polled
    })
    .await
}
