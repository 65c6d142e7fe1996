//! `serve_http` over HTTP/2 against clients that flood, stall, or break the protocol, frame by frame (RFC 9113).

mod common;
mod web;

use bytes::Bytes;
use common::everywhere;
use epoxide::ReactorConfig;
use epoxide_pipes::{ByteStream, HttpOptions, serve_http_send};
use epoxide_tests_e2e::{Case, Gate, Peer, Server, resident_bytes, wait_until};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use std::io;
use std::time::Duration;
use web::{Desk, LONG, PLACES, Place, frame};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SHORT: Duration = Duration::from_millis(300);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RESET: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// GET http://test/, from the static table (RFC 7541, appendix A).
const GET: &[u8] = b"\x82\x86\x84\x41\x04test";

fn begin() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// Kind, stream and payload of the whole frames in these bytes.
fn frames(mut bytes: &[u8]) -> Vec<(u8, u32, Vec<u8>)> {
    let mut all = Vec::new();
    while bytes.len() >= 9 {
        let len = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let Some(payload) = bytes.get(9..9 + len) else { break };
        all.push((bytes[3], u32::from_be_bytes(bytes[5..9].try_into().unwrap()), payload.to_vec()));
        bytes = &bytes[9 + len..];
    }
    all
}

/// A fresh client is served: whatever another one has done.
fn is_alive(server: &Server) {
    let mut peer = Peer::connect(server.addr());
    peer.send(&[begin(), frame(HEADERS, END_STREAM | END_HEADERS, 1, GET)].concat()).unwrap();
    let mut all = Vec::new();
    while !frames(&all).iter().any(|(kind, stream, _)| (*kind, *stream) == (DATA, 1)) {
        all.extend(peer.read_exactly(1, LONG).expect("a fresh client is answered"));
    }
}

/// What breaks the protocol ends the stream or the connection, at once, and nobody else's.
#[test]
fn what_breaks_the_protocol_ends_the_connection() {
    let literal = |name: &[u8], value: &[u8]| {
        let mut field = vec![0, u8::try_from(name.len()).unwrap()];
        field.extend(name);
        field.push(u8::try_from(value.len()).unwrap());
        field.extend(value);
        field
    };
    let get_with = |field: Vec<u8>| frame(HEADERS, END_STREAM | END_HEADERS, 1, &[GET, &field].concat());
    let shapes: Vec<(&str, Vec<u8>)> = vec![
        ("headers on stream 0", frame(HEADERS, END_STREAM | END_HEADERS, 0, GET)),
        ("an even stream", frame(HEADERS, END_STREAM | END_HEADERS, 2, GET)),
        ("data on an idle stream", frame(DATA, 0, 1, b"x")),
        ("a push by the client", frame(PUSH, END_HEADERS, 1, &[0, 0, 0, 2, 0x82])),
        ("a reset of stream 0", frame(RESET, 0, 0, &[0; 4])),
        ("a reset of an idle stream", frame(RESET, 0, 1, &[0; 4])),
        ("a settings frame of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5])),
        ("an acknowledgement with a payload", frame(SETTINGS, 1, 0, &[0; 6])),
        ("a window past its limit by settings", frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff])),
        ("a frame size out of range", frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1])),
        ("a ping of 7 bytes", frame(PING, 0, 0, &[0; 7])),
        ("a window update of 0", frame(WINDOW, 0, 0, &[0; 4])),
        ("a window past its limit", frame(WINDOW, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, GET)),
        (
            "something between a head's frames",
            [frame(HEADERS, END_STREAM, 1, GET), frame(PING, 0, 0, &[0; 8])].concat(),
        ),
        ("a frame of 16 KiB and a byte", frame(DATA, 0, 1, &[0; 16 * 1024 + 1])),
        ("padding longer than its frame", frame(DATA, 8, 1, &[200, 0])),
        ("an index that is not in the table", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0xff, 0xff, 0x7f])),
        ("an integer without end", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0xff; 64])),
        ("a table size past its limit", frame(HEADERS, END_STREAM | END_HEADERS, 1, &[0x3f, 0xe1, 0xff, 0x7f])),
    ];
    // These end their stream.
    let malformed = vec![
        ("a capital letter", get_with(literal(b"X", b"y"))),
        ("a connection header", get_with(literal(b"connection", b"close"))),
        ("transfer-encoding", get_with(literal(b"transfer-encoding", b"chunked"))),
        ("a line in a value", get_with(literal(b"x", b"a\r\nb: c"))),
        (
            "a line in the path",
            frame(HEADERS, END_STREAM | END_HEADERS, 1, &[GET, &literal(b":path", b"/ HTTP/1.1\r\n")].concat()),
        ),
        ("two methods", get_with(vec![0x83])),
        (
            "a body shorter than its length",
            [
                frame(HEADERS, END_HEADERS, 1, &[GET, &literal(b"content-length", b"5")].concat()),
                frame(DATA, END_STREAM, 1, b"abc"),
            ]
            .concat(),
        ),
    ];
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        for (name, bytes) in &shapes {
            let mut peer = Peer::connect(server.addr());
            let _ = peer.send(&[begin(), bytes.clone()].concat());
            let (answer, ending) = peer.read_to_end(LONG);
            let told = frames(&answer).iter().any(|(kind, ..)| *kind == GOAWAY || *kind == RESET);
            assert!(ending.is_closed() && told, "{place:?}, {name}: {ending:?}, {:?}", frames(&answer));
        }
        for (name, bytes) in &malformed {
            let mut peer = Peer::connect(server.addr());
            let mut all = Vec::new();
            let _ = peer.send(&[begin(), bytes.clone()].concat());
            let refused = |all: &[u8]| frames(all).iter().any(|(kind, ..)| *kind == GOAWAY || *kind == RESET);
            while !refused(&all) {
                let piece = peer.read_exactly(1, LONG);
                all.extend(piece.unwrap_or_else(|ending| panic!("{place:?}, {name}: {ending:?}, {:?}", frames(&all))));
            }
            let answered = frames(&all).iter().any(|(kind, ..)| *kind == DATA);
            assert!(!answered, "{place:?}, {name}: it was served");
        }
        is_alive(&server);
    }
}

