//! `serve_https` and a drain: every client is told the end by a close_notify, behind whole answers.

use crate::client::{self, GET, ask};
use crate::https::{BOTH, H1, http2, offering, request, start, to_clean_end};
use crate::servers::World;
use crate::web::{Desk, LONG, PLACES};
use epoxide_tests_e2e::{Case, Ending, Gate, Peer, Server, wait_until};
use http_body_util::BodyExt;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Stops the server on a thread of its own, and returns once it drains: the listener is gone.
fn begin_drain(server: Server) -> std::thread::JoinHandle<epoxide::ShutdownReport> {
    let addr = server.addr();
    let stopped = std::thread::spawn(move || server.stop(Duration::from_secs(15)).expect("stops"));
    assert!(wait_until(LONG, || TcpStream::connect(addr).is_err()), "the drain begins");
    stopped
}

#[test]
fn idle_sessions_end_at_once_and_clean() {
    for place in PLACES {
        let case = Case::start();
        let (world, desk) = (World::new(), Desk::default());
        let server = start(&desk, &case, place, &world.options().alpn(BOTH));
        let context = offering(&world.authority, H1);
        let mut silent = Peer::connect(server.addr());
        let mut fresh = client::connect(server.addr(), &context);
        let mut used = client::connect(server.addr(), &context);
        assert!(ask(&mut used, GET).unwrap().ends_with("ok"));
        assert!(wait_until(LONG, || server.stats().open == 3));
        let begin = Instant::now();
        let report = server.stop(Duration::from_secs(60)).unwrap();
        assert!(begin.elapsed() < Duration::from_secs(10), "{place:?}: an idle session holds the drain");
        assert_eq!(report.cut, 0, "{place:?}");
        assert!(to_clean_end(&mut fresh).is_empty() && to_clean_end(&mut used).is_empty());
        assert_eq!(silent.ending(LONG), Ending::Eof);
        // Not even of the client that had not begun its handshake.
        assert!(desk.error_kinds().is_empty(), "{place:?}: {:?}", desk.errors.lock().unwrap());
    }
}

#[test]
fn a_busy_session_is_answered_first() {
    for place in PLACES {
        let case = Case::start();
        let (world, desk) = (World::new(), Desk::default());
        let server = start(&desk, &case, place, &world.options().alpn(BOTH));
        let mut client = client::connect(server.addr(), &offering(&world.authority, H1));
        client.write_all(b"GET /wait HTTP/1.1\r\n\r\n").unwrap();
        assert!(desk.arrived.wait_blocking(LONG));
        let stopped = begin_drain(server);
        desk.go.open();
        let answer = String::from_utf8(to_clean_end(&mut client)).unwrap();
        assert!(answer.ends_with("waited") && answer.contains("connection: close"), "{place:?}: {answer}");
        assert_eq!(stopped.join().unwrap().cut, 0);
    }
}

#[test]
fn http2_finishes_its_streams() {
    for place in PLACES {
        let case = Case::start();
        let (world, desk) = (World::new(), Desk::default());
        let server = start(&desk, &case, place, &world.options().alpn(BOTH));
        let addr = server.addr();
        let idle_ended = Gate::new();
        let seen = idle_ended.clone();
        let client = std::thread::spawn(move || {
            epoxide::block_on(async move {
                let (_idle, idle_end) = http2(addr, &world).await;
                let (mut busy, busy_end) = http2(addr, &world).await;
                let answer = busy.send_request(request("/wait", Vec::new()));
                idle_end.await.unwrap().expect("GOAWAY(NO_ERROR) is no error");
                seen.open();
                let answer = answer.await.expect("the stream in progress is answered");
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "waited");
                busy_end.await.unwrap().expect("GOAWAY(NO_ERROR) is no error");
                assert!(busy.send_request(request("/", Vec::new())).await.is_err());
            });
        });
        assert!(desk.arrived.wait_blocking(LONG));
        let stopped = begin_drain(server);
        assert!(idle_ended.wait_blocking(LONG), "{place:?}: the idle connection stays");
        desk.go.open();
        client.join().unwrap();
        assert_eq!(stopped.join().unwrap().cut, 0, "{place:?}");
    }
}

/// Whole answers only, then a close_notify; how many there were.
fn ask_until_the_end(addr: SocketAddr, world: &World, asked: &AtomicUsize) -> usize {
    let mut client = client::connect(addr, &offering(&world.authority, H1));
    let mut answers = 0;
    loop {
        // After the server's end a write may find a reset: what was received before it counts.
        let written = client.write_all(GET.as_bytes());
        let mut text = Vec::new();
        while !text.ends_with(b"\r\n\r\nok") {
            let mut chunk = [0; 4096];
            match client.read(&mut chunk) {
                Ok(0) => {
                    assert!(text.is_empty(), "a cut answer: {}", String::from_utf8_lossy(&text));
                    let told = client.get_shutdown().contains(boring::ssl::ShutdownState::RECEIVED);
                    assert!(told, "no close_notify behind {answers} answers");
                    return answers;
                }
                Ok(n) => text.extend_from_slice(&chunk[..n]),
                Err(error) => panic!("{error} behind {answers} answers; the write: {written:?}"),
            }
        }
        answers += 1;
        asked.fetch_add(1, Ordering::Release);
    }
}

#[test]
fn a_drain_under_load_cuts_nothing() {
    const CLIENTS: usize = 8;
    for place in PLACES {
        let case = Case::start();
        let (world, desk) = (Arc::new(World::new()), Desk::default());
        let server = start(&desk, &case, place, &world.options().alpn(BOTH));
        let (addr, asked) = (server.addr(), Arc::new(AtomicUsize::new(0)));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let (world, asked) = (world.clone(), asked.clone());
                std::thread::spawn(move || ask_until_the_end(addr, &world, &asked))
            })
            .collect();
        assert!(wait_until(LONG, || asked.load(Ordering::Acquire) >= CLIENTS * 50), "the load runs");
        let report = server.stop(Duration::from_secs(60)).unwrap();
        let answers: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert_eq!(report.cut, 0, "{place:?}");
        assert!(answers >= CLIENTS * 50);
        assert_eq!(answers, desk.asked.load(Ordering::Acquire), "{place:?}: a request was begun and not answered");
    }
}
