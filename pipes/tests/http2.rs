//! `serve_http` over HTTP/2, asked by the `h2` crate over tokio's IO traits: no tokio runtime anywhere.

mod web;

use bytes::Bytes;
use epoxide::ReactorConfig;
use epoxide_pipes::{ByteStream, HttpOptions, HttpVersions};
use epoxide_tests_e2e::{Case, Ending, Peer, assert_pool_quiet, pattern, wait_until};
use h2::client::SendRequest;
use hyper::Request;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use web::{Desk, LONG, PLACES, Place, frame};

/// Runs a client against `addr`, on a reactor of its own.
fn ask<F, T>(addr: SocketAddr, client: impl FnOnce(SendRequest<Bytes>) -> F) -> T
where
    F: Future<Output = T>,
{
    epoxide::block_on(async move {
        let connection = epoxide::connect(addr).await.unwrap();
        // A stream that is not read must not use up the connection's window.
        let mut client_of = h2::client::Builder::new();
        client_of.initial_connection_window_size(1 << 20);
        let (sender, driver) = client_of.handshake(ByteStream::new(connection)).await.unwrap();
        let driving = epoxide::spawn_local(async move { drop(driver.await) });
        let told = epoxide::time::timeout(LONG * 2, client(sender)).await.expect("in time");
        epoxide::time::timeout(LONG, driving).await.expect("the connection ends").unwrap();
        told
    })
}

fn get(path: &str) -> Request<()> {
    Request::get(format!("http://test{path}")).body(()).unwrap()
}

async fn body_of(mut body: h2::RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut all = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        all.extend_from_slice(&data);
    }
    Ok(all)
}

#[test]
fn many_streams_share_a_connection() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        ask(server.addr(), |sender| async move {
            // The limit is known behind the first answer.
            let (first, _) = sender.clone().ready().await.unwrap().send_request(get("/"), true).unwrap();
            first.await.unwrap();
            let mut all = Vec::new();
            for i in 0..500 {
                let mut sender = sender.clone().ready().await.unwrap();
                let path = if i % 2 == 0 { "/" } else { "/big/1000" };
                let (answer, _) = sender.send_request(get(path), true).unwrap();
                all.push(epoxide::spawn_local(
                    async move { body_of(answer.await.unwrap().into_body()).await.unwrap() },
                ));
            }
            drop(sender);
            for (i, body) in all.into_iter().enumerate() {
                let body = body.await.unwrap();
                assert_eq!(body.len(), if i % 2 == 0 { 2 } else { 1000 }, "stream {i}");
            }
        });
        assert_eq!(desk.asked.load(Ordering::Acquire), 501, "{place:?}");
        assert_eq!(server.stats().accepted, 1);
    }
}

#[test]
fn at_most_so_many_streams_are_in_progress() {
    let case = Case::start();
    let desk = Desk::default();
    let options = HttpOptions::builder().max_streams(3);
    let server = desk.start_with(&case, Place::Reactor, options, ReactorConfig::default());
    let desk = &desk;
    ask(server.addr(), |sender| async move {
        let mut sender = sender.ready().await.unwrap();
        let (first, _) = sender.send_request(get("/"), true).unwrap();
        first.await.unwrap();
        assert_eq!(sender.current_max_send_streams(), 3);
        let mut waiting = Vec::new();
        for _ in 0..6 {
            sender = sender.ready().await.unwrap();
            waiting.push(sender.send_request(get("/wait"), true).unwrap().0);
            if waiting.len() == 3 {
                assert!(desk.go.wait_waiting(0, LONG));
                break;
            }
        }
        desk.go.open();
        for answer in waiting {
            assert_eq!(answer.await.unwrap().status(), 200);
        }
    });
}

/// Bodies larger than every window, both ways at once, on several streams.
#[test]
fn flow_control_moves_large_bodies() {
    const SIZE: usize = 4 << 20;
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        ask(server.addr(), |sender| async move {
            let mut all = Vec::new();
            for _ in 0..4 {
                let mut sender = sender.clone().ready().await.unwrap();
                let request = Request::post("http://test/echo").body(()).unwrap();
                let (answer, mut upload) = sender.send_request(request, false).unwrap();
                let uploading = epoxide::spawn_local(async move {
                    let mut body = Bytes::from(pattern(SIZE));
                    while !body.is_empty() {
                        upload.reserve_capacity(body.len().min(64 * 1024));
                        let room = std::future::poll_fn(|cx| upload.poll_capacity(cx)).await.unwrap().unwrap();
                        let last = room >= body.len();
                        upload.send_data(body.split_to(room.min(body.len())), last).unwrap();
                    }
                });
                all.push(epoxide::spawn_local(async move {
                    let body = body_of(answer.await.unwrap().into_body()).await.unwrap();
                    uploading.await.unwrap();
                    body
                }));
            }
            drop(sender);
            for body in all {
                assert!(body.await.unwrap() == pattern(SIZE));
            }
        });
    }
}

