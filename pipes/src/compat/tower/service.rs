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
///
/// ```
/// # use std::{convert::Infallible, future::{Ready, ready}, task::{Context, Poll}};
/// # #[derive(Clone)]
/// # struct App;
/// # impl tower_service::Service<hyper::Request<hyper::body::Incoming>> for App {
/// #     type Response = hyper::Response<String>;
/// #     type Error = Infallible;
/// #     type Future = Ready<Result<Self::Response, Infallible>>;
/// #     fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> { Poll::Ready(Ok(())) }
/// #     fn call(&mut self, _: hyper::Request<hyper::body::Incoming>) -> Self::Future {
/// #         ready(Ok(hyper::Response::new("hello".to_owned())))
/// #     }
/// # }
/// use epoxide_pipes::{HttpOptions, TowerService, serve_http};
///
/// let app = TowerService::new(App); // an axum router, say
/// let mut server = epoxide::Runtime::builder();
/// server.listen("127.0.0.1:0", move |conn| serve_http(conn, app.clone(), HttpOptions::default()));
/// let runtime = server.build().unwrap();
/// # use std::io::{Read, Write};
/// # let mut client = std::net::TcpStream::connect(runtime.local_addrs()[0]).unwrap();
/// # client.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
/// # let mut answer = String::new();
/// # client.read_to_string(&mut answer).unwrap();
/// # assert!(answer.ends_with("hello"), "{answer}");
/// ```
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
    /// let hello = TowerService::new(Hello);
    /// let answer: TowerCall<Hello, ()> = hyper::service::Service::call(&hello, ());
    /// assert_eq!(answer.await, Ok("hello"));
    /// # });
    /// ```
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
