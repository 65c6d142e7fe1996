//! [`ConcurrencyLimit`]: a limit for the calls in progress.
//!
//! Job: a permit for each call. State owned: the place of this clone in the queue. Thread class: any thread.

use super::at_least_one;
use super::permits::{Permit, Permits, Ticket};
use pin_project_lite::pin_project;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tower_layer::Layer;
use tower_service::Service;

/// Makes [`ConcurrencyLimit`] services, all of which share the limit, as clones of the layer do.
#[derive(Clone, Debug)]
pub struct ConcurrencyLimitLayer {
    permits: Arc<Permits>,
}

impl ConcurrencyLimitLayer {
    /// At most `calls` in progress at a time.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when it is 0.
    pub fn new(calls: usize) -> io::Result<Self> {
        at_least_one("calls", calls == 0)?;
        Ok(Self { permits: Permits::new(calls) })
    }
}

impl<S> Layer<S> for ConcurrencyLimitLayer {
    type Service = ConcurrencyLimit<S>;

    fn layer(&self, inner: S) -> ConcurrencyLimit<S> {
        ConcurrencyLimit { inner, ticket: Ticket::new(&self.permits), permit: None, permits: Arc::clone(&self.permits) }
    }
}

/// A service of which only so many calls are in progress: it is ready when there is room for one more. A call counts
/// until its future is dropped.
#[derive(Debug)]
pub struct ConcurrencyLimit<S> {
    inner: S,
    ticket: Ticket,
    /// For the next call.
    permit: Option<Permit>,
    permits: Arc<Permits>,
}

impl<S: Clone> Clone for ConcurrencyLimit<S> {
    /// Shares the limit, and has its own place in the queue.
    fn clone(&self) -> Self {
        let permits = Arc::clone(&self.permits);
        Self { inner: self.inner.clone(), ticket: Ticket::new(&permits), permit: None, permits }
    }
}

impl<S, Q> Service<Q> for ConcurrencyLimit<S>
where
    S: Service<Q>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ConcurrencyLimitFuture<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        if self.permit.is_none() {
            self.permit = Some(ready!(self.ticket.poll(cx.waker())));
        }
        self.inner.poll_ready(cx)
    }

    /// # Panics
    /// When `poll_ready` was not ready before.
    fn call(&mut self, request: Q) -> Self::Future {
        let permit = self.permit.take();
        assert!(permit.is_some(), "a call without poll_ready before it");
        ConcurrencyLimitFuture { call: self.inner.call(request), _permit: permit }
    }
}

pin_project! {
    /// The future of a [`ConcurrencyLimit`]'s call.
    #[derive(Debug)]
    pub struct ConcurrencyLimitFuture<F> {
        #[pin]
        call: F,
        _permit: Option<Permit>,
    }
}

impl<F: Future> Future for ConcurrencyLimitFuture<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.project().call.poll(cx)
    }
}
