//! A record that has begun is a request in progress: neither an end nor a drain cuts it unnoticed.

use crate::client::{self, GET, HANG};
use crate::servers::{World, answer_requests, ktls_of_run, serve};
use boring::ssl::{Ssl, SslStream};
use epoxide_tests_e2e::{Case, Peer, Server, begin_drain, wait_until};
use epoxide_tls::{Ktls, ServerBuilder, TlsError};
use std::io::{self, Read, Write};

/// A socket that keeps back all but the first `sends` bytes of what is written while it is held.
struct Held {
    peer: Peer,
    sends: Option<usize>,
    kept: Vec<u8>,
}

impl Read for Held {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.peer.read(space, HANG).map_err(|ending| io::Error::other(format!("{ending:?}")))
    }
}

impl Write for Held {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let now = self.sends.map_or(bytes.len(), |sends| sends.min(bytes.len()));
        self.peer.send(&bytes[..now])?;
        self.kept.extend_from_slice(&bytes[now..]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A kernel that decrypts keeps the beginning of a record to itself.
fn options(world: &World) -> ServerBuilder {
    let ktls = if ktls_of_run() == Ktls::TxRx { Ktls::Tx } else { ktls_of_run() };
    world.options().ktls(ktls)
}

/// A client that has sent the first `sends` bytes of a request's record, all of which the server has received.
fn begun(world: &World, server: &Server, sends: usize) -> SslStream<Held> {
    let context = client::context(&world.authority, |_| {});
    let held = Held { peer: Peer::connect(server.addr()), sends: None, kept: Vec::new() };
    let mut client = SslStream::new(Ssl::new(&context).unwrap(), held).unwrap();
    client.connect().unwrap();
    // An answer: the handshake is behind the server, and it waits.
    client.write_all(GET.as_bytes()).unwrap();
    read_answer(&mut client);
    let before = server.stats().reads;
    client.get_mut().sends = Some(sends);
    client.write_all(GET.as_bytes()).unwrap();
    assert!(!client.get_ref().kept.is_empty(), "control: a part is kept back");
    assert!(wait_until(HANG, || server.stats().reads > before), "the part is not received");
    client
}

fn read_answer(client: &mut SslStream<Held>) {
    let mut text = Vec::new();
    while !text.ends_with(b"tls-ok") {
        let mut chunk = [0; 1024];
        let n = client.read(&mut chunk).unwrap();
        assert!(n > 0, "the end instead of an answer");
        text.extend_from_slice(&chunk[..n]);
    }
}

#[test]
fn a_fin_in_the_middle_of_a_record_is_a_cut_also_for_an_idle_read() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &options(&world).build().unwrap(), answer_requests);
    for sends in [1, 5, 9] {
        let mut client = begun(&world, &server, sends);
        client.get_mut().peer.half_close().unwrap();
        let error = ends.recv_timeout(HANG).unwrap().expect_err("a request was cut, and nobody was told");
        assert_eq!(TlsError::of(&error), Some(&TlsError::Truncated), "{error}");
    }
}

#[test]
fn a_drain_waits_for_a_request_whose_record_has_begun() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &options(&world).build().unwrap(), answer_requests);
    let mut client = begun(&world, &server, 7);
    let stopping = begin_drain(server, HANG);
    let held = client.get_mut();
    let rest = std::mem::take(&mut held.kept);
    held.sends = None;
    held.peer.send(&rest).unwrap();
    read_answer(&mut client);
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "idle now: the session ends");
    // Among those of the connections that have shown that the drain began.
    while ends.recv_timeout(HANG).expect("a session that ends well").is_err() {}
    assert_eq!(stopping.join().unwrap().cut, 0);
}
