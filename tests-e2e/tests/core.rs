//! Core I/O: requests whole, pipelined and fragmented; large bodies; many connections; a reader
//! that falls behind; several listeners; a stop that gives everything back.

use std::io;
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Http, Peer, Server, echo, http_ok, http_reply, loopback, pattern, provoke_panic, read_to_end,
    serve_requests, stage, wait_until,
};

const SOON: Duration = Duration::from_secs(4);

fn ok_server(case: &Case) -> Server {
    Server::start(case, |b| {
        b.listen(loopback(), http_ok);
    })
}

/// CORE-01, CORE-02.
#[test]
fn requests_on_one_connection_are_answered_one_for_one() {
    let case = Case::start();
    let server = ok_server(&case);
    let mut client = Http::connect(server.addr());
    for _ in 0..5 {
        let response = client.get().unwrap();
        assert_eq!((response.status, &response.body[..]), (200, &b"ok"[..]));
    }
    client.peer().half_close().unwrap();
    let (extra, ending, left_over) = client.drain(SOON);
    assert_eq!((extra.len(), ending, left_over), (0, Ending::Eof, 0), "a sixth response");
}

/// CORE-03. The pool must stop growing as well: a buffer that is not given back shows at the end.
#[test]
fn fresh_connections_one_after_another_are_all_served() {
    let case = Case::start();
    let server = ok_server(&case);
    for i in 0..50 {
        let response = Http::connect(server.addr()).get();
        assert_eq!(response.map(|r| r.status), Ok(200), "connection {i}");
    }
    assert!(server.wait_quiet());
    assert_eq!(server.stats().accepted, 50);
}

/// CORE-04.
#[test]
fn two_requests_in_one_write_get_two_answers() {
    let case = Case::start();
    let server = ok_server(&case);
    let mut client = Http::connect(server.addr());
    client.send(&[Http::GET, Http::GET].concat()).unwrap();
    let responses = client.responses(2, SOON).unwrap();
    assert!(responses.iter().all(|r| r.status == 200 && r.body == b"ok"));
}

/// CORE-05. The gaps make three segments; the server must not answer before the blank line.
#[test]
fn a_request_in_three_pieces_gets_exactly_one_answer() {
    let case = Case::start();
    let server = ok_server(&case);
    let mut client = Http::connect(server.addr());
    for piece in [&Http::GET[..8], &Http::GET[8..20], &Http::GET[20..]] {
        client.send(piece).unwrap();
        // sleep: the gap is the stimulus.
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(client.response(SOON).map(|r| r.body), Ok(b"ok".to_vec()));
    client.peer().half_close().unwrap();
    let (extra, ending, _) = client.drain(SOON);
    assert_eq!((extra.len(), ending), (0, Ending::Eof));
}

/// CORE-06, CORE-07, and the plain half of CORE-09: bodies far above the receive buffer, once as
/// one staged piece and once as many, must arrive byte for byte.
#[test]
fn large_bodies_arrive_byte_for_byte() {
    let case = Case::start();
    for (pieces, size) in [(1, 48 * 1024), (96, 512), (1, 8192), (40, 100_000)] {
        let body = pattern(pieces * size);
        let expected = body.clone();
        let server = Server::start(&case, |b| {
            b.listen(loopback(), move |mut connection: Connection| {
                let body = body.clone();
                async move {
                    while connection.read().await?.is_some() {
                        let head = http_reply(200, &body);
                        let head = &head[..head.len() - body.len()];
                        stage(&mut connection, head)?;
                        for piece in body.chunks(size) {
                            stage(&mut connection, piece)?;
                        }
                        connection.flush().await?;
                    }
                    io::Result::Ok(())
                }
            });
        });
        let mut client = Http::connect(server.addr());
        for _ in 0..3 {
            let response = client.get().unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body == expected, "{pieces} pieces of {size}: the body differs");
        }
    }
}