/// A stream whose window the client does not open holds back its own body, and nobody else's.
#[test]
fn a_stream_that_is_not_read_holds_back_only_itself() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let made = desk.made.clone();
        ask(server.addr(), |sender| async move {
            let mut sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(get("/big/100000000"), true).unwrap();
            let stalled = answer.await.unwrap().into_body();
            for _ in 0..50 {
                sender = sender.ready().await.unwrap();
                let (answer, _) = sender.send_request(get("/"), true).unwrap();
                assert_eq!(body_of(answer.await.unwrap().into_body()).await.unwrap(), b"ok");
            }
            assert!(made.load(Ordering::Acquire) < 4 << 20, "the body runs ahead of its window");
            drop(stalled);
        });
        assert!(desk.dropped.wait_blocking(LONG), "{place:?}: a reset stream's body is made for nobody");
    }
}

/// The error code of the GOAWAY among these frames (RFC 9113, section 6.8).
fn goaway_code(mut frames: &[u8]) -> Option<u32> {
    let mut code = None;
    while frames.len() >= 9 {
        let len = u32::from_be_bytes([0, frames[0], frames[1], frames[2]]) as usize;
        let payload = frames.get(9..9 + len)?;
        if frames[3] == 7 {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        frames = &frames[9 + len..];
    }
    code
}

/// CVE-2023-44487: streams begun and reset at once, without end.
#[test]
fn a_flood_of_resets_ends_the_connection() {
    for place in PLACES {
        let case = Case::start();
        let server = Desk::default().start(&case, place);
        let mut peer = Peer::connect(server.addr());
        let mut flood = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        flood.extend(frame(4, 0, 0, &[]));
        for stream in (1..400).step_by(2) {
            // GET http://test/, from the static table (RFC 7541, appendix A).
            flood.extend(frame(1, 0x5, stream, b"\x82\x86\x84\x41\x04test"));
            flood.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
        }
        peer.send(&flood).unwrap();
        let (answer, ending) = peer.read_to_end(LONG);
        let enhance_your_calm = 0xb;
        assert_eq!(goaway_code(&answer), Some(enhance_your_calm), "{place:?}: {answer:?}");
        assert_ne!(ending, Ending::Timeout);
    }
}

#[test]
fn a_panic_ends_its_stream_alone() {
    for place in PLACES {
        let case = Case::start();
        let mut server = Desk::default().start(&case, place);
        ask(server.addr(), |sender| async move {
            let mut sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(get("/panic"), true).unwrap();
            answer.await.expect_err("nobody answers");
            sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(get("/"), true).unwrap();
            assert_eq!(answer.await.unwrap().status(), 200, "the connection lives");
        });
        match place {
            Place::Reactor => server.claim_panics(1),
            Place::Workers => assert_pool_quiet(&server, 1),
        }
    }
}

#[test]
fn a_client_that_leaves_ends_its_handlers() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let server = desk.start(&case, place);
        let desk = &desk;
        ask(server.addr(), |sender| async move {
            let mut sender = sender.ready().await.unwrap();
            let (answer, stream) = sender.send_request(get("/wait"), true).unwrap();
            let waiting = epoxide::spawn_local(async move {
                let _stream = stream;
                drop(answer.await);
            });
            desk.arrived.wait().await;
            waiting.abort();
            drop(waiting.await);
        });
        assert!(desk.dropped.wait_blocking(LONG), "{place:?}");
        assert!(server.wait_quiet());
    }
}

#[test]
fn an_idle_connection_is_closed() {
    for place in PLACES {
        let case = Case::start();
        let desk = Desk::default();
        let options = HttpOptions::builder().idle_timeout(Duration::from_millis(400));
        let server = desk.start_with(&case, place, options, ReactorConfig::default());
        // Nothing behind the preface; and with streams that came to their end.
        let mut silent = Peer::connect(server.addr());
        silent.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        ask(server.addr(), |sender| async move {
            let mut sender = sender.ready().await.unwrap();
            let (answer, _) = sender.send_request(get("/"), true).unwrap();
            assert_eq!(body_of(answer.await.unwrap().into_body()).await.unwrap(), b"ok");
            // The sender lives: it is the server that ends the connection.
            while let Ok(again) = sender.ready().await {
                sender = again;
                epoxide::time::sleep(Duration::from_millis(10)).await;
            }
        });
        assert!(silent.ending(LONG).is_closed(), "{place:?}");
        assert!(wait_until(LONG, || server.stats().open == 0));
    }
}

#[test]
fn a_version_may_be_fixed() {
    let case = Case::start();
    for (versions, begins) in [(HttpVersions::Http1, &b"HTTP/1.1 400"[..]), (HttpVersions::Http2, b"\0\0")] {
        let options = HttpOptions::builder().versions(versions);
        let server = Desk::default().start_with(&case, Place::Reactor, options, ReactorConfig::default());
        let mut peer = Peer::connect(server.addr());
        let spoken: &[u8] = match versions {
            HttpVersions::Http2 => b"GET / HTTP/1.1\r\n\r\nand more than a preface has",
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        };
        peer.send(spoken).unwrap();
        let (answer, ending) = peer.read_to_end(LONG);
        assert!(answer.starts_with(begins) || answer.is_empty(), "{versions:?}: {answer:?}");
        assert_ne!(ending, Ending::Timeout);
    }
}
