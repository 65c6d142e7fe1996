//! What the samples `http1` and `http2` answer.
//!
//! State: none. Thread class: any thread.

use bytes::Bytes;
use epoxide::Connection;
use epoxide_pipes::{BodyTimeout, HttpOptions, TimedBody, serve_http};
use http_body_util::{Either, Full};
use hyper::service::service_fn;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::io;
use std::time::Duration;

/// A client that stalls in a body for longer is cut, whatever else it does.
const STALL: Duration = Duration::from_secs(30);

/// Serves a connection: `/echo` gives back what it was sent, everything else `body`.
///
/// # Errors
/// Why the connection ended, unless the client ended it.
pub async fn serve(connection: Connection, body: Bytes, options: HttpOptions) -> io::Result<()> {
    let service = service_fn(move |request: Request<TimedBody>| {
        let answer = match request.uri().path() {
            "/echo" => Either::Left(request.into_body()),
            _ => Either::Right(Full::new(body.clone())),
        };
        std::future::ready(Ok::<_, Infallible>(Response::new(answer)))
    });
    serve_http(connection, BodyTimeout::new(service, STALL), options).await
}