/// The vectored path: pieces handed over as owned `Bytes`, more than IOV_MAX (1024) of them, empty
/// ones too, between staged bytes, against a peer that takes little at a time.
#[test]
fn owned_pieces_go_out_in_order_and_whole() {
    let case = Case::start();
    let whole = pattern(3000 * 700);
    let expected = whole.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let whole = bytes::Bytes::from(whole.clone());
            async move {
                for (i, at) in (0..whole.len()).step_by(700).enumerate() {
                    let piece = whole.slice(at..at + 700);
                    match i % 3 {
                        0 => stage(&mut connection, &piece)?,
                        1 => connection.stage_bytes(piece).map_err(io::Error::other)?,
                        _ => {
                            connection.stage_bytes(bytes::Bytes::new()).map_err(io::Error::other)?;
                            connection.stage_bytes(piece).map_err(io::Error::other)?;
                        }
                    }
                }
                connection.flush().await?;
                connection.shutdown().await
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    let (received, ending) = peer.read_to_end(Duration::from_secs(30));
    assert_eq!((received.len(), ending), (expected.len(), Ending::Eof));
    assert!(received == expected, "the pieces arrived in another order");
}

/// CORE-11.
#[test]
fn a_handler_sees_which_listener_accepted() {
    let case = Case::start();
    let handler = |connection: Connection| {
        let port = connection.local_addr().map(|a| a.to_string()).unwrap_or_default();
        let listener = format!("{:?}", connection.listener());
        serve_requests(connection, 4096, move |_| http_reply(200, format!("{port} {listener}").as_bytes()))
    };
    let mut ids = Vec::new();
    let server = Server::start(&case, |b| {
        ids.push(format!("{:?}", b.listen(loopback(), handler)));
        ids.push(format!("{:?}", b.listen(loopback(), handler)));
    });
    assert_ne!(ids[0], ids[1], "two listeners have one id");
    for (addr, id) in server.addrs().iter().zip(&ids) {
        let body = Http::connect(*addr).get().unwrap().body;
        assert_eq!(String::from_utf8_lossy(&body), format!("{addr} {id}"));
    }
}

/// CORE-12, translated: epoxide receives only when asked, so nothing can overflow. A reader that
/// falls behind stops its peer (vacuity: the peer's send really blocked) and gets every byte.
#[test]
fn a_reader_that_falls_behind_stops_its_peer_and_gets_every_byte() {
    let case = Case::start();
    let flood = pattern(64 + (24 << 20));
    let expected = flood.clone();
    let (gate, (report, reports)) = (Gate::new(), channel());
    let handler_gate = gate.clone();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { recv_buffer_size: 64, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let (gate, report) = (handler_gate.clone(), report.clone());
            async move {
                let Some(first) = connection.read().await? else { return Ok(()) };
                let mut all = first.to_vec();
                let _ = report.send(Vec::new());
                gate.wait().await;
                let mut space = vec![0; 64 * 1024];
                loop {
                    match connection.read_slice(&mut space).await? {
                        0 => break,
                        n => all.extend_from_slice(&space[..n]),
                    }
                }
                let _ = report.send(all);
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(&flood[..64]).unwrap();
    assert_eq!(reports.recv_timeout(Duration::from_secs(10)), Ok(Vec::new()), "not parked");
    let sent = 64 + peer.send_until_blocked(&flood[64..], Duration::from_millis(500)).unwrap();
    assert!(sent < flood.len(), "the peer was never stopped: {sent} bytes taken unread");
    assert_eq!(server.stats().open, 1);
    gate.open();
    peer.send(&flood[sent..]).unwrap();
    peer.half_close().unwrap();
    let received = reports.recv_timeout(Duration::from_secs(30)).unwrap();
    assert!(received == expected, "{} of {} bytes arrived intact", received.len(), expected.len());
    assert_eq!(peer.ending(SOON), Ending::Eof);
    assert_eq!(Http::connect(server.addr()).into_peer().half_close().ok(), Some(()));
}

/// CORE-13: a panic AFTER the connection was let go must not release it twice; the peers see the
/// ordinary FIN of letting go.
#[test]
fn a_panic_after_letting_go_releases_the_connection_once() {
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        b.listen(loopback(), |connection: Connection| async move {
            epoxide::yield_now().await;
            drop(connection);
            provoke_panic("after letting go");
        });
        b.listen(loopback(), http_ok);
    });
    server.claim_panics(10);
    for i in 0..10 {
        let mut peer = Peer::connect(server.addrs()[0]);
        assert_eq!(peer.ending(Duration::from_secs(2)), Ending::Eof, "connection {i}");
    }
    assert!(server.wait_quiet());
    assert_eq!(Http::connect(server.addrs()[1]).get().map(|r| r.status), Ok(200));
}

/// CORE-15: a stop ends the threads in time although a client stays connected, refuses new
/// connects, and gives back every descriptor (the end of the case counts them).
#[test]
fn a_stop_gives_everything_back_while_a_client_stays_connected() {
    let case = Case::start();
    let server = ok_server(&case);
    let addr = server.addr();
    let mut client = Http::connect(addr);
    assert_eq!(client.get().map(|r| r.status), Ok(200));
    let before = std::time::Instant::now();
    server.stop(Duration::from_millis(500)).unwrap();
    assert!(before.elapsed() < Duration::from_secs(10), "stopping took {:?}", before.elapsed());
    // http_ok never says that it is idle, so it is busy and is reset at the deadline.
    assert!(client.peer().ending(SOON).is_closed());
    assert!(TcpStream::connect(addr).is_err(), "a stopped server still accepts");
    let ours = client.into_peer();
    let leaked = || case.leaked().into_iter().filter(|l| !l.contains("socket:")).collect::<Vec<_>>();
    // A thread that was joined is listed by the kernel for a moment more.
    assert!(wait_until(SOON, || leaked().is_empty()), "left over after the stop: {:?}", leaked());
    drop(ours);
}

/// The same with a handler that says it is idle: the drain ends it at once, with a clean FIN.
#[test]
fn a_stop_ends_idle_connections_at_once_and_cleanly() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            while let Some(received) = connection.read_idle().await? {
                stage(&mut connection, &received)?;
                drop(received);
                connection.flush().await?;
            }
            io::Result::Ok(())
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"ping").unwrap();
    assert_eq!(peer.read_exactly(4, SOON).unwrap(), b"ping");
    let before = std::time::Instant::now();
    let stopped = std::thread::spawn(move || server.stop(Duration::from_secs(60)).map(|_| ()));
    assert_eq!(peer.ending(Duration::from_secs(10)), Ending::Eof);
    drop(peer);
    stopped.join().unwrap().unwrap();
    assert!(before.elapsed() < Duration::from_secs(30), "it waited for its grace");
}

