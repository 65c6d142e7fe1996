//! Counts the requests in progress, from the call of the service to the end of the answer's body.
//!
//! Job: wrap a service, its future and its body. State owned: one count a request, in [`Requests`]. Thread class: that of
//! what is wrapped; the counters are read by the driver of the connection, on any thread, one look at a time. Over
//! HTTP/1 everything happens in one task. Over HTTP/2 a request may end on another thread; the driver then sees it at
//! its next look, which a timer brings, so nothing hangs on the order of the two.

use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode};
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

/// What the driver, the IO and the service of one connection know of its requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Begun and not ended.
    active: AtomicUsize,
    /// Begun, ever.
    begun: AtomicUsize,
    /// Reads and writes so far (HTTP/2; counted by the IO).
    traffic: AtomicUsize,
    /// A head has begun to arrive (HTTP/1; kept by the IO).
    head: AtomicBool,
    /// The head took too long (set by the driver, answered by the IO).
    head_timed_out: AtomicBool,
    /// An answer has switched protocols: what is read next is none of ours.
    upgraded: AtomicBool,
    /// HTTP/1: an answer's body is not over.
    body: AtomicBool,
    /// HTTP/1: an answer has begun, and not all of it is with the kernel (ended by the IO).
    answering: AtomicBool,
}

impl Requests {
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::Acquire)
    }

    pub(super) fn traffic(&self) -> usize {
        self.traffic.load(Ordering::Acquire)
    }

    pub(super) fn count_traffic(&self) {
        self.traffic.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn is_in_head(&self) -> bool {
        self.head.load(Ordering::Acquire)
    }

    pub(super) fn set_in_head(&self, on: bool) {
        self.head.store(on, Ordering::Release);
    }

    pub(super) fn time_out_head(&self) {
        self.head_timed_out.store(true, Ordering::Release);
    }

    pub(super) fn head_timed_out(&self) -> bool {
        self.head_timed_out.load(Ordering::Acquire)
    }

    pub(super) fn is_upgraded(&self) -> bool {
        self.upgraded.load(Ordering::Acquire)
    }

    fn begin_answer(&self) {
        self.body.store(true, Ordering::Release);
        self.answering.store(true, Ordering::Release);
    }

    pub(super) fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Acquire)
    }

    /// Everything that hyper has written is with the kernel: if the body is over, that is all of the answer.
    pub(super) fn all_is_sent(&self) {
        if !self.body.load(Ordering::Acquire) {
            self.answering.store(false, Ordering::Release);
        }
    }
}

/// A request in progress.
struct Active(Arc<Requests>);

impl Active {
    fn begin(requests: &Arc<Requests>) -> Self {
        requests.set_in_head(false);
        requests.begun.fetch_add(1, Ordering::AcqRel);
        requests.active.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(requests))
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.0.body.store(false, Ordering::Release);
        self.0.active.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A service whose requests are counted.
pub(super) struct Tracked<S> {
    pub(super) service: S,
    pub(super) requests: Arc<Requests>,
}

impl<S, B> Service<Request<Incoming>> for Tracked<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
{
    type Response = Response<TrackedBody<B>>;
    type Error = S::Error;
    type Future = TrackedFuture<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let connect = request.method() == Method::CONNECT;
        let active = Some(Active::begin(&self.requests));
        TrackedFuture { future: self.service.call(request), active, connect }
    }
}

pin_project! {
    /// The future of a counted request.
    pub(super) struct TrackedFuture<F> {
        #[pin]
        future: F,
        active: Option<Active>,
        connect: bool,
    }
}

impl<F, B, E> Future for TrackedFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<TrackedBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let response = ready!(this.future.poll(cx))?;
        let status = response.status();
        if let Some(active) = &*this.active {
            active.0.begin_answer();
        }
        if (status == StatusCode::SWITCHING_PROTOCOLS || *this.connect && status.is_success())
            && let Some(active) = &*this.active
        {
            active.0.upgraded.store(true, Ordering::Release);
        }
        let active = this.active.take();
        Poll::Ready(Ok(response.map(|body| TrackedBody { body, active })))
    }
}

pin_project! {
    /// The body of a counted request's answer: the request is in progress until it is dropped.
    pub(super) struct TrackedBody<B> {
        #[pin]
        body: B,
        active: Option<Active>,
    }
}

impl<B: Body> Body for TrackedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        self.project().body.poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
