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
///
/// ```
/// # use epoxide_pipes::*;
/// # use std::{convert::Infallible, future::{Ready, poll_fn, ready}, task::{Context, Poll}};
/// # use tower_layer::Layer;
/// # use tower_service::Service;
/// # #[derive(Clone)]
/// # struct Hello;
/// # impl Service<()> for Hello {
/// #     type Response = &'static str;
/// #     type Error = Infallible;
/// #     type Future = Ready<Result<&'static str, Infallible>>;
/// #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
/// #     fn call(&mut self, _: ()) -> Self::Future { ready(Ok("hello")) }
/// # }
/// # async fn call<S: Service<(), Response = &'static str>>(mut service: S) -> &'static str
/// # where
/// #     S::Error: std::fmt::Debug,
/// # {
/// #     poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
/// #     service.call(()).await.unwrap()
/// # }
/// # epoxide::block_on(async {
/// let limited = ConcurrencyLimitLayer::new(10).unwrap().layer(Hello);
/// assert_eq!(call(limited).await, "hello");
/// # });
/// ```
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
///
/// ```
/// # use epoxide_pipes::*;
/// # use std::{convert::Infallible, future::{Ready, poll_fn, ready}, task::{Context, Poll}};
/// # use tower_layer::Layer;
/// # use tower_service::Service;
/// # #[derive(Clone)]
/// # struct Hello;
/// # impl Service<()> for Hello {
/// #     type Response = &'static str;
/// #     type Error = Infallible;
/// #     type Future = Ready<Result<&'static str, Infallible>>;
/// #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
/// #     fn call(&mut self, _: ()) -> Self::Future { ready(Ok("hello")) }
/// # }
/// # async fn call<S: Service<(), Response = &'static str>>(mut service: S) -> &'static str
/// # where
/// #     S::Error: std::fmt::Debug,
/// # {
/// #     poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
/// #     service.call(()).await.unwrap()
/// # }
/// # epoxide::block_on(async {
/// let limited: ConcurrencyLimit<Hello> = ConcurrencyLimitLayer::new(10).unwrap().layer(Hello);
/// let same = limited.clone(); // one count for both
/// # });
/// ```
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
    ///
    /// ```
    /// # use epoxide_pipes::*;
    /// # use std::{convert::Infallible, future::{Ready, poll_fn, ready}, task::{Context, Poll}};
    /// # use tower_layer::Layer;
    /// # use tower_service::Service;
    /// # #[derive(Clone)]
    /// # struct Hello;
    /// # impl Service<()> for Hello {
    /// #     type Response = &'static str;
    /// #     type Error = Infallible;
    /// #     type Future = Ready<Result<&'static str, Infallible>>;
    /// #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
    /// #     fn call(&mut self, _: ()) -> Self::Future { ready(Ok("hello")) }
    /// # }
    /// # async fn call<S: Service<(), Response = &'static str>>(mut service: S) -> &'static str
    /// # where
    /// #     S::Error: std::fmt::Debug,
    /// # {
    /// #     poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
    /// #     service.call(()).await.unwrap()
    /// # }
    /// # epoxide::block_on(async {
    /// let mut limited = ConcurrencyLimitLayer::new(1).unwrap().layer(Hello);
    /// poll_fn(|cx| limited.poll_ready(cx)).await.unwrap();
    /// let answer: ConcurrencyLimitFuture<_> = limited.call(()); // keeps its place until it is dropped
    /// assert_eq!(answer.await, Ok("hello"));
    /// # });
    /// ```
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
