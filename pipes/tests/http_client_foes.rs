//! The HTTP client against servers that answer late, too much, too little, or not what was asked.

mod web;

use bytes::Bytes;
use epoxide::{Connection, ReactorConfig};
use epoxide_pipes::{ClientOptions, HttpClient, HttpClientError};
use epoxide_tests_e2e::{
    Case, Gate, Parker, Server, SockDiag, TcpState, find_head_end, http_reply, loopback, poll_once, wait_until,
};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::{Body, Frame};
use std::convert::Infallible;
use std::future::Future;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::time::Duration;
use web::{Desk, LONG, Place};

const SHORT: Duration = Duration::from_millis(300);

type Client = HttpClient<Full<Bytes>>;

fn get(addr: SocketAddr, path: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://{addr}{path}")).body(Full::default()).unwrap()
}

/// The body, or what kept it from coming.
async fn text(client: &Client, request: Request<Full<Bytes>>) -> Result<String, String> {
    let answer = client.request(request).await.map_err(|error| format!("no head: {error}"))?;
    let body = answer.into_body().collect().await.map_err(|error| format!("no body: {error}"))?.to_bytes();
    Ok(String::from_utf8(body.to_vec()).unwrap())
}

/// A runtime for the clients, with short clocks.
fn home(case: &Case, config: ReactorConfig) -> Server {
    Server::start(case, |b| {
        b.config(config);
    })
}

fn within<F: Future>(future: F) -> F::Output {
    epoxide::block_on(async { epoxide::time::timeout(LONG, future).await.expect("in time") })
}

/// Says `answers[i]` to the i-th request of all connections; the last one again and again.
fn scripted(case: &Case, answers: Vec<Vec<u8>>) -> (Server, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let server = Server::start(case, move |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (answers, counted) = (answers.clone(), counted.clone());
            async move {
                let mut received = Vec::new();
                while let Some(data) = connection.read().await? {
                    received.extend_from_slice(&data);
                    while let Some(length) = find_head_end(&received) {
                        received.drain(..length);
                        let i = counted.fetch_add(1, Ordering::AcqRel).min(answers.len() - 1);
                        connection.send_all(&answers[i]).await?;
                    }
                    // Of a body only what may be the beginning of a blank line.
                    if counted.load(Ordering::Acquire) > 0 {
                        received.drain(..received.len().saturating_sub(3));
                    }
                }
                Ok::<(), io::Error>(())
            }
        });
    });
    (server, asked)
}

/// The head has a clock of its own: the reactor's read clock does not cut it short.
#[test]
fn an_answer_may_take_longer_than_the_read_clock() {
    let case = Case::start();
    let desk = Desk::default();
    let server = desk.start(&case, Place::Reactor);
    let home = home(&case, ReactorConfig { read_timeout: SHORT, ..ReactorConfig::default() });
    let options = |limit| {
        let mut options = ClientOptions::default();
        options.response_timeout = limit;
        options
    };
    for limit in [Duration::ZERO, LONG] {
        let client = Client::new(home.reactor(), options(limit)).unwrap();
        let desk = &desk;
        within(async {
            // The second time over a connection that is used again.
            for path in ["/", "/wait", "/"] {
                let asking = text(&client, get(server.addr(), path));
                let opening = async {
                    if path == "/wait" {
                        epoxide::time::sleep(SHORT * 4).await;
                        desk.go.open();
                    }
                };
                let (answer, ()) = futures_util::future::join(asking, opening).await;
                answer.unwrap_or_else(|error| panic!("{path}, limit {limit:?}: {error}"));
            }
        });
    }
}

