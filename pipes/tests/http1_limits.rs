//! `serve_http` over HTTP/1: limits, clocks, clients that go away, services that panic.

mod web;

use epoxide::ReactorConfig;
use epoxide_pipes::HttpOptions;
use epoxide_tests_e2e::{Case, Ending, Gate, Http, Peer, assert_pool_quiet, wait_until};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use web::{Desk, LONG, PLACES, Place};

const SHORT: Duration = Duration::from_millis(300);

fn status_of(answer: &[u8]) -> &str {
    std::str::from_utf8(answer.get(9..12).unwrap_or_default()).unwrap()
}

#[test]
fn a_head_past_its_limits_is_answered_431() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let many: String = (0..101).map(|i| format!("h{i}: x\r\n")).collect();
        let long = format!("long: {}\r\n", "x".repeat(17 * 1024));
        for headers in [many, long] {
            let mut peer = Peer::connect(server.addr());
            peer.send(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap();
            let (answer, ending) = peer.read_to_end(LONG);
            assert_eq!((status_of(&answer), ending), ("431", Ending::Eof), "{place:?}");
        }
        // Just within them.
        let headers: String = (0..100).map(|i| format!("h{i}: x\r\n")).collect();
        let mut http = Http::connect(server.addr());
        http.send(format!("GET / HTTP/1.1\r\n{headers}\r\n").as_bytes()).unwrap();
        assert_eq!(http.response(LONG).unwrap().status, 200);
    }
}

#[test]
fn a_slow_head_is_answered_408() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let options = HttpOptions::builder().head_timeout(SHORT);
        let server = desk.start_with(&case, place, options, ReactorConfig::default());
        // The first head, and one after an answer; dripped, so that every byte is activity.
        for warm in [false, true] {
            let mut http = Http::connect(server.addr());
            if warm {
                assert_eq!(http.get().unwrap().status, 200);
            }
            let mut peer = http.into_peer();
            // Or its not having come yet would be taken for its end.
            assert!(wait_until(LONG, || server.stats().open == 1));
            let begin = Instant::now();
            let mut ended = false;
            for byte in b"GET / HTTP/1.1\r\n".iter().chain(b"x: y\r\n".iter().cycle()).take(2000) {
                // sleep: the gap is the stimulus.
                std::thread::sleep(Duration::from_millis(20));
                if peer.send(&[*byte]).is_err() || begin.elapsed() > LONG {
                    break;
                }
                if server.stats().open == 0 {
                    ended = true;
                    break;
                }
            }
            assert!(ended, "{place:?}, warm {warm}: the head was never given up");
            assert!(begin.elapsed() >= SHORT, "{place:?}: early");
            let (answer, _) = peer.read_to_end(LONG);
            assert_eq!(status_of(&answer), "408", "{place:?}, warm {warm}");
        }
        assert_eq!(desk.error_kinds(), [ErrorKind::TimedOut, ErrorKind::TimedOut]);
    }
}

/// The preface of HTTP/2 is a head like any other, in so far as it must come to its end.
#[test]
fn a_preface_that_stops_is_given_up() {
    for place in PLACES {
        let case = Case::start();
        let options = HttpOptions::builder().head_timeout(SHORT);
        let server = Desk::default().start_with(&case, place, options, ReactorConfig::default());
        let mut peer = Peer::connect(server.addr());
        peer.send(b"PRI * HT").unwrap();
        assert!(peer.ending(LONG).is_closed(), "{place:?}");
    }
}

#[test]
fn an_idle_connection_is_closed() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let options = HttpOptions::builder().idle_timeout(SHORT);
        let server = desk.start_with(&case, place, options, ReactorConfig::default());
        for requests in [0, 1, 3] {
            let mut http = Http::connect(server.addr());
            let begin = Instant::now();
            for _ in 0..requests {
                assert_eq!(http.get().unwrap().status, 200);
            }
            assert_eq!(http.peer().ending(LONG), Ending::Eof, "{place:?}");
            assert!(begin.elapsed() >= SHORT, "{place:?}: early");
        }
        assert!(desk.error_kinds().is_empty());
    }
}

/// The read clock of the reactor counts while a body is waited for, and not while the handler works.
#[test]
fn a_busy_handler_is_not_timed_out_but_a_stalled_body_is() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let config = ReactorConfig { read_timeout: SHORT, ..ReactorConfig::default() };
        let server = desk.start_with(&case, place, HttpOptions::builder(), config);
        let mut stalled = Peer::connect(server.addr());
        stalled.send(b"POST /len HTTP/1.1\r\ncontent-length: 10\r\n\r\nfive!").unwrap();
        let mut busy = Http::connect(server.addr());
        busy.send(b"GET /wait HTTP/1.1\r\n\r\n").unwrap();
        assert!(desk.arrived.wait_blocking(LONG));
        let mut idle = Http::connect(server.addr());
        assert_eq!(idle.get().unwrap().status, 200);
        assert!(stalled.ending(LONG).is_closed(), "{place:?}");
        // Twice the clock, at least, for the others too.
        // sleep: it has no signal that it does not fire.
        std::thread::sleep(SHORT * 2);
        desk.go.open();
        assert_eq!(busy.response(LONG).unwrap().body, b"waited", "{place:?}");
        assert_eq!(idle.get().unwrap().status, 200, "{place:?}: the idle clock of serve_http counts instead");
    }
}

