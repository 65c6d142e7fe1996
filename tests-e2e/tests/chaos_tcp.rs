//! Hostile and broken TCP clients: each gets what it deserves, and afterwards a well-formed request
//! is answered on the same server.

use std::time::Duration;

use epoxide_tests_e2e::{Case, Ending, Http, Peer, Rng, Server, http_reply, loopback, pattern, rounds, serve_requests};

const SOON: Duration = Duration::from_secs(8);
const QUIET: Duration = Duration::from_millis(800);
/// The largest head the server accepts.
const CAP: usize = 64 * 1024;

fn serving(case: &Case) -> Server {
    Server::start(case, |b| {
        b.listen(loopback(), |c| serve_requests(c, CAP, |_| http_reply(200, b"ok")));
    })
}

/// What every case ends with.
fn still_serves(server: &Server) {
    let response = Http::connect(server.addr()).get().expect("a fresh request is answered");
    assert_eq!((response.status, &response.body[..]), (200, &b"ok"[..]));
}

/// CHT-01.
#[test]
fn a_request_byte_by_byte_gets_one_answer() {
    let case = Case::start();
    let server = serving(&case);
    let mut client = Http::connect(server.addr());
    client.peer().drip(Http::GET, 1, Duration::from_millis(2)).unwrap();
    assert_eq!(client.response(SOON).map(|r| r.status), Ok(200));
    let (extra, ending, _) = client.drain(QUIET);
    assert_eq!((extra.len(), ending), (0, Ending::Timeout));
    still_serves(&server);
}

/// CHT-02.
#[test]
fn twenty_pipelined_requests_get_twenty_answers() {
    let case = Case::start();
    let server = serving(&case);
    let mut client = Http::connect(server.addr());
    client.send(&Http::GET.repeat(20)).unwrap();
    assert_eq!(client.responses(20, SOON).map(|r| r.len()), Ok(20));
    let (extra, ending, _) = client.drain(QUIET);
    assert_eq!((extra.len(), ending), (0, Ending::Timeout));
    still_serves(&server);
}

/// CHT-03.
#[test]
fn a_head_over_many_buffers_gets_one_answer() {
    let case = Case::start();
    let server = serving(&case);
    let mut client = Http::connect(server.addr());
    let mut request = b"GET / HTTP/1.1\r\n".to_vec();
    for i in 0..400 {
        request.extend_from_slice(format!("X-Filler-{i}: {}\r\n", "f".repeat(64)).as_bytes());
    }
    request.extend_from_slice(b"\r\n");
    assert!(request.len() > 30_000 && request.len() < CAP);
    client.send(&request).unwrap();
    assert_eq!(client.response(SOON).map(|r| r.status), Ok(200));
    still_serves(&server);
}

/// CHT-04: refused, with the refusal on the wire, and never with a 200.
#[test]
fn a_head_without_an_end_is_refused() {
    let case = Case::start();
    let server = serving(&case);
    let mut client = Http::connect(server.addr());
    // The server may well be gone before all of it is sent.
    let _ = client.send(&[b'h'; 128 * 1024]);
    let (responses, ending, _) = client.drain(SOON);
    assert_eq!(responses.iter().map(|r| r.status).collect::<Vec<_>>(), [431]);
    assert_eq!(ending, Ending::Eof, "what was not read must not kill the refusal");
    still_serves(&server);
}

/// CHT-05.
#[test]
fn binary_garbage_then_a_close_does_no_harm() {
    let case = Case::start();
    let server = serving(&case);
    for seed in 0..20 {
        let mut peer = Peer::connect(server.addr());
        peer.send(&Rng::new(seed).bytes(8192)).unwrap();
        drop(peer);
    }
    still_serves(&server);
}

/// CHT-08, CHT-10.
#[test]
fn connects_that_close_at_once_or_after_a_byte_are_let_go() {
    let case = Case::start();
    let server = serving(&case);
    for _ in 0..20 {
        drop(Peer::connect(server.addr()));
    }
    for _ in 0..100 {
        let mut peer = Peer::connect(server.addr());
        peer.send(b"G").unwrap();
    }
    still_serves(&server);
    assert!(server.wait_quiet());
    assert_eq!(server.stats().accepted, 121);
}

/// CHT-09.
#[test]
fn resets_in_the_middle_of_a_request_are_let_go() {
    let case = Case::start();
    let server = serving(&case);
    for i in 0..20 {
        let mut peer = Peer::connect(server.addr());
        peer.send(&Http::GET[..1 + i % (Http::GET.len() - 1)]).unwrap();
        peer.reset();
    }
    still_serves(&server);
}

/// CHT-12, stronger here: a half-close ends the client's writing only, so the answer must arrive.
#[test]
fn a_half_close_behind_the_request_is_answered() {
    let case = Case::start_rounds();
    let server = serving(&case);
    for round in 0..rounds() {
        let mut client = Http::connect(server.addr());
        client.send(Http::GET).unwrap();
        client.peer().half_close().unwrap();
        let (responses, ending, left_over) = client.drain(SOON);
        assert_eq!((responses.len(), ending, left_over), (1, Ending::Eof, 0), "round {round}");
    }
    still_serves(&server);
}

/// CHT-13.
#[test]
fn fifty_connections_at_once_are_all_answered() {
    let case = Case::start();
    let server = serving(&case);
    let mut clients: Vec<Http> = (0..50).map(|_| Http::connect(server.addr())).collect();
    for client in &mut clients {
        client.send(Http::GET).unwrap();
    }
    for (i, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.response(SOON).map(|r| r.status), Ok(200), "connection {i}");
    }
    still_serves(&server);
}

/// CHR-01: garbage and a FIN, a reset in the middle, and an oversize head, over and over; the case
/// counts what is left.
#[test]
fn rounds_of_abuse_leave_nothing_behind() {
    let case = Case::start();
    let server = serving(&case);
    for round in 0..25 {
        let mut garbage = Peer::connect(server.addr());
        garbage.send(&Rng::new(round).bytes(1024)).unwrap();
        garbage.half_close().unwrap();
        let mut cut = Peer::connect(server.addr());
        cut.send(&Http::GET[..10]).unwrap();
        cut.reset();
        let mut oversize = Peer::connect(server.addr());
        let _ = oversize.send(&pattern(96 * 1024));
        assert_eq!(garbage.ending(SOON), Ending::Eof, "round {round}");
        assert!(oversize.ending(SOON).is_closed(), "round {round}");
    }
    still_serves(&server);
    assert!(server.wait_quiet());
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.open), (76, 0));
}

/// A client that leaves with our answer unread makes its kernel send a RST: no harm to others.
#[test]
fn clients_that_leave_with_answers_unread_do_no_harm() {
    let case = Case::start();
    let server = serving(&case);
    for _ in 0..50 {
        let mut client = Http::connect(server.addr());
        client.send(&Http::GET.repeat(10)).unwrap();
        drop(client);
    }
    still_serves(&server);
}
