//! `serve_https`: the version that was agreed on is the one that is spoken, with the limits of `serve_http`, upgrades and
//! back-pressure.

use crate::certs::Identity;
use crate::client::{self, Client, GET, HANG, ask};
use crate::servers::World;
use crate::web::{self, Answer, Desk, LONG, PLACES, Place};
use boring::ssl::{ShutdownState, Ssl, SslContext};
use bytes::Bytes;
use epoxide::workers::{self, WorkersConfig};
use epoxide::{JoinHandle, ReactorConfig};
use epoxide_pipes::{ByteStream, HttpOptions, HttpOptionsBuilder, HttpVersions, LocalExecutor};
use epoxide_tests_e2e::{Case, Peer, Server, loopback, pattern, wait_until};
use epoxide_tls::{
    ServerBuilder, TlsConfig, TlsError, TlsReadHalf, TlsVersion, TlsWriteHalf, serve_https, serve_https_send,
};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::service::service_fn;
use hyper::{Request, Version};
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(300);
pub(crate) const H1: &[u8] = b"\x08http/1.1";
pub(crate) const BOTH: [&str; 2] = ["h2", "http/1.1"];

async fn answer(desk: Desk, request: Request<Incoming>) -> Result<Answer, hyper::Error> {
    match request.uri().path() {
        "/upgrade" => Ok(web::upgrade::<TlsReadHalf, TlsWriteHalf>(request)),
        _ => desk.answer(request).await,
    }
}

async fn serve(desk: Desk, connection: epoxide::Connection, tls: TlsConfig, options: HttpOptions) {
    let service = service_fn(|request| answer(desk.clone(), request));
    desk.note(serve_https(connection, tls, service, options).await);
}

async fn serve_send(desk: Desk, connection: epoxide::Connection, tls: TlsConfig, options: HttpOptions) {
    let service = service_fn(|request| answer(desk.clone(), request));
    desk.note(serve_https_send(connection, tls, service, options).await);
}

/// A server on one reactor, or its two workers.
pub(crate) fn start_with(
    desk: &Desk,
    case: &Case,
    place: Place,
    tls: &ServerBuilder,
    options: HttpOptionsBuilder,
    config: ReactorConfig,
) -> Server {
    let (tls, options, desk) = (tls.build().unwrap(), options.build().unwrap(), desk.clone());
    Server::start(case, |b| {
        b.config(config);
        match place {
            Place::Reactor => b.listen(loopback(), move |c| serve(desk.clone(), c, tls.clone(), options)),
            Place::Workers => {
                b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
                b.listen(loopback(), move |c| {
                    let served = workers::spawn(serve_send(desk.clone(), c, tls.clone(), options));
                    async move { served.detach() }
                })
            }
        };
    })
}

pub(crate) fn start(desk: &Desk, case: &Case, place: Place, tls: &ServerBuilder) -> Server {
    start_with(desk, case, place, tls, HttpOptions::builder(), ReactorConfig::default())
}

/// A client that offers these protocols; none when there are none.
pub(crate) fn offering(authority: &Identity, protocols: &[u8]) -> SslContext {
    client::context(authority, |context| {
        if !protocols.is_empty() {
            context.set_alpn_protos(protocols).unwrap();
        }
    })
}

/// hyper's client on a session of ours, and how its connection ends.
pub(crate) async fn http2(
    addr: SocketAddr,
    world: &World,
) -> (SendRequest<Full<Bytes>>, JoinHandle<Result<(), hyper::Error>>) {
    let client = world.client().alpn(BOTH).build().unwrap();
    let conn = client.connect(addr, "localhost").await.unwrap();
    assert_eq!(conn.facts().alpn(), Some(&b"h2"[..]));
    let (sender, driver) = handshake(LocalExecutor, ByteStream::new(conn)).await.unwrap();
    (sender, epoxide::spawn_local(driver))
}

pub(crate) fn request(path: &str, body: Vec<u8>) -> Request<Full<Bytes>> {
    Request::post(format!("https://localhost{path}")).body(Full::new(body.into())).unwrap()
}

/// Everything until the end, which must be a close_notify.
pub(crate) fn to_clean_end(client: &mut Client) -> Vec<u8> {
    let mut all = Vec::new();
    client.read_to_end(&mut all).expect("readable to its end");
    assert!(client.get_shutdown().contains(ShutdownState::RECEIVED), "cut behind {} bytes", all.len());
    all
}

