//! `serve_http` over HTTP/1: framing, bodies both ways, upgrades; on reactors and on workers.

mod web;

use epoxide_tests_e2e::{Case, Ending, Http, Peer, Response, find_head_end, pattern, wait_until};
use std::sync::atomic::Ordering;
use std::time::Duration;
use web::{Desk, LONG, PLACES};

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").into_bytes()
}

fn ok(body: &str) -> Response {
    Response { status: 200, body: body.into() }
}

/// The head of the next answer.
fn head(peer: &mut Peer) -> String {
    let mut head = Vec::new();
    while find_head_end(&head).is_none() {
        head.extend(peer.read_exactly(1, LONG).expect("a head comes"));
    }
    String::from_utf8(head).unwrap()
}

/// A chunked body, decoded.
fn chunked(peer: &mut Peer) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(peer.read_exactly(1, LONG).expect("a chunk's size comes"));
        }
        let size = usize::from_str_radix(std::str::from_utf8(&line[..line.len() - 2]).unwrap(), 16).unwrap();
        body.extend(peer.read_exactly(size, LONG).expect("a chunk comes"));
        assert_eq!(peer.read_exactly(2, LONG).unwrap(), b"\r\n");
        if size == 0 {
            return body;
        }
    }
}

#[test]
fn one_connection_serves_many_requests() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let mut http = Http::connect(server.addr());
        for _ in 0..50 {
            assert_eq!(http.get().unwrap(), ok("ok"));
        }
        assert_eq!(server.stats().accepted, 1, "{place:?}");
        drop(http);
        assert!(server.wait_quiet());
        assert!(desk.error_kinds().is_empty(), "a client that leaves between two requests is no error");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let mut http = Http::connect(server.addr());
        let mut all = Vec::new();
        for i in 0..40 {
            let body = i.to_string();
            all.extend(format!("POST /echo HTTP/1.1\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes());
        }
        http.send(&all).unwrap();
        let answers = http.responses(40, LONG).expect("every request is answered");
        for (i, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer, ok(&i.to_string()), "{place:?}");
        }
    }
}

#[test]
fn bodies_in_chunks_go_up_and_down() {
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        let mut peer = Peer::connect(server.addr());
        let body = pattern(100_000);
        peer.send(b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        for piece in body.chunks(7_777) {
            peer.send(format!("{:x}\r\n", piece.len()).as_bytes()).unwrap();
            peer.send(piece).unwrap();
            peer.send(b"\r\n").unwrap();
        }
        peer.send(b"0\r\n\r\n").unwrap();
        let head = head(&mut peer);
        assert!(head.starts_with("HTTP/1.1 200") && head.contains("transfer-encoding: chunked"), "{head}");
        assert!(chunked(&mut peer) == body, "{place:?}: the body comes back as it was");
        // The connection is good for another.
        peer.send(&get("/")).unwrap();
        assert!(peer.read_exactly(12, LONG).unwrap().starts_with(b"HTTP/1.1 200"));
    }
}

#[test]
fn a_body_is_asked_for_when_the_client_wants_that() {
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        let mut peer = Peer::connect(server.addr());
        peer.send(b"POST /len HTTP/1.1\r\ncontent-length: 1000\r\nexpect: 100-continue\r\n\r\n").unwrap();
        assert_eq!(head(&mut peer), "HTTP/1.1 100 Continue\r\n\r\n");
        peer.send(&pattern(1000)).unwrap();
        let mut http = Http::over(peer);
        assert_eq!(http.response(LONG).unwrap(), ok("1000"));
    }
}

#[test]
fn a_client_that_does_not_read_holds_the_body_back() {
    const SIZE: usize = 64 << 20;
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let mut peer = Peer::connect_stalling(server.addr());
        peer.send(&get(&format!("/big/{SIZE}"))).unwrap();
        let made = || desk.made.load(Ordering::Acquire);
        assert!(wait_until(LONG, || made() > 0), "the body begins");
        // It stands still when nothing is made for a while.
        let mut last = 0;
        assert!(wait_until(LONG, || {
            let before = std::mem::replace(&mut last, made());
            // sleep: nothing tells that nothing happens.
            std::thread::sleep(Duration::from_millis(100));
            before == last && last > 0
        }));
        assert!(last < 16 << 20, "{place:?}: {last} bytes were made for a client that reads none");
        let head = head(&mut peer);
        assert!(head.contains("transfer-encoding: chunked"), "{head}");
        assert!(chunked(&mut peer) == pattern(SIZE), "{place:?}: every byte arrives");
    }
}

#[test]
fn a_handler_that_does_not_read_holds_the_client_back() {
    const SIZE: usize = 64 << 20;
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let mut peer = Peer::connect(server.addr());
        peer.send(format!("POST /hold HTTP/1.1\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes()).unwrap();
        assert!(desk.arrived.wait_blocking(LONG));
        let body = vec![7; SIZE];
        let sent = peer.send_until_blocked(&body, Duration::from_millis(500)).unwrap();
        assert!(sent < 32 << 20, "{place:?}: {sent} bytes were taken for a handler that reads none");
        desk.go.open();
        peer.send(&body[sent..]).unwrap();
        assert_eq!(Http::over(peer).response(LONG).unwrap(), ok(&SIZE.to_string()));
    }
}

#[test]
fn an_upgraded_connection_keeps_what_came_behind_the_request() {
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        let mut peer = Peer::connect(server.addr());
        let mut first = b"GET /upgrade HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n".to_vec();
        first.extend_from_slice(b"early");
        peer.send(&first).unwrap();
        assert!(head(&mut peer).starts_with("HTTP/1.1 101"));
        assert_eq!(peer.read_exactly(5, LONG).unwrap(), b"early");
        let body = pattern(300_000);
        let mut writer = peer.stream().try_clone().unwrap();
        let sent = body.clone();
        let sender = std::thread::spawn(move || std::io::Write::write_all(&mut writer, &sent));
        assert!(peer.read_exactly(body.len(), LONG).unwrap() == body, "{place:?}");
        sender.join().unwrap().unwrap();
        peer.half_close().unwrap();
        assert_eq!(peer.ending(LONG), Ending::Eof);
    }
}

/// A request and the client's end in one segment: the answer is ready at once and goes out.
#[test]
fn a_request_with_the_end_right_behind_it_is_answered() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let mut peer = Peer::connect(server.addr());
        peer.send_with_fin(&get("/")).unwrap();
        let (answer, ending) = peer.read_to_end(LONG);
        assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"ok"), "{place:?}");
        assert_eq!(ending, Ending::Eof);
        assert!(server.wait_quiet());
        assert!(desk.error_kinds().is_empty());
    }
}
