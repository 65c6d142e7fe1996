//! HTTP where it is not usual: on threads without a reactor, with executors that name a place, and a client whose pool does
//! not know yet that a connection has gone.

mod web;

use bytes::Bytes;
use epoxide::{Connection, ReactorHandle};
use epoxide_pipes::{ClientOptions, HttpClient, HttpClientError, HttpOptions, SendExecutor, serve_http};
use epoxide_tests_e2e::{
    Case, Gate, Peer, Server, SockDiag, TcpState, block_within, handing_over, hold_reactor, http_reply, loopback,
    wait_until,
};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Body;
use hyper::rt::Executor;
use hyper::service::service_fn;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use tower_service::Service;
use web::{Desk, LONG, Place};

type Client = HttpClient<Full<Bytes>>;

fn get(addr: SocketAddr) -> Request<Full<Bytes>> {
    Request::get(format!("http://{addr}/")).body(Full::default()).unwrap()
}

/// Its futures need not be `Send`, so that their place is a reactor; HTTP/1 has none of its own and is served.
#[test]
fn http2_without_a_reactor_is_refused_and_http1_is_not() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let serve = |first: &[u8]| {
        let mut peer = Peer::connect(server.addr());
        peer.send(first).unwrap();
        let connection = accepted.recv_timeout(LONG).expect("handed over");
        let desk = Desk::default();
        let service = service_fn(move |request| desk.clone().answer(request));
        let done = block_within(serve_http(connection, service, HttpOptions::default()), LONG).expect("it ends");
        (done, peer)
    };
    let (refused, mut peer) = serve(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    let error = refused.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("serve_http_send"), "{error}");
    assert!(peer.ending(LONG).is_closed());
    let (served, mut peer) = serve(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    served.unwrap();
    assert!(peer.read_exactly(12, LONG).unwrap().ends_with(b"200"));
}

/// Each runs its futures where it says; where nobody is any more, they are dropped.
#[test]
fn executors_run_futures_where_they_say() {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let reactor = server.reactor();
    let (tell, told) = channel();
    let place = move |tell: std::sync::mpsc::Sender<_>| async move {
        let on = ReactorHandle::current().map(|reactor| (reactor.id(), reactor.is_current_thread()));
        tell.send(on).unwrap();
    };
    let on_reactor = SendExecutor::on_reactor(reactor.clone());
    let on_workers = SendExecutor::on_workers(reactor.workers());
    on_reactor.execute(place(tell.clone()));
    assert_eq!(told.recv_timeout(LONG), Ok(Some((reactor.id(), true))));
    on_workers.execute(place(tell.clone()));
    assert_eq!(told.recv_timeout(LONG), Ok(Some((reactor.id(), false))), "a worker of the same runtime");
    // A thread that has entered no runtime has no place.
    SendExecutor::here().execute(place(tell.clone()));
    drop(tell);
    assert!(told.recv_timeout(LONG).is_err(), "it was dropped, and its sender with it");
    server.stop(LONG).unwrap();
    let (tell, told) = channel();
    on_reactor.execute(place(tell.clone()));
    on_workers.execute(place(tell));
    assert!(told.recv_timeout(LONG).is_err(), "both were dropped");
}

/// As a tower service; the answer's body knows its length before it comes, and its end afterwards.
#[test]
fn a_client_is_a_service() {
    let case = Case::start();
    let server = Desk::default().start(&case, Place::Reactor);
    let home = Server::start(&case, |_| {});
    let addr = server.addr();
    let mut client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    let asked = async {
        std::future::poll_fn(|cx| client.poll_ready(cx)).await?;
        let body = client.call(get(addr)).await?.into_body();
        assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(2), false));
        Ok::<_, HttpClientError>(body.collect().await.expect("the body comes").to_bytes())
    };
    assert_eq!(block_within(asked, LONG).expect("in time").unwrap(), "ok");
    assert_eq!(client.idle_connections(), 1);
    drop(client);
}

/// A server that answers once and ends each connection when its gate, which the test gets, opens.
fn answers_once(case: &Case) -> (Server, Receiver<(SocketAddr, Gate)>) {
    let (tell, told) = channel();
    let server = Server::start(case, move |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let tell = tell.clone();
            async move {
                if connection.read().await?.is_some() {
                    let end = Gate::new();
                    let _ = tell.send((connection.peer_addr()?, end.clone()));
                    connection.send_all(&http_reply(200, b"whole")).await?;
                    end.wait().await;
                }
                connection.shutdown().await
            }
        });
    });
    (server, told)
}

/// The server's FIN has come, and the client's reactor has not looked: the pool hands the connection out. Its task asks the
/// socket before it writes, and the request is sent on another connection.
#[test]
fn a_request_that_a_dead_connection_did_not_take_is_sent_on_another() {
    const ROUNDS: u64 = 20;
    let case = Case::start();
    let (server, told) = answers_once(&case);
    let home = Server::start(&case, |_| {});
    let (addr, diag) = (server.addr(), SockDiag::open());
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    let ask = || {
        let answer = async {
            let body = client.request(get(addr)).await?.into_body();
            Ok::<_, HttpClientError>(body.collect().await.expect("the body comes").to_bytes())
        };
        block_within(answer, LONG).expect("in time")
    };
    assert_eq!(ask().unwrap(), "whole");
    for round in 0..ROUNDS {
        let (ours, end) = told.recv_timeout(LONG).expect("another connection");
        let held = hold_reactor(&home.reactor());
        end.open();
        let has_come = || diag.row(ours, addr).is_some_and(|row| row.state == TcpState::CloseWait);
        assert!(wait_until(LONG, has_come), "the FIN comes");
        let wakes = home.stats().wakes_remote;
        let answer = thread::scope(|scope| {
            let asking = scope.spawn(ask);
            // The request is with the connection's task, which this reactor is to run.
            assert!(wait_until(LONG, || home.stats().wakes_remote > wakes), "the dead connection is handed out");
            held.release();
            asking.join().unwrap()
        });
        assert_eq!(answer.unwrap_or_else(|error| panic!("round {round}: {error}")), "whole");
    }
    assert_eq!(server.stats().accepted, 1 + ROUNDS);
    told.recv_timeout(LONG).expect("the last one waits").1.open();
}
