//! The tower layers on epoxide's timers, on plain threads and on a reactor.

use epoxide_pipes::{ConcurrencyLimitLayer, LimitError, RateLimitLayer, TimeoutLayer};
use epoxide_tests_e2e::{Case, Gate, block_within};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tower_layer::Layer;
use tower_service::Service;

const LONG: Duration = Duration::from_secs(20);

/// Answers once its gate is open, and counts who is inside.
#[derive(Clone, Default)]
struct Waits {
    go: Gate,
    inside: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Service<u32> for Waits {
    type Response = u32;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<u32, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: u32) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let inside = this.inside.fetch_add(1, Ordering::AcqRel) + 1;
            this.most.fetch_max(inside, Ordering::AcqRel);
            this.go.wait().await;
            this.inside.fetch_sub(1, Ordering::AcqRel);
            Ok(request)
        })
    }
}

async fn ask<S: Service<u32>>(service: &mut S, request: u32) -> Result<S::Response, S::Error> {
    poll_fn(|cx| service.poll_ready(cx)).await?;
    service.call(request).await
}

#[test]
fn a_call_that_takes_too_long_is_ended() {
    let _case = Case::start();
    let limit = Duration::from_millis(100);
    let waits = Waits::default();
    let mut service = TimeoutLayer::new(limit).layer(waits.clone());
    let begin = Instant::now();
    let told = block_within(ask(&mut service, 1), LONG).expect("the timer fires");
    assert_eq!(told, Err(LimitError::Elapsed(limit)));
    assert!(begin.elapsed() >= limit);
    waits.go.open();
    assert_eq!(epoxide::block_on(ask(&mut service, 2)), Ok(2));
}

#[test]
fn only_so_many_calls_are_in_progress() {
    let _case = Case::start();
    let waits = Waits::default();
    let service = ConcurrencyLimitLayer::new(2).unwrap().layer(waits.clone());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|i| {
                let mut service = service.clone();
                scope.spawn(move || block_within(ask(&mut service, i), LONG))
            })
            .collect();
        assert!(waits.go.wait_waiting(2, LONG), "two get in");
        waits.go.open();
        for (i, thread) in threads.into_iter().enumerate() {
            assert_eq!(thread.join().unwrap(), Some(Ok(u32::try_from(i).unwrap())));
        }
    });
    assert_eq!(waits.most.load(Ordering::Acquire), 2);
}

#[test]
fn a_window_lets_only_so_many_through() {
    let _case = Case::start();
    let per = Duration::from_millis(200);
    let waits = Waits::default();
    waits.go.open();
    let mut service = RateLimitLayer::new(3, per).unwrap().layer(waits);
    let begin = Instant::now();
    for i in 0..9 {
        assert_eq!(block_within(ask(&mut service, i), LONG), Some(Ok(i)));
        assert!(begin.elapsed() >= per * (i / 3), "call {i} came early");
    }
}

#[test]
fn zeros_are_refused_by_name() {
    for (field, error) in [
        ("calls", ConcurrencyLimitLayer::new(0).expect_err("zero")),
        ("calls", RateLimitLayer::new(0, LONG).expect_err("zero")),
        ("per", RateLimitLayer::new(1, Duration::ZERO).expect_err("zero")),
    ] {
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().starts_with(&format!("{field} is 0")), "{error}");
    }
}