#[test]
fn the_protocol_that_was_agreed_on_is_spoken() {
    for place in PLACES {
        for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
            let case = Case::start();
            let (world, desk) = (World::new(), Desk::default());
            let server = start(&desk, &case, place, &world.options().alpn(BOTH).max_version(version));
            // One that offers HTTP/1 alone, and one that offers nothing.
            for offer in [H1, b""] {
                let mut client = client::connect(server.addr(), &offering(&world.authority, offer));
                assert_eq!(client.ssl().selected_alpn_protocol(), (!offer.is_empty()).then_some(&b"http/1.1"[..]));
                for _ in 0..3 {
                    let text = ask(&mut client, GET).unwrap();
                    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("\r\n\r\nok"), "{text}");
                }
            }
            epoxide::block_on(async {
                let (mut sender, driver) = http2(server.addr(), &world).await;
                let requests: Vec<_> =
                    (0..20).map(|i| sender.send_request(request("/len", pattern(i * 10_000)))).collect();
                for (i, answer) in requests.into_iter().enumerate() {
                    let answer = answer.await.unwrap();
                    assert_eq!(answer.version(), Version::HTTP_2);
                    let body = answer.into_body().collect().await.unwrap().to_bytes();
                    assert_eq!(body, (i * 10_000).to_string(), "{place:?} {version}");
                }
                drop(sender);
                driver.await.unwrap().unwrap();
            });
            assert!(desk.error_kinds().is_empty(), "{:?}", desk.errors.lock().unwrap());
        }
    }
}

/// What is agreed on must be served: anything else ends the connection, in good order, and says why.
#[test]
fn a_protocol_that_is_not_served_is_named() {
    for (ours, theirs, options, named) in [
        (&["mqtt"][..], &b"\x04mqtt"[..], HttpOptions::builder(), "`mqtt`"),
        (&BOTH, b"\x02h2", HttpOptions::builder().versions(HttpVersions::Http1), "`h2`"),
        (&BOTH, H1, HttpOptions::builder().versions(HttpVersions::Http2), "`http/1.1`"),
        (&BOTH, b"", HttpOptions::builder().versions(HttpVersions::Http2), "no protocol"),
    ] {
        let case = Case::start();
        let (world, desk) = (World::new(), Desk::default());
        let tls = world.options().alpn(ours.iter().copied());
        let server = start_with(&desk, &case, Place::Reactor, &tls, options, ReactorConfig::default());
        let mut client = client::connect(server.addr(), &offering(&world.authority, theirs));
        assert!(to_clean_end(&mut client).is_empty());
        assert!(wait_until(LONG, || !desk.error_kinds().is_empty()));
        let errors = desk.errors.lock().unwrap();
        assert_eq!(errors[0].kind(), ErrorKind::Unsupported);
        assert!(errors[0].to_string().contains(named), "{}", errors[0]);
        assert_eq!(desk.asked.load(Ordering::Acquire), 0);
    }
}

/// Nothing in common: no protocol is agreed on, and that is HTTP/1. The preface of HTTP/2 is none of it.
#[test]
fn no_common_protocol_is_http1() {
    let case = Case::start();
    let (world, desk) = (World::new(), Desk::default());
    let server = start(&desk, &case, Place::Reactor, &world.options().alpn(BOTH));
    let context = offering(&world.authority, b"\x03foo");
    let mut client = client::connect(server.addr(), &context);
    assert_eq!(client.ssl().selected_alpn_protocol(), None);
    assert!(ask(&mut client, GET).unwrap().ends_with("ok"));
    let mut client = client::connect(server.addr(), &context);
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let answer = String::from_utf8(to_clean_end(&mut client)).unwrap();
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
    assert!(wait_until(LONG, || desk.error_kinds() == [ErrorKind::InvalidData]), "{:?}", desk.error_kinds());
}

/// The clock of the handshake ends it; that of a head begins with the head, over records of a byte each.
#[test]
fn the_clocks_of_handshake_and_head_follow_one_another() {
    for place in PLACES {
        let case = Case::start();
        let (world, desk) = (World::new(), Desk::default());
        let tls = world.options().alpn(BOTH).handshake_timeout(SHORT);
        let options = HttpOptions::builder().head_timeout(2 * SHORT);
        let server = start_with(&desk, &case, place, &tls, options, ReactorConfig::default());
        let begin = Instant::now();
        let mut silent = Peer::connect(server.addr());
        assert!(silent.ending(LONG).is_closed());
        assert!(begin.elapsed() >= SHORT, "early");
        assert!(wait_until(LONG, || desk.error_kinds() == [ErrorKind::TimedOut]), "{:?}", desk.error_kinds());

        let mut client = client::connect(server.addr(), &offering(&world.authority, H1));
        // sleep: longer than both clocks; an idle connection has another one.
        std::thread::sleep(3 * SHORT);
        assert!(ask(&mut client, GET).unwrap().ends_with("ok"), "the clock of a head ran without one");
        let begin = Instant::now();
        let head = GET.trim_end().bytes().chain(b"\r\n".iter().copied()).chain(b"x: y\r\n".iter().copied().cycle());
        for byte in head.take(2000) {
            // sleep: the gap is the stimulus.
            std::thread::sleep(Duration::from_millis(20));
            if client.write_all(&[byte]).is_err() || server.stats().open == 0 || begin.elapsed() > LONG {
                break;
            }
        }
        assert!(begin.elapsed() >= 2 * SHORT, "{place:?}: early");
        assert!(begin.elapsed() < LONG, "{place:?}: the head was never given up");
        let mut answer = [0; 12];
        client.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 408", "{place:?}");
        assert!(wait_until(LONG, || desk.error_kinds() == [ErrorKind::TimedOut; 2]));
    }
}