/// Z.8: more connections ready at once than one epoll_wait reports.
#[test]
fn more_ready_connections_than_events_in_one_wait_are_all_served() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { max_events: 4, ..ReactorConfig::default() });
        b.listen(loopback(), echo);
    });
    let mut peers: Vec<Peer> = (0..64).map(|_| Peer::connect(server.addr())).collect();
    for round in 0..20_u8 {
        let held = epoxide_tests_e2e::hold_reactor(&server.reactor());
        for peer in &mut peers {
            peer.send(&[round]).unwrap();
        }
        held.release();
        for (i, peer) in peers.iter_mut().enumerate() {
            assert_eq!(peer.read_exactly(1, SOON), Ok(vec![round]), "connection {i}");
        }
    }
}

/// A declined reservation is a refusal, not an abort, and the connection goes on.
#[test]
fn an_absurd_reservation_is_refused_and_the_connection_lives() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let all = read_to_end(&mut connection).await?;
            let refused = [usize::MAX, usize::MAX / 2, 1 << 40]
                .into_iter()
                .filter(|n| connection.try_reserve(*n).is_err())
                .count();
            stage(&mut connection, format!("{refused} {}", all.len()).as_bytes())?;
            connection.shutdown().await
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send_with_fin(b"abc").unwrap();
    assert_eq!(peer.read_to_end(SOON), (b"3 3".to_vec(), Ending::Eof));
}
