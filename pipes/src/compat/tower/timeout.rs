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
/// use std::time::Duration;
///
/// let timed = TimeoutLayer::new(Duration::from_secs(1)).layer(Hello);
/// assert_eq!(call(timed).await, "hello");
/// # });
/// ```
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
/// use std::time::Duration;
///
/// let timed: Timeout<Hello> = TimeoutLayer::new(Duration::from_secs(1)).layer(Hello);
/// # });
/// ```
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
    /// let mut timed = TimeoutLayer::new(std::time::Duration::from_secs(1)).layer(Hello);
    /// poll_fn(|cx| timed.poll_ready(cx)).await.unwrap();
    /// let answer: TimeoutFuture<_> = timed.call(());
    /// assert_eq!(answer.await.unwrap(), "hello");
    /// # });
    /// ```
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
///
/// ```
/// use epoxide_pipes::LimitError;
/// use std::time::Duration;
///
/// let late: LimitError<std::io::Error> = LimitError::Elapsed(Duration::from_secs(1));
/// println!("{late}");
/// ```
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
