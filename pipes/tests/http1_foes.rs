//! `serve_http` over HTTP/1 against clients that lie about lengths, hide requests in bodies, or send without end.

mod common;
mod web;

use bytes::Bytes;
use common::everywhere;
use epoxide::ReactorConfig;
use epoxide_pipes::{HttpOptions, serve_http_send};
use epoxide_tests_e2e::{Case, Ending, Peer};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;
use web::{Desk, LONG, PLACES};

/// How many answers are in these bytes, by their status lines.
fn statuses(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split("HTTP/1.1 ").skip(1);
    lines.map(|rest| rest.chars().take(3).collect()).collect()
}

/// A request behind a body whose length is told in two ways, or badly: it must never be taken for one of its own.
#[test]
fn a_request_hidden_in_a_body_is_not_served() {
    const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nhost: t\r\n\r\n";
    // Each: headers and body, and the status. "200": served as one request, and the connection ends.
    let chunked = format!("0\r\n\r\n{HIDDEN}");
    let plain = format!("hello{HIDDEN}");
    let shapes: Vec<(&str, &str, &str)> = vec![
        ("content-length: 5\r\ntransfer-encoding: chunked\r\n", &chunked, "200"),
        ("transfer-encoding: chunked\r\ncontent-length: 5\r\n", &chunked, "200"),
        ("transfer-encoding: chunked, identity\r\n", &chunked, "400"),
        ("transfer-encoding: identity\r\n", &chunked, "400"),
        ("transfer-encoding: xchunked\r\n", &chunked, "400"),
        ("transfer-encoding : chunked\r\n", &chunked, "400"),
        (" transfer-encoding: chunked\r\n", &chunked, "400"),
        ("x: y\r\n transfer-encoding: chunked\r\n", &chunked, "400"),
        ("x: y\r\n\tcontent-length: 5\r\n", &plain, "400"),
        ("transfer-encoding: \x0bchunked\r\n", &chunked, "400"),
        ("transfer\0-encoding: chunked\r\n", &chunked, "400"),
        ("x: a\0b\r\ncontent-length: 5\r\n", &plain, "400"),
        ("x: a\rcontent-length: 5\r\n", &plain, "400"),
        ("content-length: 5\r\ncontent-length: 6\r\n", &plain, "400"),
        ("content-length: 5, 5\r\n", &plain, "400"),
        ("content-length: +5\r\n", &plain, "400"),
        ("content-length: -5\r\n", &plain, "400"),
        ("content-length: 0x5\r\n", &plain, "400"),
        ("content-length: 5a\r\n", &plain, "400"),
        ("content-length:\r\n", &plain, "400"),
        ("content-length: 18446744073709551616\r\n", &plain, "400"),
        ("content-length: 18446744073709551615\r\n", &plain, "431"),
    ];
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        for (headers, body, status) in &shapes {
            let before = desk.asked.load(Ordering::Acquire);
            let mut peer = Peer::connect(server.addr());
            peer.send(format!("POST /echo HTTP/1.1\r\nhost: t\r\n{headers}\r\n{body}").as_bytes()).unwrap();
            let (answer, ending) = peer.read_to_end(LONG);
            let shown = String::from_utf8_lossy(&answer);
            assert_eq!(statuses(&answer), [*status], "{headers:?}: {shown}");
            assert!(ending.is_closed(), "{headers:?}: the connection goes on");
            let asked = desk.asked.load(Ordering::Acquire) - before;
            assert_eq!(asked, usize::from(*status == "200"), "{headers:?}: served {asked}");
        }
    }
}

/// Chunks that are none: the request is over, the connection too, and what follows is not looked at.
#[test]
fn a_bad_chunk_ends_the_connection() {
    const HIDDEN: &str = "\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n";
    let flood = format!("1;{}\r\nx", "e".repeat(64 * 1024));
    let many = "1;eeeeeeee\r\nx\r\n".repeat(4000);
    let trailers = format!("0\r\n{}", "t: x\r\n".repeat(2000));
    let shapes: Vec<&str> = vec![
        "0x5\r\nhello",
        "+5\r\nhello",
        "-5\r\nhello",
        "\r\nhello",
        "5 5\r\nhello",
        "g\r\nhello",
        "fffffffffffffffff\r\nhello",
        "10000000000000005\r\nhello",
        "5\rhello",
        "5\r\nhelloXX",
        "5;a=\0\r\nhello\0\0",
        &flood,
        &many,
        &trailers,
    ];
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        for shape in &shapes {
            let before = desk.asked.load(Ordering::Acquire);
            let mut peer = Peer::connect(server.addr());
            let head = "POST /len HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n";
            // It may be gone before it has taken everything.
            let _ = peer.send(format!("{head}{shape}{HIDDEN}").as_bytes());
            let (answer, ending) = peer.read_to_end(LONG);
            let shown = &shape[..shape.len().min(40)];
            assert!(!statuses(&answer).contains(&"404".to_owned()), "{shown:?}: the hidden request was served");
            assert!(ending.is_closed(), "{shown:?}: the connection goes on: {ending:?}");
            assert_eq!(desk.asked.load(Ordering::Acquire) - before, 1, "{shown:?}");
        }
    }
}

