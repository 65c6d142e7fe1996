//! Shared writers over TLS: whole frames from many threads, in order per publisher, as over TCP.

use crate::client::{self, HANG};
use crate::servers::{World, serve};
use bytes::Bytes;
use epoxide::{Refusal, SendOutcome, SharedLimits, SharedWriter};
use epoxide_tests_e2e::{Case, Server, block_within, wait_until};
use epoxide_tls::TlsReadHalf;
use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub(crate) const PUBLISHERS: usize = 4;
pub(crate) const CLIENTS: usize = 32;
/// Of each publisher.
pub(crate) const FRAMES: usize = 100;
pub(crate) const LEN: usize = 8192;

pub(crate) fn roomy() -> SharedLimits {
    SharedLimits { frames: usize::MAX, bytes: usize::MAX, age: Duration::ZERO, ..SharedLimits::default() }
}

fn sharing(case: &Case, world: &World, limits: SharedLimits) -> (Server, Receiver<(TlsReadHalf, SharedWriter)>) {
    let (give, given) = channel();
    let (server, _ends) = serve(case, &world.options().build().unwrap(), move |conn| {
        give.send(conn.into_shared(limits).unwrap()).unwrap();
        async { Ok(()) }
    });
    (server, given)
}

/// Publisher, sequence number, and a body that depends on both.
pub(crate) fn frame(publisher: usize, seq: usize) -> Vec<u8> {
    let mut frame = vec![publisher as u8];
    frame.extend_from_slice(&(seq as u32).to_be_bytes());
    frame.extend((5..LEN).map(|j| (publisher * 41 + seq * 7 + j * 3) as u8));
    frame
}

#[test]
fn four_publishers_to_many_clients_cut_and_lose_nothing() {
    let case = Case::start_rounds();
    let world = World::new();
    let (server, given) = sharing(&case, &world, roomy());
    let context = client::context(&world.authority, |_| {});
    let (mut clients, mut halves, mut writers) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..CLIENTS {
        clients.push(client::connect(server.addr(), &context));
        let (half, writer) = given.recv_timeout(HANG).unwrap();
        halves.push(half);
        writers.push(writer);
    }
    // Each read half decrypts what its client sends meanwhile, on a thread of its own.
    let readers: Vec<_> = halves
        .into_iter()
        .map(|mut half| {
            std::thread::spawn(move || {
                let mut seen = 0;
                while let Some(data) = block_within(half.read(), HANG).expect("a read hangs").unwrap() {
                    seen += data.len();
                }
                seen
            })
        })
        .collect();
    let publishers: Vec<_> = (0..PUBLISHERS)
        .map(|publisher| {
            let writers = writers.clone();
            std::thread::spawn(move || {
                for seq in 0..FRAMES {
                    let frame = Bytes::from(frame(publisher, seq));
                    for writer in &writers {
                        let outcome = writer.send(frame.clone());
                        assert!(!matches!(outcome, SendOutcome::Refused(..)), "{outcome:?}");
                    }
                }
                writers.iter().for_each(|writer| block_within(writer.flush(), HANG).expect("a flush hangs").unwrap());
            })
        })
        .collect();
    drop(writers);
    let clients: Vec<_> = clients
        .into_iter()
        .enumerate()
        .map(|(i, mut client)| {
            std::thread::spawn(move || {
                let mut next = [0; PUBLISHERS];
                let mut got = vec![0; LEN];
                for seen in 0..PUBLISHERS * FRAMES {
                    client.read_exact(&mut got).unwrap();
                    let (publisher, seq) = (got[0] as usize, u32::from_be_bytes([got[1], got[2], got[3], got[4]]));
                    assert_eq!(seq as usize, next[publisher], "client {i}: out of order");
                    next[publisher] += 1;
                    assert!(got == frame(publisher, seq as usize), "client {i}: corrupt");
                    if seen % 100 == 0 {
                        client.write_all(&[7; 100]).unwrap();
                    }
                    // Some are slow.
                    if i % 4 == 0 && seen % 100 == 0 {
                        // sleep: a slow client is the stimulus.
                        std::thread::sleep(Duration::from_millis(2));
                    }
                }
                assert_eq!(client.read(&mut got).unwrap(), 0, "nothing behind the last frame");
                assert!(client.get_shutdown().contains(boring::ssl::ShutdownState::RECEIVED), "ended clean");
                client.shutdown().unwrap();
            })
        })
        .collect();
    publishers.into_iter().for_each(|thread| thread.join().unwrap());
    clients.into_iter().for_each(|thread| thread.join().unwrap());
    for reader in readers {
        assert_eq!(reader.join().unwrap(), PUBLISHERS * FRAMES / 100 * 100);
    }
}

#[test]
fn limits_refuse_whole_frames_and_the_rest_arrives() {
    let case = Case::start();
    let world = World::new();
    let (server, given) = sharing(&case, &world, SharedLimits { frames: 50, ..roomy() });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    let (half, writer) = given.recv_timeout(HANG).unwrap();
    let mut accepted = 0;
    let refused = loop {
        match writer.send(frame(0, accepted)) {
            SendOutcome::Refused(why, back) => {
                assert_eq!(back, frame(0, accepted), "the frame comes back");
                break why;
            }
            _ => accepted += 1,
        }
        assert!(accepted < 100_000, "nothing is ever refused");
    };
    assert_eq!(refused, Refusal::Frames);
    assert!(matches!(writer.send(Bytes::new()), SendOutcome::Sent), "an empty frame is nothing to send");
    let reader = std::thread::spawn(move || {
        let mut all = Vec::new();
        client.read_to_end(&mut all).unwrap();
        (client, all)
    });
    block_within(writer.flush(), HANG).expect("a flush hangs").unwrap();
    assert!(matches!(writer.send(frame(0, accepted)), SendOutcome::Sent | SendOutcome::Queued));
    let handle = writer.close_handle();
    handle.close();
    let outcome = writer.send(frame(9, 9));
    assert!(matches!(outcome, SendOutcome::Refused(Refusal::Closed(_), _)), "{outcome:?}");
    drop((half, writer));
    let (client, all) = reader.join().unwrap();
    let sent: Vec<u8> = (0..=accepted).flat_map(|seq| frame(0, seq)).collect();
    assert!(all == sent, "{} bytes of {}", all.len(), sent.len());
    drop(client);
    assert!(wait_until(HANG, || server.stats().open == 0));
}

#[test]
fn what_was_staged_goes_out_before_the_frames() {
    let case = Case::start();
    let world = World::new();
    let (give, given) = channel();
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        conn.stage(b"first ").unwrap();
        give.send(conn.into_shared(SharedLimits::default()).unwrap()).unwrap();
        async { Ok(()) }
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    let (mut half, writer) = given.recv_timeout(HANG).unwrap();
    let mut got = [0; 6];
    client.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"first ");
    assert!(matches!(writer.send(&b"second"[..]), SendOutcome::Sent));
    drop(writer);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"second");
    client.shutdown().unwrap();
    assert!(block_within(half.read(), HANG).expect("a read hangs").unwrap().is_none());
}
