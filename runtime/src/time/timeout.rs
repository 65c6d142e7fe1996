//! `Timeout`: a future with a deadline.
//!
//! Job: poll the future, then the clock. State: both. Thread class: any thread. Laws: 9, 10.

use std::error::Error;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;

use super::sleep::{Sleep, sleep};

/// Gives `future` until `duration` from NOW; then `Err(`[`Elapsed`]`)`.
///
/// At each poll the future comes first, so one that is ready is never lost to the clock, even with a duration of
/// zero. A future that does not let go of the thread cannot be timed out. Durations, threads and panics are as for
/// [`sleep`]; a panic of the future passes through.
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout { future: future.into_future(), sleep: sleep(duration), duration }
}

pin_project! {
    /// The future of [`timeout`].
    ///
    /// Cancel safety: that of the future inside. Dropping this one, before or after it timed out, drops that one, so
    /// whatever it loses when it is dropped half way is lost; to go on after a timeout pass `&mut future`, or take it
    /// back with [`into_inner`](Timeout::into_inner).
    ///
    /// Once it has timed out, polling it again polls the future again; once it has returned the future's output it
    /// must not be polled, as the future must not.
    ///
    /// ```
    /// # epoxide::block_on(async {
    /// use epoxide::time::timeout;
    /// use std::time::Duration;
    ///
    /// assert_eq!(timeout(Duration::from_secs(5), async { 42 }).await.unwrap(), 42);
    /// # std::io::Result::Ok(())
    /// # }).unwrap();
    /// ```
    #[derive(Debug)]
    #[must_use = "a timeout does nothing unless it is awaited or polled"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        sleep: Sleep,
        duration: Duration,
    }
}

impl<F> Timeout<F> {
    /// When the time is over.
    pub fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// The future, without its deadline.
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        ready!(Pin::new(this.sleep).poll(cx));
        Poll::Ready(Err(Elapsed { after: *this.duration }))
    }
}

/// The time that was given to [`timeout`] is over. As an [`io::Error`] it is `TimedOut`.
///
/// ```
/// # epoxide::block_on(async {
/// use std::time::Duration;
///
/// let late = epoxide::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await.unwrap_err();
/// assert_eq!(std::io::Error::from(late).kind(), std::io::ErrorKind::TimedOut);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed {
    after: Duration,
}

impl Elapsed {
    /// How long the future was given.
    pub fn after(&self) -> Duration {
        self.after
    }
}

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "timed out: the operation was not complete after {:?}", self.after)
    }
}

impl Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(io::ErrorKind::TimedOut, elapsed)
    }
}
