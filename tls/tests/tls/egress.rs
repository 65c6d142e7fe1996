//! Four publishers to many clients over TLS: every frame whole and in order, also where a client stalls, resets, or takes
//! the ciphertext a byte at a time.

use crate::client::{self, HANG};
use crate::servers::{World, serve_prepared};
use crate::shared::{CLIENTS, FRAMES, LEN, PUBLISHERS, frame, roomy};
use boring::ssl::{Ssl, SslContext, SslStream};
use bytes::Bytes;
use epoxide::{Refusal, SendOutcome, SharedLimits, SharedWriter};
use epoxide_tests_e2e::{Case, Peer, Server, block_within, wait_until};
use epoxide_tls::TlsReadHalf;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A socket with little room that gives so many bytes singly.
struct Dripping(TcpStream, usize);

impl Read for Dripping {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let most = if self.1 > 0 { space.len().min(1) } else { space.len() };
        let n = self.0.read(&mut space[..most])?;
        self.1 = self.1.saturating_sub(n);
        Ok(n)
    }
}

impl Write for Dripping {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A server whose sessions are handed out as shared writers; little fits into their sockets.
fn sharing(case: &Case, world: &World, limits: SharedLimits) -> (Server, Receiver<(TlsReadHalf, SharedWriter)>) {
    let (give, given) = channel();
    let little = |conn: &epoxide::Connection| conn.set_send_buffer_size(64 * 1024).unwrap();
    let (server, _ends) = serve_prepared(case, &world.options().build().unwrap(), little, move |conn| {
        give.send(conn.into_shared(limits).unwrap()).unwrap();
        async { Ok(()) }
    });
    (server, given)
}

fn stalling(server: &Server) -> Peer {
    Peer::connect_stalling(server.addr())
}

type Client = SslStream<Dripping>;

fn connect(
    peer: &Peer,
    context: &SslContext,
    given: &Receiver<(TlsReadHalf, SharedWriter)>,
    singly: usize,
) -> (Client, TlsReadHalf, SharedWriter) {
    let socket = peer.stream().try_clone().unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    let mut client = SslStream::new(Ssl::new(context).unwrap(), Dripping(socket, singly)).unwrap();
    client.connect().unwrap();
    let (half, writer) = given.recv_timeout(HANG).expect("the handshake is done");
    (client, half, writer)
}

/// Reads so many frames and looks at every one of them: which came, per publisher.
fn read_frames(mut client: Client, frames: usize) -> JoinHandle<(Client, Vec<Vec<usize>>)> {
    std::thread::spawn(move || {
        let (mut got, mut seen) = (vec![0; LEN], vec![Vec::new(); PUBLISHERS]);
        for _ in 0..frames {
            client.read_exact(&mut got).unwrap();
            let (publisher, seq) = (got[0] as usize, u32::from_be_bytes([got[1], got[2], got[3], got[4]]) as usize);
            assert!(got == frame(publisher, seq), "corrupt: {publisher} {seq}");
            assert!(seen[publisher].last().is_none_or(|last| *last < seq), "out of order: {publisher} {seq}");
            seen[publisher].push(seq);
        }
        (client, seen)
    })
}

#[test]
fn misbehaving_clients_cost_the_others_no_frame() {
    let case = Case::start_rounds();
    let world = World::new();
    let context = client::context(&world.authority, |_| {});
    let tight = SharedLimits { bytes: 64 * LEN, age: Duration::ZERO, ..SharedLimits::default() };
    let (server, given) = sharing(&case, &world, roomy());
    let (tight_server, tight_given) = sharing(&case, &world, tight);
    let (mut readers, mut halves, mut writers) = (Vec::new(), Vec::new(), Vec::new());
    for i in 0..CLIENTS - 2 {
        // The first one takes its first 64 KiB of ciphertext a byte at a time.
        let (client, half, writer) = connect(&stalling(&server), &context, &given, if i == 0 { 64 * 1024 } else { 0 });
        readers.push(read_frames(client, PUBLISHERS * FRAMES));
        halves.push(half);
        writers.push(writer);
    }
    let (stalled, half, writer) = connect(&stalling(&tight_server), &context, &tight_given, 0);
    halves.push(half);
    writers.push(writer);
    let peer = stalling(&server);
    let (resetting, half, writer) = connect(&peer, &context, &given, 0);
    halves.push(half);
    writers.push(writer);
    let (stall, reset) = (CLIENTS - 2, CLIENTS - 1);

    let resetting = Mutex::new(Some((peer, resetting)));
    let taken = Mutex::new(vec![Vec::new(); PUBLISHERS]);
    let refused = Mutex::new((0, 0));
    let outcome = |client: usize, publisher: usize, seq: usize, outcome| match outcome {
        SendOutcome::Refused(Refusal::Bytes, back) if client == stall => {
            assert_eq!(back, frame(publisher, seq), "another frame came back");
            refused.lock().unwrap().0 += 1;
        }
        SendOutcome::Refused(Refusal::Closed(_), _) if client == reset => refused.lock().unwrap().1 += 1,
        SendOutcome::Refused(why, _) => panic!("client {client}: {why:?}"),
        _ if client == stall => taken.lock().unwrap()[publisher].push(seq),
        _ if client == reset && seq == FRAMES / 4 => {
            if let Some((peer, client)) = resetting.lock().unwrap().take() {
                peer.reset();
                drop(client);
                let gone = || writers[reset].close_reason().is_some();
                assert!(wait_until(HANG, gone), "the reset is not seen");
            }
        }
        _ => {}
    };
    std::thread::scope(|scope| {
        for publisher in 0..PUBLISHERS {
            let (writers, outcome) = (&writers, &outcome);
            scope.spawn(move || {
                for seq in 0..FRAMES {
                    let frame = Bytes::from(frame(publisher, seq));
                    for (client, writer) in writers.iter().enumerate() {
                        outcome(client, publisher, seq, writer.send(frame.clone()));
                    }
                }
            });
        }
    });
    let all: Vec<Vec<usize>> = vec![(0..FRAMES).collect(); PUBLISHERS];
    for reader in readers {
        let (client, seen) = reader.join().unwrap();
        assert_eq!(seen, all, "nothing is lost");
        assert_eq!(client.ssl().pending(), 0);
    }
    let (by_limit, by_reset) = refused.into_inner().unwrap();
    assert!(by_limit > 0, "vacuity: the stalled client's limit was never reached");
    assert!(by_reset > 0, "vacuity: no send met the reset");
    let stats = server.stats();
    assert!(stats.send_eagain > 0, "vacuity: every socket had room");
    // The stalled one wakes up: what was accepted is there, whole, in order, and then a clean end.
    let taken = taken.into_inner().unwrap();
    let (mut stalled, seen) = read_frames(stalled, taken.iter().map(Vec::len).sum()).join().unwrap();
    assert_eq!(seen, taken, "accepted and delivered differ");
    for writer in &writers[..reset] {
        block_within(writer.flush(), HANG).expect("a flush hangs").unwrap();
    }
    drop((halves, writers));
    assert_eq!(stalled.read(&mut [0]).unwrap(), 0);
    assert!(stalled.get_shutdown().contains(boring::ssl::ShutdownState::RECEIVED), "ended clean");
    println!(
        "{} sends, {} refused; frames refused: {by_limit} by the limit, {by_reset} by the reset",
        stats.sends, stats.send_eagain
    );
}