#[test]
fn a_client_that_leaves_ends_the_handler() {
    for place in PLACES {
        for reset in [false, true] {
            let case = Case::start();
            let desk = Desk::default();
            let server = desk.start(&case, place);
            let mut peer = Peer::connect(server.addr());
            peer.send(b"GET /wait HTTP/1.1\r\n\r\n").unwrap();
            assert!(desk.arrived.wait_blocking(LONG));
            assert!(!desk.dropped.is_open());
            if reset {
                peer.reset();
            } else {
                drop(peer);
            }
            assert!(desk.dropped.wait_blocking(LONG), "{place:?}, reset {reset}: the handler goes on for nobody");
            assert!(wait_until(LONG, || desk.error_kinds().len() == 1), "{place:?}, reset {reset}: it is no error");
        }
    }
}

#[test]
fn a_half_closed_client_may_wait_for_its_answer() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let options = HttpOptions::builder().half_close(true);
        let server = desk.start_with(&case, place, options, ReactorConfig::default());
        let mut peer = Peer::connect(server.addr());
        peer.send_with_fin(b"GET /wait HTTP/1.1\r\n\r\n").unwrap();
        assert!(desk.arrived.wait_blocking(LONG));
        desk.go.open();
        let (answer, ending) = peer.read_to_end(LONG);
        assert!(answer.ends_with(b"waited"), "{place:?}: {}", String::from_utf8_lossy(&answer));
        assert_eq!(ending, Ending::Eof);
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_body() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        // Of its own.
        let mut peer = Peer::connect(server.addr());
        peer.send(b"POST /len HTTP/1.1\r\ncontent-length: 1000\r\n\r\nhalf").unwrap();
        peer.reset();
        assert!(wait_until(LONG, || desk.error_kinds().len() == 1), "{place:?}: {:?}", desk.error_kinds());
        // Of the answer's.
        let mut peer = Peer::connect(server.addr());
        peer.send(b"GET /big/100000000 HTTP/1.1\r\n\r\n").unwrap();
        peer.read_exactly(100_000, LONG).unwrap();
        peer.reset();
        assert!(desk.dropped.wait_blocking(LONG), "{place:?}: the body is made for nobody");
        assert!(server.wait_quiet());
        assert_eq!(Http::connect(server.addr()).get().unwrap().status, 200, "and the next client is served");
    }
}

#[test]
fn a_panic_resets_the_connection_alone() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let mut server = desk.start(&case, place);
        let mut other = Http::connect(server.addr());
        assert_eq!(other.get().unwrap().status, 200);
        let mut peer = Peer::connect(server.addr());
        peer.send(b"GET /panic HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(peer.read_to_end(LONG), (Vec::new(), Ending::Reset), "{place:?}");
        assert_eq!(other.get().unwrap().status, 200, "{place:?}");
        drop(other);
        match place {
            Place::Reactor => server.claim_panics(1),
            Place::Workers => assert_pool_quiet(&server, 1),
        }
    }
}

#[test]
fn what_is_not_http_is_answered_400() {
    let case = Case::start();
    let desk = Desk::default();
    let server = desk.start(&case, Place::Reactor);
    let mut peer = Peer::connect(server.addr());
    peer.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 and so on\r\n\r\n").unwrap();
    let (answer, ending) = peer.read_to_end(LONG);
    assert_eq!((status_of(&answer), ending), ("400", Ending::Eof));
    assert!(server.wait_quiet());
    assert_eq!(desk.error_kinds(), [ErrorKind::InvalidData]);
}

/// A client that takes next to nothing of its answer.
#[test]
fn a_trickling_reader_is_cut() {
    let case = Case::start();
    let desk = Desk::default();
    let options = HttpOptions::builder().min_send_rate(1 << 20);
    let server = desk.start_with(&case, Place::Reactor, options, ReactorConfig::default());
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"GET /big/100000000 HTTP/1.1\r\n\r\n").unwrap();
    let gone = Gate::new();
    let reader = std::thread::spawn({
        let gone = gone.clone();
        move || {
            let mut byte = [0; 64];
            while !gone.is_open() && peer.read(&mut byte, LONG).is_ok() {
                // sleep: the gap is the stimulus.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    assert!(desk.dropped.wait_blocking(LONG), "the trickler is served for ever");
    gone.open();
    reader.join().unwrap();
    assert!(server.wait_quiet());
    assert_eq!(desk.error_kinds(), [ErrorKind::TimedOut]);
}
