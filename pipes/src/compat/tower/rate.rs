//! [`RateLimit`]: a limit for the calls in a window of time.
//!
//! Job: count calls, and wait for the next window. State owned: the window, and a sleep. Thread class: any thread, one
//! task.

use super::at_least_one;
use epoxide::time::{self, Sleep};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tower_layer::Layer;
use tower_service::Service;

/// Makes [`RateLimit`] services, each with a count of its own.
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
/// let slow = RateLimitLayer::new(100, Duration::from_secs(1)).unwrap().layer(Hello);
/// assert_eq!(call(slow).await, "hello");
/// # });
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RateLimitLayer {
    calls: u64,
    per: Duration,
}

impl RateLimitLayer {
    /// At most `calls` in every window of length `per`; a window begins with its first call.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when either is 0.
    pub fn new(calls: u64, per: Duration) -> io::Result<Self> {
        at_least_one("calls", calls == 0)?;
        at_least_one("per", per.is_zero())?;
        Ok(Self { calls, per })
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, layer: *self, left: self.calls, window: None }
    }
}

/// A service that is ready only so often. It is not `Clone`: a clone would have a count of its own.
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
/// let slow: RateLimit<Hello> = RateLimitLayer::new(100, Duration::from_secs(1)).unwrap().layer(Hello);
/// # });
/// ```
#[derive(Debug)]
pub struct RateLimit<S> {
    inner: S,
    layer: RateLimitLayer,
    /// Calls that the window has left.
    left: u64,
    /// Ready at the window's end. `None`: no call has been made.
    window: Option<Sleep>,
}

impl<S> RateLimit<S> {
    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.left == 0
            && let Some(window) = &mut self.window
        {
            ready!(Pin::new(window).poll(cx));
            self.left = self.layer.calls;
            self.window = None;
        }
        Poll::Ready(())
    }
}

impl<S, Q> Service<Q> for RateLimit<S>
where
    S: Service<Q>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        ready!(self.poll_room(cx));
        self.inner.poll_ready(cx)
    }

    /// # Panics
    /// When `poll_ready` was not ready before.
    fn call(&mut self, request: Q) -> S::Future {
        if self.window.as_ref().is_none_or(Sleep::is_elapsed) {
            self.left = self.layer.calls;
            self.window = Some(time::sleep_until(end_of(Instant::now(), self.layer.per)));
        }
        assert!(self.left > 0, "a call without poll_ready before it");
        self.left -= 1;
        self.inner.call(request)
    }
}

fn end_of(begin: Instant, per: Duration) -> Instant {
    begin.checked_add(per).unwrap_or_else(|| begin + Duration::from_secs(30 * 365 * 86_400))
}