/// One byte at a time, one segment each, on one connection: heads, bodies, chunks, and pipelined ones.
#[test]
fn requests_are_understood_byte_by_byte() {
    let requests = [
        &b"\r\nGET / HTTP/1.1\r\nhost: t\r\n\r\n"[..],
        b"POST /echo HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc",
        b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=\"y\"\r\nabc\r\n0\r\nt: r\r\n\r\n",
        b"HEAD /big/1000 HTTP/1.1\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nconnection: close\r\n\r\n",
    ]
    .concat();
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        for size in [1, 3, requests.len()] {
            let mut peer = Peer::connect(server.addr());
            for piece in requests.chunks(size) {
                peer.send(piece).unwrap();
            }
            let (answer, ending) = peer.read_to_end(LONG);
            assert_eq!(statuses(&answer), ["200", "200", "200", "200", "404"], "{place:?}, pieces of {size}");
            assert_eq!(ending, Ending::Eof);
        }
        assert_eq!(desk.asked.load(Ordering::Acquire), 15);
    }
}

/// Answers that have no body, whatever the service says: the next one begins where the head ends.
#[test]
fn answers_without_a_body_have_none() {
    let case = Case::start();
    let server = everywhere(&case, ReactorConfig::default(), |connection| {
        let service = service_fn(async |request: Request<Incoming>| {
            let status = request.uri().path()[1..].parse::<u16>().unwrap();
            let answer = Response::builder().status(status).body(Full::new(Bytes::from_static(b"BODY")));
            Ok::<_, io::Error>(answer.unwrap())
        });
        serve_http_send(connection, service, HttpOptions::default())
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        for request in ["HEAD /200", "GET /204", "GET /304", "HEAD /304", "GET /200"] {
            peer.send(format!("{request} HTTP/1.1\r\nhost: t\r\n\r\n").as_bytes()).unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.extend(peer.read_exactly(1, LONG).unwrap_or_else(|ending| panic!("{request}: {ending:?}")));
            }
            assert!(head.starts_with(b"HTTP/1.1 "), "{request}: {}", String::from_utf8_lossy(&head));
        }
        assert_eq!(peer.read_exactly(4, LONG).unwrap(), b"BODY");
    }
}

/// An answer that does not wait for the body: it is told whole, the rest of the body is never a request, and a client
/// that goes on sending is not listened to for ever.
#[test]
fn an_early_answer_ends_the_connection_when_a_body_is_left() {
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        let hidden = b"GET /hidden HTTP/1.1\r\n\r\n";
        let mut peer = Peer::connect(server.addr());
        peer.send(b"POST / HTTP/1.1\r\ncontent-length: 100000000\r\n\r\n").unwrap();
        // More than the one look that hyper takes; in whole requests, should anybody look.
        for _ in 0..200 {
            if peer.send(&hidden.repeat(100)).is_err() {
                break;
            }
        }
        let (answer, ending) = peer.read_to_end(LONG);
        assert!(statuses(&answer) == ["200"] && answer.ends_with(b"ok"), "{}", String::from_utf8_lossy(&answer));
        assert!(ending.is_closed(), "{place:?}: {ending:?}");
    }
}

/// 100-continue: asked for, then nothing comes; the body's clock ends it. And an answer instead of the 100.
#[test]
fn a_body_that_was_asked_for_and_does_not_come_is_given_up() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let config = ReactorConfig { read_timeout: Duration::from_millis(300), ..ReactorConfig::default() };
        let server = desk.start_with(&case, place, HttpOptions::builder(), config);
        let mut silent = Peer::connect(server.addr());
        silent.send(b"POST /len HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n").unwrap();
        let (answer, ending) = silent.read_to_end(LONG);
        assert!(statuses(&answer) == ["100"] && ending.is_closed(), "{place:?}: {ending:?}");
        let mut refused = Peer::connect(server.addr());
        refused.send(b"POST / HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n").unwrap();
        let (answer, ending) = refused.read_to_end(LONG);
        assert!(statuses(&answer) == ["200"] && ending.is_closed(), "{place:?}: {answer:?}, {ending:?}");
    }
}

/// Upgrade asked for by a pipelined request, with bytes of the new protocol behind it, however they are cut.
#[test]
fn a_pipelined_upgrade_loses_nothing() {
    let bytes = [
        &b"GET / HTTP/1.1\r\n\r\nPOST /echo HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"[..],
        b"GET /upgrade HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\nnone of these is a request any more",
    ];
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        for size in [1, 7, 64, 4096] {
            let before = desk.asked.load(Ordering::Acquire);
            let mut peer = Peer::connect(server.addr());
            for piece in bytes.concat().chunks(size) {
                peer.send(piece).unwrap();
            }
            peer.half_close().unwrap();
            let (answer, ending) = peer.read_to_end(LONG);
            assert!(answer.ends_with(bytes[2]), "{place:?}, {size}: {}", String::from_utf8_lossy(&answer));
            assert_eq!((ending, desk.asked.load(Ordering::Acquire) - before), (Ending::Eof, 3));
        }
    }
}
