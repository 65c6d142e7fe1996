//! Records cut anywhere: every byte of the handshake and of the data in a TCP segment of its own.

use crate::client::{self, GET, HANG};
use crate::servers::{World, answer_requests, echo, serve};
use boring::ssl::{Ssl, SslContext, SslStream, SslVersion};
use epoxide_tests_e2e::{Case, Peer, pattern};
use std::io::{self, Read, Write};
use std::net::SocketAddr;

/// A socket that sends in pieces of `size`, one segment each.
pub(crate) struct Cut {
    peer: Peer,
    size: usize,
}

impl Read for Cut {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        self.peer.read(space, HANG).map_err(|ending| io::Error::other(format!("{ending:?}")))
    }
}

impl Write for Cut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.chunks(self.size) {
            self.peer.send(piece)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A session over such a socket; its handshake is cut up, too.
pub(crate) fn cut_up(addr: SocketAddr, context: &SslContext, size: usize) -> SslStream<Cut> {
    let cut = Cut { peer: Peer::connect(addr), size };
    let mut client = SslStream::new(Ssl::new(context).unwrap(), cut).unwrap();
    client.connect().unwrap();
    client
}

#[test]
fn records_may_be_cut_at_every_byte() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let (echoing, _echo_ends) = serve(&case, &config, echo);
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        for size in [1, 2, 5, 7, 64, 1024] {
            let context =
                client::context(&world.authority, |context| context.set_max_proto_version(Some(version)).unwrap());
            let mut client = cut_up(server.addr(), &context, size);
            client.write_all(GET.as_bytes()).unwrap();
            let mut text = Vec::new();
            while !text.ends_with(b"tls-ok") {
                let mut chunk = [0; 1024];
                let n = client.read(&mut chunk).unwrap();
                assert!(n > 0);
                text.extend_from_slice(&chunk[..n]);
            }
            assert_eq!(String::from_utf8_lossy(&text).matches("HTTP/1.1").count(), 1, "exactly one answer");

            let mut client = cut_up(echoing.addr(), &context, size);
            let sent = pattern(if size < 5 { 2000 } else { 40_000 });
            client.write_all(&sent).unwrap();
            let mut back = vec![0; sent.len()];
            client.read_exact(&mut back).unwrap();
            assert!(back == sent);
        }
    }
}

#[test]
fn ten_thousand_tiny_records_are_a_stream_like_any_other() {
    let case = Case::start();
    let world = World::new();
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), echo);
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    let sent = pattern(10_000);
    let reading = client.get_ref().try_clone().unwrap();
    for byte in sent.chunks(1) {
        client.write_all(byte).unwrap();
    }
    let mut back = vec![0; sent.len()];
    client.read_exact(&mut back).unwrap();
    assert!(back == sent);
    drop(reading);
}