/// Frames that cost the client little and ask for an answer each, from one that reads none: bounded memory, and an end.
#[test]
fn floods_are_bounded() {
    const MIB: u64 = 1 << 20;
    // Never ended: continuation frames, empty and full; CVE-2024-27316.
    let continuations = |size: usize| {
        let first = frame(HEADERS, END_STREAM, 1, GET);
        let one = frame(CONTINUATION, 0, 1, &b"\x00\x01a\x01b".repeat(size));
        [first, one.repeat(200_000 / one.len().min(200))].concat()
    };
    let bomb = || {
        // One field of 4000 bytes goes into the table; then 16 000 references to it, a byte each.
        let mut head = GET.to_vec();
        head.extend([0x40, 1, b'x', 0x7f, 0xa1, 0x1e]);
        head.extend([b'v'; 4000]);
        head.extend([0xbe; 12_000]);
        frame(HEADERS, END_STREAM | END_HEADERS, 1, &head)
    };
    let floods: Vec<(&str, Vec<u8>)> = vec![
        ("pings", frame(PING, 0, 0, b"12345678").repeat(400_000)),
        ("settings", frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]).repeat(400_000)),
        ("empty continuations", continuations(0)),
        ("full continuations", continuations(2000)),
        ("a table bomb", bomb()),
        ("empty data", [frame(HEADERS, END_HEADERS, 1, GET), frame(DATA, 0, 1, &[]).repeat(400_000)].concat()),
        ("priorities", frame(2, 0, 1, &[0, 0, 0, 3, 1]).repeat(400_000)),
        ("unknown frames", frame(0xfa, 0, 0, &[0; 100]).repeat(100_000)),
    ];
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        is_alive(&server);
        for (name, flood) in &floods {
            let before = resident_bytes().unwrap();
            let mut peer = Peer::connect_stalling(server.addr());
            peer.send(&begin()).unwrap();
            let _ = peer.send_until_blocked(flood, Duration::from_millis(500));
            is_alive(&server);
            let grown = resident_bytes().unwrap().saturating_sub(before);
            assert!(grown < 32 * MIB, "{place:?}, {name}: {} KiB more", grown / 1024);
            peer.reset();
            assert!(wait_until(LONG, || server.stats().open == 0), "{place:?}, {name}");
        }
    }
}

/// CONNECT is a stream like any other: the connection's reads are not put under the read clock by it.
#[test]
fn a_tunnel_does_not_put_the_connection_under_the_read_clock() {
    let case = Case::start();
    let go = Gate::new();
    let config = ReactorConfig { read_timeout: SHORT, ..ReactorConfig::default() };
    let opened = go.clone();
    let server = everywhere(&case, config, move |connection| {
        let go = opened.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let go = go.clone();
            async move {
                if request.method() != Method::CONNECT {
                    go.wait().await;
                }
                Ok::<_, io::Error>(Response::new(Full::<Bytes>::default()))
            }
        });
        serve_http_send(connection, service, HttpOptions::default())
    });
    for addr in server.addrs() {
        epoxide::block_on(async {
            let (sender, driver) =
                h2::client::handshake(ByteStream::new(epoxide::connect(*addr).await.unwrap())).await.unwrap();
            let driving = epoxide::spawn_local(async move { drop(driver.await) });
            let mut sender = sender.ready().await.unwrap();
            let tunnel = Request::connect("far:1").body(()).unwrap();
            let (answer, _tunnel) = sender.send_request(tunnel, false).unwrap();
            assert_eq!(answer.await.unwrap().status(), 200);
            sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(Request::get("http://far/").body(()).unwrap(), true).unwrap();
            // sleep: it has no signal that it does not fire.
            epoxide::time::sleep(SHORT * 4).await;
            go.open();
            assert_eq!(answer.await.expect("the connection lives").status(), 200);
            drop((sender, _tunnel));
            epoxide::time::timeout(LONG, driving).await.expect("it ends").unwrap();
        });
    }
    assert_eq!(server.stats().timeouts, 0);
}

/// Without an idle clock nothing makes a busy connection look at itself again and again.
#[test]
fn a_busy_connection_without_an_idle_clock_rests() {
    let case = Case::start();
    let desk = Desk::default();
    let options = HttpOptions::builder().idle_timeout(Duration::ZERO);
    let server = desk.start_with(&case, Place::Reactor, options, ReactorConfig::default());
    let mut peer = Peer::connect(server.addr());
    let wait = b"\x82\x86\x44\x05/wait\x41\x04test";
    peer.send(&[begin(), frame(HEADERS, END_STREAM | END_HEADERS, 1, wait)].concat()).unwrap();
    assert!(desk.arrived.wait_blocking(LONG));
    // The settings are acknowledged by then.
    assert!(wait_until(LONG, || server.stats().sends >= 1));
    let before = server.stats().task_polls;
    // sleep: nothing is to happen meanwhile.
    std::thread::sleep(SHORT);
    let polls = server.stats().task_polls - before;
    assert!(polls < 20, "{polls} polls in {SHORT:?} of a connection that waits for its handler");
    desk.go.open();
    drop(peer);
}