/// The control: a body that stalls is under the read clock, also behind a head that took its time.
#[test]
fn a_body_that_stalls_is_given_up() {
    let case = Case::start();
    let (server, _) = scripted(&case, vec![b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf!".to_vec()]);
    let home = home(&case, ReactorConfig { read_timeout: SHORT, ..ReactorConfig::default() });
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    let error = within(text(&client, get(server.addr(), "/"))).expect_err("half a body is none");
    assert!(error.starts_with("no body"), "{error}");
    assert!(wait_until(LONG, || home.stats().timeouts == 1));
    assert_eq!(client.idle_connections(), 0);
}

/// A second answer behind the first: whoever asks next must not be given it.
#[test]
fn an_answer_that_nobody_asked_for_is_given_to_nobody() {
    let case = Case::start();
    let poisoned = [http_reply(200, b"mine"), http_reply(200, b"poison")].concat();
    let (server, asked) = scripted(&case, vec![poisoned, http_reply(200, b"second")]);
    let home = home(&case, ReactorConfig::default());
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    within(async {
        assert_eq!(text(&client, get(server.addr(), "/")).await.unwrap(), "mine");
        assert_eq!(text(&client, get(server.addr(), "/")).await.unwrap(), "second");
    });
    assert_eq!(asked.load(Ordering::Acquire), 2);
}

/// Answers as they come in the field: what each of them is taken for.
#[test]
fn odd_answers_are_understood_or_refused() {
    let case = Case::start();
    let home = home(&case, ReactorConfig::default());
    let odd: [(&[u8], Result<&str, &str>); 9] = [
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", Ok("a")),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Ok("")),
        (b"HTTP/1.1 301 Moved\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", Ok("")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", Err("no head")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n", Err("no body")),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", Err("no body")),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", Ok("")),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", Err("no head")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", Err("no head")),
    ];
    for (answer, taken) in odd {
        let (server, asked) = scripted(&case, vec![answer.to_vec()]);
        let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
        let got = within(text(&client, get(server.addr(), "/")));
        let shown = String::from_utf8_lossy(answer);
        match taken {
            Ok(body) => assert_eq!(got.as_deref(), Ok(body), "{shown}"),
            Err(begins) => assert!(got.as_ref().is_err_and(|error| error.starts_with(begins)), "{shown}: {got:?}"),
        }
        assert_eq!(asked.load(Ordering::Acquire), 1, "{shown}: asked again");
        drop(client);
        drop(server);
    }
}

/// Requests that are given up, in every state: their connections end, and none is left in the pool.
#[test]
fn a_request_that_is_given_up_leaves_nothing_behind() {
    let case = Case::start();
    let desk = Desk::default();
    let server = desk.start(&case, Place::Reactor);
    let home = home(&case, ReactorConfig::default());
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    within(async {
        let parker = Parker::new();
        for polls in 0..30 {
            let mut asking = Box::pin(client.request(get(server.addr(), if polls % 2 == 0 { "/wait" } else { "/" })));
            for _ in 0..polls {
                if poll_once(asking.as_mut(), &parker).is_ready() {
                    break;
                }
                epoxide::time::sleep(Duration::from_micros(200)).await;
            }
        }
    });
    assert!(wait_until(LONG, || server.stats().open == client.idle_connections() as u64), "{}", server.stats().open);
    assert!(desk.dropped.is_open(), "vacuity: none got as far as its handler");
}

/// A server that answers before it has read the request's body, and keeps the connection.
#[test]
fn an_early_answer_is_not_held_back_by_the_upload() {
    let case = Case::start();
    let (server, _) = scripted(&case, vec![http_reply(413, b"too much")]);
    let home = home(&case, ReactorConfig::default());
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    let big = Full::from(vec![b'x'; 64 << 20]);
    within(async {
        let answer = client.request(Request::post(format!("http://{}/", server.addr())).body(big).unwrap()).await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status(), 413);
        assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "too much");
    });
}

/// The pool is as good as its clock: what the server ended is not handed out, and requests that cannot be sent twice are not.
#[test]
fn a_connection_that_dies_under_a_request_is_an_error_and_not_a_second_request() {
    let case = Case::start();
    let (seen, counted) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    let server = {
        let (seen, counted) = (seen.clone(), counted.clone());
        Server::start(&case, move |b| {
            b.listen(loopback(), move |mut connection: Connection| {
                let (seen, counted) = (seen.clone(), counted.clone());
                async move {
                    if connection.read().await?.is_some() {
                        counted.fetch_add(1, Ordering::AcqRel);
                        connection.send_all(&http_reply(200, b"first")).await?;
                    }
                    // It reads the second request, and goes without a word.
                    if connection.read().await?.is_some() {
                        counted.fetch_add(1, Ordering::AcqRel);
                        seen.open();
                    }
                    Ok::<(), io::Error>(())
                }
            });
        })
    };
    let home = home(&case, ReactorConfig::default());
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    let addr = server.addr();
    // On the connections' own reactor: from another thread the second request may come before the first answer's
    // connection is free again, and would get one of its own.
    let requests = home.reactor().spawn(async move {
        assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "first");
        let post = Request::post(format!("http://{addr}/")).body(Full::from("once")).unwrap();
        let error = client.request(post).await.expect_err("nobody answers");
        assert!(matches!(error, HttpClientError::Http { .. }), "{error}");
    });
    within(requests.unwrap()).unwrap();
    assert!(seen.is_open());
    assert_eq!(counted.load(Ordering::Acquire), 2);
}

