//! Request bodies that may not stall: a clock for each, of HTTP/1 and HTTP/2 alike.
//!
//! Job: wrap a service, and the body of each of its requests. State owned: one sleep for a body that was waited for.
//! Thread class: that of the service. Law kept: DESIGN 5 (a busy handler is never timed out: the clock runs only while a
//! handler waits for the body).
//!
//! The read clock of the connection does this for HTTP/1. Over HTTP/2 it cannot: the client of a stalled stream answers
//! pings, and other streams of its go on.

use bytes::Bytes;
use epoxide::time::{self, Sleep};
use hyper::Request;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// A service whose requests' bodies end with an error when the client stalls in them. Goes around a service that takes
/// [`TimedBody`], an axum router in a [`TowerService`](crate::TowerService) for one.
///
/// ```
/// use epoxide_pipes::{BodyTimeout, TimedBody};
/// use hyper::service::service_fn;
/// use hyper::{Request, Response};
/// use std::time::Duration;
///
/// let service = BodyTimeout::new(
///     service_fn(async |request: Request<TimedBody>| Ok::<_, std::io::Error>(Response::new(request.into_body()))),
///     Duration::from_secs(30),
/// );
/// # let _ = service;
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BodyTimeout<S> {
    service: S,
    limit: Duration,
}

impl<S> BodyTimeout<S> {
    /// `limit`: how long a handler may have to wait for the next piece of a body. Zero: for ever.
    pub fn new(service: S, limit: Duration) -> Self {
        Self { service, limit }
    }
}

impl<S: Service<Request<TimedBody>>> Service<Request<Incoming>> for BodyTimeout<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: Request<Incoming>) -> S::Future {
        self.service.call(request.map(|body| TimedBody { body, limit: self.limit, waits: None, over: false }))
    }
}

/// A request's body whose every piece has a deadline, which counts from when the handler begins to wait for it. Any thread.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] once, when the client stalled: nothing comes after it, and dropping the body resets the
/// stream (HTTP/2). [`io::ErrorKind::Other`] wraps hyper's own errors.
pub struct TimedBody {
    body: Incoming,
    limit: Duration,
    waits: Option<Sleep>,
    over: bool,
}

impl fmt::Debug for TimedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedBody").field("limit", &self.limit).field("waits", &self.waits.is_some()).finish()
    }
}

impl Body for TimedBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) {
            this.waits = None;
            return Poll::Ready(frame.map(|frame| frame.map_err(io::Error::other)));
        }
        if this.limit.is_zero() {
            return Poll::Pending;
        }
        let limit = this.limit;
        let clock = this.waits.get_or_insert_with(|| time::sleep(limit));
        if Pin::new(clock).poll(cx).is_pending() {
            return Poll::Pending;
        }
        (this.waits, this.over) = (None, true);
        let text = format!("the client sent nothing of the request's body for {limit:?}");
        Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, text))))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
