//! HTTP where it is not usual: on threads without a reactor, with executors that name a place, and a client whose pool does
//! not know yet that a connection has gone.

mod web;

use bytes::Bytes;
use epoxide::{Connection, ReactorConfig, ReactorHandle};
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
use std::io::{self, ErrorKind};
use std::sync::mpsc::channel;
use std::thread;
use tower_service::Service;
use web::{Desk, LONG, Place};

type Client = HttpClient<Full<Bytes>>;

fn get(addr: std::net::SocketAddr) -> Request<Full<Bytes>> {
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

/// The server's FIN has come, and the client's reactor has not looked: the pool hands the connection out, the request does
/// not go, and is sent on another one.
#[test]
fn a_request_that_a_dead_connection_did_not_take_is_sent_on_another() {
    let case = Case::start();
    let (ends, clients) = (Gate::new(), channel());
    let (end, tell) = (ends.clone(), clients.0.clone());
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (end, tell) = (end.clone(), tell.clone());
            async move {
                let client = connection.peer_addr()?;
                while connection.read().await?.is_some() {
                    connection.send_all(&http_reply(200, b"whole")).await?;
                    if !end.is_open() {
                        let _ = tell.send(client);
                        end.wait().await;
                        return connection.shutdown().await;
                    }
                }
                io::Result::Ok(())
            }
        });
    });
    let home = Server::start(&case, |b| {
        b.config(ReactorConfig::default());
    });
    let addr = server.addr();
    let client = Client::new(home.reactor(), ClientOptions::default()).unwrap();
    let ask = move |client: &Client| {
        let answer = async {
            client
                .request(get(addr))
                .await?
                .into_body()
                .collect()
                .await
                .map_err(|error| HttpClientError::Http { host: addr.to_string(), error })
        };
        block_within(answer, LONG).expect("in time").map(|body| body.to_bytes())
    };
    assert_eq!(ask(&client).unwrap(), "whole");
    let ours = clients.1.recv_timeout(LONG).unwrap();
    assert_eq!(client.idle_connections(), 1);
    let held = hold_reactor(&home.reactor());
    ends.open();
    let diag = SockDiag::open();
    let has_come = || diag.row(ours, addr).is_some_and(|row| row.state == TcpState::CloseWait);
    assert!(wait_until(LONG, has_come), "the FIN comes");
    let wakes = home.stats().wakes_remote;
    let asking = thread::spawn(move || {
        let answer = ask(&client);
        (answer, client.idle_connections())
    });
    // The request is with the connection's task, which this reactor is to run.
    assert!(wait_until(LONG, || home.stats().wakes_remote > wakes), "the dead connection is handed out");
    held.release();
    let (answer, idle) = asking.join().unwrap();
    assert_eq!((answer.unwrap(), idle), (Bytes::from_static(b"whole"), 1));
    assert_eq!(server.stats().accepted, 2);
}
