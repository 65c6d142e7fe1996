//! Job: connections that a test holds and moves between the reactors of one server.
//! State owned: none. Thread class: the test's thread, blocking.

use std::io;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use epoxide::{Builder, Connection, ReactorHandle, RehomeError};

use crate::{Case, Peer, Server, block_within, handing_over, stage};

const SOON: Duration = Duration::from_secs(10);

/// Several reactors whose handlers give their connections to the test.
pub fn several(case: &Case, reactors: usize, set_up: impl FnOnce(&mut Builder)) -> (Server, Receiver<Connection>) {
    handing_over(case, |b| {
        b.reactors(reactors);
        set_up(b);
    })
}

/// A connected pair, and the reactors: its own first.
///
/// # Panics
/// When the server does not accept.
pub fn pair(server: &Server, accepted: &Receiver<Connection>) -> (Peer, Connection, Vec<ReactorHandle>) {
    let peer = Peer::connect(server.addr());
    let connection = accepted.recv_timeout(SOON).expect("handed over");
    let mut reactors = server.runtime().handles();
    reactors.sort_by_key(|reactor| *reactor != connection.reactor());
    (peer, connection, reactors)
}

/// Moves it, from this thread.
///
/// # Panics
/// When the move does not end.
pub fn moved(connection: &mut Connection, target: &ReactorHandle) -> Result<(), RehomeError> {
    block_within(connection.rehome(target), SOON).expect("a move ends")
}

fn answer(connection: &mut Connection) -> io::Result<()> {
    block_within(
        async {
            let received = connection.read().await?;
            stage(connection, &received.ok_or_else(|| io::Error::other("the peer's end"))?)?;
            connection.flush().await
        },
        SOON,
    )
    .expect("an answer is given")
}

/// One request and its answer, made on this thread.
///
/// # Panics
/// When the answer does not come.
pub fn ping(peer: &mut Peer, connection: &mut Connection) {
    peer.send(b"ping").unwrap();
    answer(connection).unwrap();
    assert_eq!(peer.read_exactly(4, SOON), Ok(b"ping".to_vec()));
}
