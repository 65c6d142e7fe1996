//! `serve_http` and a drain: idle connections end at once, busy ones finish, HTTP/2 says GOAWAY.

mod web;

use epoxide_pipes::ByteStream;
use epoxide_tests_e2e::{Case, Ending, Gate, Http, Peer, Server, wait_until};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use web::{Desk, LONG, PLACES, Place};

/// Stops the server on a thread of its own; joining gives the report.
fn stop(server: Server) -> std::thread::JoinHandle<epoxide::ShutdownReport> {
    std::thread::spawn(move || server.stop(Duration::from_secs(15)).expect("stops"))
}

/// The drain has begun: the listener is gone.
fn refuses(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_err()
}

#[test]
fn idle_connections_end_at_once() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let mut fresh = Peer::connect(server.addr());
        let mut used = Http::connect(server.addr());
        assert_eq!(used.get().unwrap().status, 200);
        assert!(wait_until(LONG, || server.stats().open == 2));
        let begin = Instant::now();
        let report = server.stop(Duration::from_secs(60)).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(10), "{place:?}: an idle connection holds the drain");
        assert_eq!(report.cut, 0, "{place:?}");
        assert_eq!(fresh.ending(LONG), Ending::Eof, "{place:?}");
        assert_eq!(used.peer().ending(LONG), Ending::Eof, "{place:?}");
        assert!(desk.error_kinds().is_empty());
    }
}

#[test]
fn a_busy_connection_is_answered_and_told_to_close() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let addr = server.addr();
        let mut peer = Peer::connect(server.addr());
        // A second request behind it: not to be begun.
        peer.send(b"GET /wait HTTP/1.1\r\n\r\n").unwrap();
        // It waits, and has not only arrived: else the poll that began before the drain may end with the answer.
        assert!(desk.go.wait_waiting(1, LONG));
        let stopped = stop(server);
        assert!(wait_until(LONG, || refuses(addr)), "the drain begins");
        desk.go.open();
        let (answer, ending) = peer.read_to_end(LONG);
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.ends_with("waited") && answer.contains("connection: close"), "{place:?}: {answer}");
        assert_eq!(ending, Ending::Eof);
        assert_eq!(stopped.join().unwrap().cut, 0);
        assert_eq!(desk.asked.load(Ordering::Acquire), 1);
    }
}

/// The answer is made, and most of it has not been sent: the end comes behind its last byte.
#[test]
fn a_slow_reader_gets_all_of_its_answer() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let addr = server.addr();
        let mut peer = Peer::connect_stalling(server.addr());
        peer.send(b"GET /big/20000000 HTTP/1.1\r\n\r\n").unwrap();
        let mut all = peer.read_exactly(100_000, LONG).unwrap();
        let stopped = stop(server);
        assert!(wait_until(LONG, || refuses(addr)), "the drain begins");
        let (rest, ending) = peer.read_to_end(LONG);
        all.extend(rest);
        assert!(all.len() > 20_000_000 && all.ends_with(b"\r\n0\r\n\r\n"), "{place:?}: {} bytes came", all.len());
        assert_eq!(ending, Ending::Eof);
        assert_eq!(stopped.join().unwrap().cut, 0);
    }
}

/// A request whose head is half there when the drain begins is answered.
#[test]
fn a_request_that_has_begun_is_answered() {
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        let addr = server.addr();
        let mut peer = Peer::connect(server.addr());
        peer.send(b"GET / HTTP/1.1\r\nhost:").unwrap();
        assert!(wait_until(LONG, || server.stats().reads >= 1));
        let stopped = stop(server);
        assert!(wait_until(LONG, || refuses(addr)), "the drain begins");
        peer.send(b" test\r\n\r\n").unwrap();
        let (answer, ending) = peer.read_to_end(LONG);
        assert!(answer.ends_with(b"ok"), "{place:?}: {}", String::from_utf8_lossy(&answer));
        assert_eq!(ending, Ending::Eof);
        assert_eq!(stopped.join().unwrap().cut, 0);
    }
}

/// HTTP/2: a stream in progress is answered, later ones are refused, and the connection ends.
#[test]
fn http2_says_goaway_and_finishes_its_streams() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let addr = server.addr();
        let (ready, seen_idle) = (Gate::new(), Gate::new());
        let client = std::thread::spawn({
            let (ready, seen_idle) = (ready.clone(), seen_idle.clone());
            move || {
                epoxide::block_on(async move {
                    let idle = epoxide::connect(addr).await.unwrap();
                    let (idle, idle_driver) = h2::client::handshake(ByteStream::new(idle)).await.unwrap();
                    let busy = epoxide::connect(addr).await.unwrap();
                    let (mut busy, busy_driver) = h2::client::handshake(ByteStream::new(busy)).await.unwrap();
                    let idle_end = epoxide::spawn_local(async move {
                        let end = idle_driver.await;
                        seen_idle.open();
                        end
                    });
                    let busy_end = epoxide::spawn_local(busy_driver);
                    let request = http(addr, "/wait");
                    let (answer, _) = busy.send_request(request, true).unwrap();
                    ready.open();
                    let answer = answer.await.expect("the stream in progress is answered");
                    assert_eq!(answer.status(), 200);
                    let mut body = answer.into_body();
                    assert_eq!(body.data().await.unwrap().unwrap(), "waited");
                    drop(body);
                    drop(idle);
                    let refused = match busy.ready().await {
                        Err(error) => Some(error),
                        Ok(mut busy) => match busy.send_request(http(addr, "/"), true) {
                            Err(error) => Some(error),
                            Ok((answer, _)) => answer.await.err(),
                        },
                    };
                    assert!(refused.is_some(), "a stream was begun after the drain");
                    idle_end.await.unwrap().expect("GOAWAY(NO_ERROR) is no error");
                    let _ = busy_end.await.unwrap();
                });
            }
        });
        assert!(ready.wait_blocking(LONG) && desk.arrived.wait_blocking(LONG));
        let stopped = stop(server);
        assert!(wait_until(LONG, || refuses(addr)), "the drain begins");
        assert!(seen_idle.wait_blocking(LONG), "{place:?}: the idle connection stays");
        desk.go.open();
        client.join().unwrap();
        assert_eq!(stopped.join().unwrap().cut, 0, "{place:?}");
    }
}

fn http(addr: SocketAddr, path: &str) -> hyper::Request<()> {
    hyper::Request::get(format!("http://{addr}{path}")).body(()).unwrap()
}

/// Keeps the harness honest: a connection that never reads idle would hold the drain to its end.
#[test]
fn an_upgraded_connection_is_busy() {
    let case = Case::start();
    let server = Desk::default().start(&case, Place::Reactor);
    let mut peer = Peer::connect(server.addr());
    peer.send(b"GET /upgrade HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n").unwrap();
    assert!(peer.read_exactly(12, LONG).unwrap().starts_with(b"HTTP/1.1 101"));
    let report = server.stop(Duration::from_millis(300)).unwrap();
    assert_eq!(report.cut, 1);
    assert!(peer.ending(LONG).is_closed());
}
