//! [`Timeout`]: a limit for the time that a call may take.
//!
//! Job: race a call with a sleep. State owned: both. Thread class: any thread.

use epoxide::time::{self, Sleep};
use pin_project_lite::pin_project;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tower_layer::Layer;
use tower_service::Service;

/// Makes [`Timeout`] services.
#[derive(Clone, Copy, Debug)]
pub struct TimeoutLayer {
    limit: Duration,
}

impl TimeoutLayer {
    /// Calls may take so long; every duration is legal, zero lets only a call through that is ready at once.
    pub fn new(limit: Duration) -> Self {
        Self { limit }
    }
}

impl<S> Layer<S> for TimeoutLayer {
    type Service = Timeout<S>;

    fn layer(&self, inner: S) -> Timeout<S> {
        Timeout { inner, limit: self.limit }
    }
}

/// A service whose calls end with [`LimitError::Elapsed`] when they take too long. Waiting until it is ready does not
/// count.
#[derive(Clone, Copy, Debug)]
pub struct Timeout<S> {
    inner: S,
    limit: Duration,
}

impl<S, Q> Service<Q> for Timeout<S>
where
    S: Service<Q>,
{
    type Response = S::Response;
    type Error = LimitError<S::Error>;
    type Future = TimeoutFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(LimitError::Service)
    }

    fn call(&mut self, request: Q) -> Self::Future {
        TimeoutFuture { call: self.inner.call(request), sleep: time::sleep(self.limit), limit: self.limit }
    }
}

pin_project! {
    /// The future of a [`Timeout`]'s call. The call is dropped with it, not at its deadline.
    #[derive(Debug)]
    pub struct TimeoutFuture<F> {
        #[pin]
        call: F,
        sleep: Sleep,
        limit: Duration,
    }
}

impl<F, T, E> Future for TimeoutFuture<F>
where
    F: Future<Output = Result<T, E>>,
{
    type Output = Result<T, LimitError<E>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(result) = this.call.poll(cx) {
            return Poll::Ready(result.map_err(LimitError::Service));
        }
        Pin::new(this.sleep).poll(cx).map(|()| Err(LimitError::Elapsed(*this.limit)))
    }
}

/// What a [`Timeout`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitError<E> {
    /// The call took longer than this.
    Elapsed(Duration),
    /// The service's own error.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for LimitError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Elapsed(limit) => write!(f, "the call took longer than {limit:?}"),
            Self::Service(error) => error.fmt(f),
        }
    }
}

impl<E: Error + 'static> Error for LimitError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Elapsed(_) => None,
            Self::Service(error) => Some(error),
        }
    }
}
