//! The HTTP client: its pool, its clocks, and what happens to connections that die.

mod web;

use bytes::Bytes;
use epoxide::{Connection, ReactorHandle};
use epoxide_pipes::{ClientOptions, HttpClient, HttpClientError};
use epoxide_tests_e2e::{Case, Gate, Server, http_reply, loopback, serve_requests, stage, wait_until};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use web::{Desk, LONG, Place};

type Client = HttpClient<Full<Bytes>>;

fn get(addr: SocketAddr, path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://{addr}{path}")).body(Full::default()).unwrap()
}

async fn text(client: &Client, request: Request<Full<Bytes>>) -> Result<String, HttpClientError> {
    let answer = client.request(request).await?;
    let body = answer.into_body().collect().await.expect("the body comes").to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

/// A client on a reactor of its own.
fn with_client<F: Future<Output = ()>>(options: ClientOptions, run: impl FnOnce(Client) -> F) {
    epoxide::block_on(async move {
        let here = ReactorHandle::current().expect("block_on runs a reactor");
        let client = Client::new(here, options).expect("the options work");
        epoxide::time::timeout(LONG * 2, run(client)).await.expect("in time");
    });
}

fn options(change: impl FnOnce(&mut ClientOptions)) -> ClientOptions {
    let mut options = ClientOptions::default();
    change(&mut options);
    options
}

#[test]
fn one_connection_is_used_again_and_again() {
    let case = Case::start();
    let server = Desk::default().start(&case, Place::Reactor);
    let addr = server.addr();
    with_client(ClientOptions::default(), |client| async move {
        for _ in 0..50 {
            assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "ok");
        }
        let body = Request::post(format!("http://{addr}/echo")).body(Full::from("there and back")).unwrap();
        assert_eq!(text(&client, body).await.unwrap(), "there and back");
        assert_eq!(client.idle_connections(), 1);
    });
    assert_eq!(server.stats().accepted, 1);
}

/// From other threads the next request may come before the connection's driver knows that the last one is over.
#[test]
fn other_threads_use_connections_again_too() {
    let case = Case::start();
    let server = Desk::default().start(&case, Place::Reactor);
    let home = Server::start(&case, |_| {});
    let addr = server.addr();
    let (threads, rounds) = (4, 200);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let all = async {
                for _ in 0..rounds {
                    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
                    for _ in 0..3 {
                        assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "ok");
                    }
                }
            };
            scope.spawn(|| epoxide::block_on(epoxide::time::timeout(LONG * 2, all)).expect("in time"));
        }
    });
    let more = server.stats().accepted - threads * rounds;
    // None of 1600 on a quiet machine, 36 to 458 without the wait.
    assert!(more <= 20, "{more} more connections than clients, which each ask for one thing after the other");
}

#[test]
fn host_names_are_looked_up() {
    let case = Case::start();
    let server = Desk::default().start(&case, Place::Reactor);
    let port = server.addr().port();
    with_client(ClientOptions::default(), |client| async move {
        let request = Request::get(format!("http://LocalHost:{port}/")).body(Full::default()).unwrap();
        assert_eq!(text(&client, request).await.unwrap(), "ok");
    });
}

#[test]
fn requests_at_once_have_connections_of_their_own_and_few_are_kept() {
    let case = Case::start();
    let desk = Desk::default();
    let server = desk.start(&case, Place::Reactor);
    let addr = server.addr();
    with_client(options(|o| o.max_idle_per_host = 2), |client| async move {
        let all: Vec<_> = (0..5)
            .map(|_| {
                let client = client.clone();
                epoxide::spawn_local(async move { text(&client, get(addr, "/wait")).await.unwrap() })
            })
            .collect();
        while desk.asked.load(Ordering::Acquire) < 5 {
            epoxide::time::sleep(Duration::from_millis(1)).await;
        }
        desk.go.open();
        for answer in all {
            assert_eq!(answer.await.unwrap(), "waited");
        }
        assert_eq!(client.idle_connections(), 2);
    });
    assert_eq!(server.stats().accepted, 5);
}