/// The server's end has arrived, and the client's reactor has not been told of it: it runs the very task that asks. The
/// request, which may be sent once only, goes out on a new connection, and not a byte of it on the old one.
#[test]
fn an_end_that_is_there_and_not_told_yet_costs_no_request() {
    let case = Case::start();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let (end, ends) = channel::<()>();
    let (ended, has_ended) = channel::<()>();
    let server = std::thread::spawn(move || {
        let answer = |stream: &mut TcpStream, body: &[u8]| {
            stream.set_read_timeout(Some(LONG)).unwrap();
            let mut received = Vec::new();
            while find_head_end(&received).is_none() {
                let mut space = [0; 1024];
                let n = stream.read(&mut space).unwrap();
                assert_ne!(n, 0, "an end instead of a request");
                received.extend_from_slice(&space[..n]);
            }
            stream.write_all(&http_reply(200, body)).unwrap();
        };
        let (mut first, client) = listener.accept().unwrap();
        answer(&mut first, b"first");
        ends.recv_timeout(LONG).unwrap();
        first.shutdown(Shutdown::Write).unwrap();
        // Acknowledged: it is in the client's socket.
        let diag = SockDiag::open();
        let arrived = || diag.row(addr, client).is_some_and(|row| row.state == TcpState::FinWait2);
        assert!(wait_until(LONG, arrived), "the end does not arrive");
        ended.send(()).unwrap();
        answer(&mut listener.accept().unwrap().0, b"second");
        let mut rest = Vec::new();
        first.read_to_end(&mut rest).unwrap();
        rest
    });
    let home = home(&case, ReactorConfig::default());
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    let requests = home.reactor().spawn(async move {
        assert_eq!(text(&client, get(addr, "/")).await.unwrap(), "first");
        // The connection is the pool's once its driver has gone round.
        while client.idle_connections() == 0 {
            epoxide::yield_now().await;
        }
        epoxide::time::sleep(Duration::from_millis(2)).await;
        end.send(()).unwrap();
        // The loop stands still from here to the request.
        has_ended.recv_timeout(LONG).unwrap();
        assert_eq!(client.idle_connections(), 1, "vacuity: it is in the pool");
        let post = Request::post(format!("http://{addr}/")).body(Full::from("once")).unwrap();
        assert_eq!(text(&client, post).await.as_deref(), Ok("second"));
    });
    within(requests.unwrap()).unwrap();
    assert_eq!(server.join().unwrap(), b"", "a part of the request went to the old connection");
}

/// A body of one piece that never ends, or an empty one.
struct Unending(Option<Bytes>, bool);

impl Body for Unending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.0.take() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.1 => Poll::Pending,
            None => Poll::Ready(None),
        }
    }
}

/// A server that answers a request before its body ends, and a body that never does: the connection, which nobody can
/// use, leaves the pool when it has been idle for long enough, though requests come all the time and look at it.
#[test]
fn an_upload_that_never_ends_does_not_stay_in_the_pool() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(head) = connection.read().await? else { return Ok(()) };
            if head.starts_with(b"GET") {
                return connection
                    .send_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
                    .await;
            }
            connection.send_all(&http_reply(200, b"ok")).await?;
            while connection.read().await?.is_some() {}
            Ok::<(), io::Error>(())
        });
    });
    // The upload itself ends with its home's clock.
    let home = home(&case, ReactorConfig { read_timeout: SHORT, ..ReactorConfig::default() });
    let mut options = ClientOptions::default();
    options.idle_timeout = SHORT;
    let client = HttpClient::<Unending>::new(home.reactor(), options).unwrap();
    let ask = |request: hyper::http::request::Builder, body| {
        let request = request.uri(format!("http://{}/", server.addr())).body(body).unwrap();
        within(async { client.request(request).await.unwrap().into_body().collect().await.unwrap().to_bytes() })
    };
    assert_eq!(ask(Request::builder().method("POST"), Unending(Some(Bytes::from_static(b"begin")), true)), "ok");
    assert_eq!(client.idle_connections(), 1, "vacuity: it is in the pool");
    let gone = wait_until(LONG, || {
        assert_eq!(ask(Request::builder(), Unending(None, false)), "ok");
        client.idle_connections() == 0
    });
    assert!(gone, "it is in the pool for ever");
    assert!(wait_until(LONG, || home.stats().open == 0), "{} open", home.stats().open);
}
