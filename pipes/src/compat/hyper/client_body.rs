//! [`ClientBody`]: the body of an answer, and the connection it comes over.
//!
//! Job: give the connection back at the body's end. State owned: the connection until then. Thread class: any thread.
//! Laws kept: 10.

use super::client::{Inner, Link};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::fmt;
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::Instant;

/// A connection that goes back to its pool.
pub(super) struct Lease<B> {
    pub(super) client: Weak<Inner<B>>,
    pub(super) host: String,
    pub(super) link: Link<B>,
}

impl<B> Lease<B> {
    fn give_back(self) {
        if let Some(client) = self.client.upgrade() {
            client.put(&self.host, Instant::now(), self.link);
        }
    }
}

/// The body of an answer. Its connection goes back to the pool at the body's end; dropped before, it is closed.
///
/// ```
/// # use epoxide_pipes::*;
/// # let mut server = epoxide::Runtime::builder();
/// # server.listen("127.0.0.1:0", |conn| {
/// #     let hello = |_| async { std::io::Result::Ok(hyper::Response::new("hello".to_owned())) };
/// #     serve_http(conn, hyper::service::service_fn(hello), HttpOptions::default())
/// # });
/// # let server = server.build().unwrap();
/// # let addr = server.local_addrs()[0];
/// # epoxide::block_on(async {
/// # let client = HttpClient::new(epoxide::ReactorHandle::current().unwrap(), ClientOptions::default())?;
/// # let request = hyper::Request::get(format!("http://{addr}/")).body(String::new()).unwrap();
/// use http_body_util::BodyExt;
///
/// let body: ClientBody<String> = client.request(request).await.unwrap().into_body();
/// assert_eq!(body.collect().await.unwrap().to_bytes(), "hello");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct ClientBody<B> {
    body: Incoming,
    lease: Option<Lease<B>>,
}

impl<B> ClientBody<B> {
    pub(super) fn new(body: Incoming, lease: Option<Lease<B>>) -> Self {
        let mut this = Self { body, lease };
        this.look();
        this
    }

    fn look(&mut self) {
        if self.body.is_end_stream()
            && let Some(lease) = self.lease.take()
        {
            lease.give_back();
        }
    }
}

impl<B> fmt::Debug for ClientBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientBody").field("body", &self.body).finish_non_exhaustive()
    }
}

/// Nothing in it is pinned.
impl<B> Unpin for ClientBody<B> {}

impl<B> Body for ClientBody<B> {
    type Data = <Incoming as Body>::Data;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => {
                if let Some(lease) = self.lease.take() {
                    lease.give_back();
                }
            }
            Poll::Ready(Some(Ok(_))) => self.look(),
            Poll::Ready(Some(Err(_))) => self.lease = None,
            Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