/// One more host than connections are kept: the one that has been idle longest is let go, and the others stay in use.
#[test]
fn idle_connections_are_bounded_over_all_hosts() {
    let case = Case::start();
    let servers: Vec<_> = (0..3).map(|_| Desk::default().start(&case, Place::Reactor)).collect();
    let addrs: Vec<_> = servers.iter().map(Server::addr).collect();
    let first = addrs[0];
    let is_gone = || servers[0].stats().open == 0;
    with_client(options(|o| o.max_idle = 2), async |client| {
        for addr in &addrs {
            assert_eq!(text(&client, get(*addr, "/")).await.unwrap(), "ok");
        }
        assert_eq!(client.idle_connections(), 2);
        while !is_gone() {
            epoxide::time::sleep(Duration::from_millis(1)).await;
        }
        for addr in &addrs[1..] {
            assert_eq!(text(&client, get(*addr, "/")).await.unwrap(), "ok");
        }
        assert_eq!(text(&client, get(first, "/")).await.unwrap(), "ok");
        assert_eq!(client.idle_connections(), 2);
    });
    let accepted: Vec<_> = servers.iter().map(|server| server.stats().accepted).collect();
    assert_eq!(accepted, [2, 1, 1]);
}

/// The server ends every connection behind its answer, without a word about it in the head.
#[test]
fn a_dead_connection_is_not_handed_out() {
    const ROUNDS: usize = 50;
    let case = Case::start();
    let ended = Arc::new(AtomicUsize::new(0));
    let counted = ended.clone();
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let ended = counted.clone();
            async move {
                if connection.read().await?.is_some() {
                    stage(&mut connection, &http_reply(200, b"once"))?;
                }
                let done = connection.shutdown().await;
                ended.fetch_add(1, Ordering::AcqRel);
                done
            }
        });
    });
    let addr = server.addr();
    with_client(ClientOptions::default(), |client| async move {
        for round in 1..=ROUNDS {
            assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "once");
            // The FIN is out, and this reactor has gone round since.
            while ended.load(Ordering::Acquire) < round {
                epoxide::time::sleep(Duration::from_millis(1)).await;
            }
            epoxide::time::sleep(Duration::from_millis(2)).await;
        }
    });
    assert_eq!(server.stats().accepted, ROUNDS as u64);
}

#[test]
fn an_idle_connection_is_let_go_after_its_time() {
    let case = Case::start();
    let server = Desk::default().start(&case, Place::Reactor);
    let addr = server.addr();
    let open = || server.stats().open;
    with_client(options(|o| o.idle_timeout = Duration::from_millis(200)), |client| async move {
        for _ in 0..2 {
            assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "ok");
            assert_eq!(client.idle_connections(), 1);
            while client.idle_connections() > 0 {
                epoxide::time::sleep(Duration::from_millis(10)).await;
            }
        }
    });
    assert!(wait_until(LONG, || open() == 0));
    assert_eq!(server.stats().accepted, 2);
}

#[test]
fn an_answer_that_does_not_come_is_given_up() {
    let case = Case::start();
    let desk = Desk::default();
    let server = desk.start(&case, Place::Reactor);
    let addr = server.addr();
    with_client(options(|o| o.response_timeout = Duration::from_millis(200)), |client| async move {
        let error = text(&client, get(addr, "/wait")).await.expect_err("it waits for ever");
        assert!(matches!(error, HttpClientError::Timeout { .. }), "{error}");
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
        assert_eq!(client.idle_connections(), 0, "its connection is good for nothing");
    });
    assert!(desk.dropped.wait_blocking(LONG), "and the server knows");
}