#[test]
fn an_upgraded_session_is_an_encrypted_stream() {
    for place in PLACES {
        let case = Case::start();
        let (world, desk) = (World::new(), Desk::default());
        let server = start(&desk, &case, place, &world.options().alpn(BOTH));
        let mut client = client::connect(server.addr(), &offering(&world.authority, H1));
        // In one record with the request: what is behind it belongs to the stream.
        client.write_all(b"GET /upgrade HTTP/1.1\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\nearly").unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            client.read_exact(&mut byte).unwrap();
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101"));
        for part in std::iter::once(&b"early"[..]).chain(pattern(300_000).chunks(50_000)) {
            if part != b"early" {
                client.write_all(part).unwrap();
            }
            let mut back = vec![0; part.len()];
            client.read_exact(&mut back).unwrap();
            assert!(back == part, "{place:?}");
        }
        client.shutdown().unwrap();
        assert!(to_clean_end(&mut client).is_empty());
        assert!(desk.error_kinds().is_empty());
    }
}

/// Made while the client reads nothing, until it stands still.
fn made_at_a_stall(desk: &Desk) -> usize {
    let made = || desk.made.load(Ordering::Acquire);
    let mut last = 0;
    assert!(wait_until(LONG, || {
        let before = std::mem::replace(&mut last, made());
        // sleep: nothing tells that nothing happens.
        std::thread::sleep(Duration::from_millis(100));
        before == last && last > 0
    }));
    last
}

#[test]
fn bodies_go_no_faster_than_they_are_taken() {
    const SIZE: usize = 32 << 20;
    for place in PLACES {
        let case = Case::start();
        let (world, desk) = (World::new(), Desk::default());
        let server = start(&desk, &case, place, &world.options().alpn(BOTH));
        let stalling = Peer::connect_stalling(server.addr()).stream().try_clone().unwrap();
        let mut client = client::over(stalling, Ssl::new(&offering(&world.authority, H1)).unwrap()).unwrap();
        // To the end of the connection: a close_notify is what says that the body is whole.
        client.write_all(format!("GET /big/{SIZE} HTTP/1.0\r\n\r\n").as_bytes()).unwrap();
        let made = made_at_a_stall(&desk);
        assert!(made < 16 << 20, "{place:?}: {made} bytes were made for a client that reads none");
        let all = to_clean_end(&mut client);
        let at = epoxide_tests_e2e::find_head_end(&all).unwrap();
        assert!(all[at..] == pattern(SIZE), "{place:?}: every byte arrives");

        let mut client = client::connect(server.addr(), &offering(&world.authority, H1));
        client.write_all(format!("POST /hold HTTP/1.1\r\ncontent-length: {SIZE}\r\n\r\n").as_bytes()).unwrap();
        assert!(desk.arrived.wait_blocking(LONG));
        client.get_ref().set_write_timeout(Some(SHORT)).unwrap();
        let body = vec![7; 16 * 1024];
        let mut sent = 0;
        let blocked = loop {
            match client.write(&body) {
                Ok(n) => sent += n,
                Err(error) => break error,
            }
            assert!(sent < SIZE, "{place:?}: all of it was taken for a handler that reads none");
        };
        assert_eq!(blocked.kind(), ErrorKind::WouldBlock);
        client.get_ref().set_write_timeout(Some(HANG)).unwrap();
        desk.go.open();
        // The record that was cut short goes on where it was: the same bytes again.
        while sent < SIZE {
            sent += client.write(&body[..body.len().min(SIZE - sent)]).unwrap();
        }
        assert!(client::answer(&mut client).unwrap().ends_with(&SIZE.to_string()), "{place:?}");
    }
}

/// A cut is no end: a client that goes without a close_notify in its body is an error of the session.
#[test]
fn a_cut_body_is_told_from_a_short_one() {
    let case = Case::start();
    let (world, desk) = (World::new(), Desk::default());
    let server = start(&desk, &case, Place::Reactor, &world.options().alpn(BOTH));
    let mut client = client::connect(server.addr(), &offering(&world.authority, H1));
    client.write_all(b"POST /len HTTP/1.1\r\ncontent-length: 100\r\n\r\nhalf").unwrap();
    client.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    assert!(wait_until(LONG, || !desk.error_kinds().is_empty()));
    let errors = desk.errors.lock().unwrap();
    let mut source: &dyn std::error::Error = &errors[0];
    loop {
        if matches!(source.downcast_ref::<io::Error>().and_then(TlsError::of), Some(TlsError::Truncated)) {
            break;
        }
        source = source.source().unwrap_or_else(|| panic!("no word of the cut: {:?}", errors[0]));
    }
}
