//! What the HTTP tests serve, and how: the same service on reactors and on workers.
//!
//! State: a gate and counters per service. Thread class: any thread.
#![allow(dead_code, reason = "each test binary uses its part")]

use bytes::Bytes;
use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, ReactorConfig};
use epoxide_pipes::transport::{Receive, Transmit};
use epoxide_pipes::{HttpOptions, HttpOptionsBuilder, serve_http, serve_http_send, upgraded_stream};
use epoxide_tests_e2e::{Case, Gate, Server, loopback, pattern, provoke_panic};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONNECTION, UPGRADE};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

pub(crate) const LONG: Duration = Duration::from_secs(20);

/// Where a connection is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Reactor,
    Workers,
}

pub(crate) const PLACES: [Place; 2] = [Place::Reactor, Place::Workers];

pub(crate) type Answer = Response<BoxBody<Bytes, hyper::Error>>;

/// What a test and the service share.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desk {
    /// `/wait` answers when it is open.
    pub(crate) go: Gate,
    /// Opens when `/wait` or `/hold` was asked for.
    pub(crate) arrived: Gate,
    /// Opens when the future or the body of one of them was dropped.
    pub(crate) dropped: Gate,
    /// Bytes that `/big` has made.
    pub(crate) made: Arc<AtomicUsize>,
    /// Requests so far.
    pub(crate) asked: Arc<AtomicUsize>,
    /// Connections whose `serve_http` returned an error.
    pub(crate) errors: Arc<std::sync::Mutex<Vec<io::Error>>>,
}

struct OpenAtDrop(Gate);

impl Drop for OpenAtDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A body of so many bytes in pieces of 16 KiB, counted.
pub(crate) struct Big {
    left: usize,
    made: Arc<AtomicUsize>,
    _dropped: OpenAtDrop,
}

impl Body for Big {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        let n = self.left.min(16 * 1024);
        let at = self.made.fetch_add(n, Ordering::AcqRel);
        self.left -= n;
        let bytes: Vec<u8> = (at..at + n).map(|i| (i % 251) as u8).collect();
        Poll::Ready(Some(Ok(Frame::data(bytes.into()))))
    }
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(crate) fn full(bytes: impl Into<Bytes>) -> BoxBody<Bytes, hyper::Error> {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed()
}

fn empty() -> BoxBody<Bytes, hyper::Error> {
    Empty::new().map_err(|never| match never {}).boxed()
}

impl Desk {
    pub(crate) async fn answer(self, request: Request<Incoming>) -> Result<Answer, hyper::Error> {
        self.asked.fetch_add(1, Ordering::AcqRel);
        let path = request.uri().path().to_owned();
        Ok(match path.as_str() {
            "/" => Response::new(full("ok")),
            "/echo" => Response::new(request.into_body().boxed()),
            "/len" => {
                let body = request.into_body().collect().await?.to_bytes();
                assert_eq!(body, pattern(body.len()), "the body is what was sent");
                Response::new(full(body.len().to_string()))
            }
            // Takes the body only when the gate is open.
            "/hold" => {
                self.arrived.open();
                self.go.wait().await;
                let body = request.into_body().collect().await?.to_bytes();
                Response::new(full(body.len().to_string()))
            }
            "/wait" => {
                let _dropped = OpenAtDrop(self.dropped.clone());
                self.arrived.open();
                self.go.wait().await;
                Response::new(full("waited"))
            }
            "/panic" => {
                provoke_panic("a service");
                Response::new(empty())
            }
            "/upgrade" => upgrade::<epoxide::ReadHalf, epoxide::WriteHalf>(request),
            path => match path.strip_prefix("/big/").and_then(|n| n.parse().ok()) {
                Some(left) => {
                    let body = Big { left, made: self.made.clone(), _dropped: OpenAtDrop(self.dropped.clone()) };
                    Response::new(body.boxed())
                }
                None => {
                    let mut answer = Response::new(empty());
                    *answer.status_mut() = StatusCode::NOT_FOUND;
                    answer
                }
            },
        })
    }

    async fn serve(self, connection: Connection, options: HttpOptions) -> io::Result<()> {
        let desk = self.clone();
        let done = serve_http(connection, service_fn(move |request| desk.clone().answer(request)), options).await;
        self.note(done);
        Ok(())
    }

    async fn serve_send(self, connection: Connection, options: HttpOptions) -> io::Result<()> {
        let desk = self.clone();
        let done = serve_http_send(connection, service_fn(move |request| desk.clone().answer(request)), options).await;
        self.note(done);
        Ok(())
    }

    pub(crate) fn note(&self, done: io::Result<()>) {
        if let Err(error) = done {
            self.errors.lock().unwrap().push(error);
        }
    }

    pub(crate) fn start(&self, case: &Case, place: Place) -> Server {
        self.start_with(case, place, HttpOptions::builder(), ReactorConfig::default())
    }

    pub(crate) fn start_with(
        &self,
        case: &Case,
        place: Place,
        options: HttpOptionsBuilder,
        config: ReactorConfig,
    ) -> Server {
        let options = options.build().expect("the options work");
        let desk = self.clone();
        Server::start(case, |b| {
            b.config(config);
            match place {
                Place::Reactor => b.listen(loopback(), move |c| desk.clone().serve(c, options)),
                Place::Workers => {
                    b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
                    b.listen(loopback(), move |c| {
                        let served = workers::spawn(desk.clone().serve_send(c, options));
                        async move { served.detach() }
                    })
                }
            };
        })
    }

    /// The kinds of the errors so far.
    pub(crate) fn error_kinds(&self) -> Vec<io::ErrorKind> {
        self.errors.lock().unwrap().iter().map(io::Error::kind).collect()
    }
}

/// Echoes what follows the upgrade, until the client's end. The halves are those of the connection that is served.
pub(crate) fn upgrade<R: Receive, W: Transmit>(request: Request<Incoming>) -> Answer {
    let upgraded = hyper::upgrade::on(request);
    let echo = async move {
        let upgraded = upgraded.await.expect("upgraded");
        let Ok(mut stream) = upgraded_stream::<R, W>(upgraded) else {
            panic!("the stream is the one that was served");
        };
        let mut space = [0; 4096];
        loop {
            match stream.read(&mut space).await.expect("readable") {
                0 => return stream.shutdown().await.expect("ended"),
                n => stream.write_all(&space[..n]).await.expect("writable"),
            }
        }
    };
    let on_reactor = epoxide::ReactorHandle::current().is_some_and(|reactor| reactor.is_current_thread());
    if on_reactor {
        epoxide::spawn_local(echo).detach();
    } else {
        workers::spawn(echo).detach();
    }
    let mut answer = Response::new(empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(UPGRADE, "echo".parse().unwrap());
    answer.headers_mut().insert(CONNECTION, "upgrade".parse().unwrap());
    answer
}
