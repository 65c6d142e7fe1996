//! A tower service as one of hyper's.
//!
//! Job: clone it for each request, wait until the clone is ready, call it. State owned: those two. Thread class: that of
//! the service.

use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tower_service::Service;

/// A tower service, an axum router for one, as a service for [`serve_http`](crate::serve_http).
///
/// Each request gets a clone, and waits until that is ready.
#[derive(Clone, Copy, Debug)]
pub struct TowerService<S> {
    service: S,
}

impl<S> TowerService<S> {
    /// Wraps it.
    pub fn new(service: S) -> Self {
        Self { service }
    }
}

impl<S, Q> hyper::service::Service<Q> for TowerService<S>
where
    S: Service<Q> + Clone,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = TowerCall<S, Q>;

    fn call(&self, request: Q) -> TowerCall<S, Q> {
        TowerCall { state: State::Waits { service: self.service.clone(), request: Some(request) } }
    }
}

pin_project! {
    /// The future of a [`TowerService`]'s call.
    pub struct TowerCall<S: Service<Q>, Q> {
        #[pin]
        state: State<S, S::Future, Q>,
    }
}

impl<S: Service<Q>, Q> std::fmt::Debug for TowerCall<S, Q> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TowerCall(..)")
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, F, Q> {
        Waits { service: S, request: Option<Q> },
        Runs { #[pin] call: F },
    }
}

impl<S: Service<Q>, Q> Future for TowerCall<S, Q> {
    type Output = Result<S::Response, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            match state.as_mut().project() {
                StateProj::Waits { service, request } => {
                    ready!(service.poll_ready(cx))?;
                    let Some(request) = request.take() else { return Poll::Pending };
                    let call = service.call(request);
                    state.set(State::Runs { call });
                }
                StateProj::Runs { call } => return call.poll(cx),
            }
        }
    }
}