#[test]
fn an_answer_that_is_cut_is_an_error_and_is_not_asked_again() {
    let case = Case::start();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |connection| {
            let counted = counted.clone();
            async move {
                let answer = |_: &[u8]| match counted.fetch_add(1, Ordering::AcqRel) {
                    0 => http_reply(200, b"whole"),
                    _ => b"HTTP/1.1 200 OK\r\nContent-Le".to_vec(),
                };
                let mut connection = connection;
                // Two requests, the second is answered by half a head.
                for _ in 0..2 {
                    if connection.read().await?.is_none() {
                        break;
                    }
                    stage(&mut connection, &answer(&[]))?;
                    connection.flush().await?;
                }
                connection.reset();
                Ok::<(), io::Error>(())
            }
        });
    });
    let addr = server.addr();
    with_client(ClientOptions::default(), |client| async move {
        assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "whole");
        let error = text(&client, get(addr, "/")).await.expect_err("half a head is no answer");
        assert!(matches!(error, HttpClientError::Http { .. }), "{error}");
    });
    assert_eq!(asked.load(Ordering::Acquire), 2, "a request that the server has seen is not sent twice");
}

#[test]
fn a_body_that_is_not_read_to_its_end_ends_the_connection() {
    let case = Case::start();
    let desk = Desk::default();
    let server = desk.start(&case, Place::Reactor);
    let addr = server.addr();
    with_client(ClientOptions::default(), |client| async move {
        let mut answer = client.request(get(addr, "/big/100000000")).await.unwrap();
        assert!(answer.body_mut().frame().await.unwrap().unwrap().is_data());
        drop(answer);
        assert_eq!(client.idle_connections(), 0);
    });
    assert!(desk.dropped.wait_blocking(LONG), "the server makes it for nobody");
}

#[test]
fn idle_connections_do_not_hold_a_drain() {
    let case = Case::start();
    let backend = Desk::default().start(&case, Place::Reactor);
    let addr = backend.addr();
    let (asked, done) = (Gate::new(), Gate::new());
    // A server whose handlers ask another one.
    let front = {
        let (asked, done) = (asked.clone(), done.clone());
        Server::start(&case, move |b| {
            b.listen_with(loopback(), move |reactor| {
                let client = Client::new(reactor.clone(), ClientOptions::default()).unwrap();
                let (asked, done) = (asked.clone(), done.clone());
                move |connection| {
                    let (client, asked, done) = (client.clone(), asked.clone(), done.clone());
                    async move {
                        assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "ok");
                        assert_eq!(client.idle_connections(), 1);
                        asked.open();
                        done.wait().await;
                        serve_requests(connection, 1024, |_| http_reply(200, b"x")).await
                    }
                }
            });
        })
    };
    let peer = epoxide_tests_e2e::Peer::connect(front.addr());
    assert!(asked.wait_blocking(LONG));
    done.open();
    drop(peer);
    assert!(wait_until(LONG, || front.stats().open == 1), "the pooled one is left");
    let begin = std::time::Instant::now();
    let report = front.stop(Duration::from_secs(60)).unwrap();
    assert!(begin.elapsed() < Duration::from_secs(20), "the pool holds the drain");
    assert_eq!(report.cut, 0);
}

#[test]
fn bad_targets_and_options_are_refused_by_name() {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let client = Client::new(server.reactor(), ClientOptions::default()).unwrap();
    for uri in ["https://test/", "/path", "ftp://x/"] {
        let request = Request::get(uri).body(Full::default()).unwrap();
        let told = epoxide_tests_e2e::block_within(client.request(request), LONG).expect("at once");
        let error = told.expect_err(uri);
        assert!(matches!(error, HttpClientError::Uri { .. }), "{error}");
        assert!(error.to_string().contains(uri), "{error}");
    }
    let error = Client::new(server.reactor(), options(|o| o.max_head = 1)).expect_err("too small");
    assert!(error.to_string().starts_with("max_head is 1"), "{error}");
}
