//! [`HttpClient`]: HTTP/1.1 requests over pooled connections of one reactor.
//!
//! Job: find or make a connection, send, give it back when the answer's body is over. State owned: the pool, behind a
//! mutex that guards no user code. Thread class: any thread. Laws kept: 6 (idle connections end at a drain), 10, 16.

use super::client_body::{ClientBody, Lease};
use super::client_error::HttpClientError;
use super::client_io::{ClientIo, HeadWait};
use super::client_options::ClientOptions;
use super::pool::{Found, Health, Pool};
use epoxide::{AbortHandle, Connection, Draining, PostError, ReactorHandle, time};
use hyper::body::Body;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use std::error::Error;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

/// For so long after an answer's body was read its connection counts as about to be free, and a request waits for it: on
/// another thread than the connection's the reader is done before the connection's driver. Without it up to a quarter of
/// such requests got new connections; it is not longer because a driver may still be sending a body that nobody waits for.
const GRACE: Duration = Duration::from_millis(5);

type BoxError = Box<dyn Error + Send + Sync>;

/// An HTTP/1.1 client whose connections belong to one reactor: one client a reactor is one pool a reactor.
///
/// Clones share the pool; any thread may use them. `B` is the type of the requests' bodies. A request that a pooled
/// connection turned out to be too dead to carry is sent again on a new one; no other is.
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
/// let client = HttpClient::new(epoxide::ReactorHandle::current().unwrap(), ClientOptions::default())?;
/// let request = hyper::Request::get(format!("http://{addr}/")).body(String::new()).unwrap();
/// let answer = client.request(request).await.unwrap();
/// assert_eq!(answer.status(), 200);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct HttpClient<B> {
    inner: Arc<Inner<B>>,
}

pub(super) struct Inner<B> {
    reactor: ReactorHandle,
    options: ClientOptions,
    pool: Mutex<Pool<Link<B>>>,
    /// `None`: the reactor took no task, and nothing is kept.
    keeper: OnceLock<Option<AbortHandle>>,
}

/// A connection: hyper's end of it, and the wait for the head of its next answer.
pub(super) struct Link<B> {
    /// Dropped before the sender, which wakes the driver.
    _alive: Arc<()>,
    sender: SendRequest<B>,
    wait: HeadWait,
}

impl<B> Clone for HttpClient<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<B> fmt::Debug for HttpClient<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("reactor", &self.inner.reactor)
            .field("options", &self.inner.options)
            .finish_non_exhaustive()
    }
}

impl<B> Drop for Inner<B> {
    fn drop(&mut self) {
        if let Some(Some(keeper)) = self.keeper.get() {
            keeper.abort();
        }
    }
}

impl<B> Inner<B> {
    fn pool(&self) -> MutexGuard<'_, Pool<Link<B>>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn put(&self, host: &str, since: Instant, link: Link<B>) {
        let (over, keeper) = self.pool().put(host, since, link);
        drop(over);
        if let Some(keeper) = keeper {
            keeper.wake();
        }
    }
}

/// A connection that goes back to its pool if it is not taken: it may still carry somebody's upload.
struct Waiting<'a, B> {
    client: &'a Inner<B>,
    host: &'a str,
    since: Instant,
    link: Option<Link<B>>,
}

impl<B> Drop for Waiting<'_, B> {
    fn drop(&mut self) {
        if let Some(link) = self.link.take() {
            self.client.put(self.host, self.since, link);
        }
    }
}

impl<B> HttpClient<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    /// A client whose connections belong to `reactor`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`], naming the field that cannot work.
    pub fn new(reactor: ReactorHandle, options: ClientOptions) -> io::Result<Self> {
        super::options::range("max_head", options.max_head, 1024, 1 << 20)?;
        let pool = Mutex::new(Pool::new(options.idle_timeout, options.max_idle_per_host, options.max_idle));
        Ok(Self { inner: Arc::new(Inner { reactor, options, pool, keeper: OnceLock::new() }) })
    }

    /// How many connections the pool holds: the idle ones, and those whose answer is over for its reader but not yet for
    /// the connection's own thread, which are about to be idle. One that died is counted until somebody looks at it.
    pub fn idle_connections(&self) -> usize {
        self.inner.pool().len()
    }

    /// Sends a request to the host of its URI (`http://host:port/path`) and waits for the answer's head. The `Host` field
    /// is added if it is missing.
    ///
    /// # Errors
    /// See [`HttpClientError`].
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection that the request is on; the server may have seen it.
    pub async fn request(&self, request: Request<B>) -> Result<Response<ClientBody<B>>, HttpClientError> {
        let (host, port) = target(request.uri())?;
        let key = format!("{host}:{port}");
        let connect_method = request.method() == Method::CONNECT;
        let mut request = prepared(request, &key)?;
        loop {
            let (mut link, reused) = match self.idle(&key).await {
                Some(link) => (link, true),
                None => (self.connect(&host, port, &key).await?, false),
            };
            link.wait.begin(reused);
            let answer = link.sender.try_send_request(request);
            let limit = self.inner.options.response_timeout;
            let result = if limit.is_zero() {
                answer.await
            } else {
                match time::timeout(limit, answer).await {
                    Ok(result) => result,
                    Err(_) => return Err(HttpClientError::Timeout { host: key, limit }),
                }
            };
            link.wait.end();
            let response = match result {
                Ok(response) => response,
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if reused => {
                        request = unsent;
                        continue;
                    }
                    _ => return Err(HttpClientError::Http { host: key, error: failed.into_error() }),
                },
            };
            let status = response.status();
            let switched = status == StatusCode::SWITCHING_PROTOCOLS || connect_method && status.is_success();
            let lease = (!switched).then(|| Lease { client: Arc::downgrade(&self.inner), host: key, link });
            return Ok(response.map(|body| ClientBody::new(body, lease)));
        }
    }

    /// A connection of the pool that takes a request.
    async fn idle(&self, key: &str) -> Option<Link<B>> {
        let (found, dead) = self.inner.pool().take(key, Instant::now(), GRACE, health);
        drop(dead);
        let found = found?;
        if found.is_ready {
            return Some(found.connection);
        }
        let Found { connection, since, .. } = found;
        let mut waiting = Waiting { client: &self.inner, host: key, since, link: Some(connection) };
        let ready = time::timeout(GRACE, waiting.link.as_mut()?.sender.ready()).await.ok()?;
        let link = waiting.link.take();
        ready.ok().and(link)
    }

    async fn connect(&self, host: &str, port: u16, key: &str) -> Result<Link<B>, HttpClientError> {
        let Inner { reactor, options, .. } = &*self.inner;
        let connecting = reactor.connect_with((host, port), options.connect.clone());
        let connection = connecting.await.map_err(HttpClientError::Connect)?;
        self.keep(&connection);
        let http = |error| HttpClientError::Http { host: key.to_owned(), error };
        let mut builder = Builder::new();
        builder.max_header_size(options.max_head).max_buf_size(options.max_head.max(64 * 1024) + 1);
        let wait = HeadWait::default();
        let (sender, driver) = builder.handshake(ClientIo::new(connection, wait.clone())).await.map_err(http)?;
        let alive = Arc::new(());
        let driven = drive(driver.with_upgrades(), Arc::downgrade(&alive));
        let task = reactor.spawn(driven).map_err(|refused| {
            let full = matches!(refused, PostError::Full(_));
            let why = if full { PostError::Full(()) } else { PostError::Stopped(()) };
            HttpClientError::Connect(why.into())
        })?;
        task.detach();
        Ok(Link { _alive: alive, sender, wait })
    }

    /// Starts the task that lets old connections go, with the first connection.
    fn keep(&self, connection: &Connection) {
        self.inner.keeper.get_or_init(|| {
            let keeping = keeper(Arc::downgrade(&self.inner), connection.draining());
            match self.inner.reactor.spawn(keeping) {
                Ok(task) => Some(task.abort_handle()),
                Err(_) => {
                    let idle = self.inner.pool().close();
                    drop(idle);
                    None
                }
            }
        });
    }
}

/// Drives a connection to its end; its errors come out at the request. Once nobody has the link any more hyper is polled
/// twice: when a body that outlived its answer is out, it does not look whether anybody will ask again.
async fn drive<T>(driver: impl Future<Output = T>, link: Weak<()>) {
    let mut driver = pin!(driver);
    poll_fn(|cx| match driver.as_mut().poll(cx) {
        Poll::Pending if link.strong_count() == 0 => driver.as_mut().poll(cx).map(drop),
        polled => polled.map(drop),
    })
    .await;
}

fn health<B>(link: &Link<B>) -> Health {
    match (link.sender.is_closed(), link.sender.is_ready()) {
        (true, _) => Health::Dead,
        (_, true) => Health::Ready,
        _ => Health::NotYet,
    }
}

/// Lets idle connections go when their time is over, and all of them at a drain: they must not hold it.
async fn keeper<B>(client: Weak<Inner<B>>, mut draining: Draining) {
    let mut sleep = None::<Pin<Box<time::Sleep>>>;
    poll_fn(|cx| {
        let Some(client) = client.upgrade() else { return Poll::Ready(()) };
        if Pin::new(&mut draining).poll(cx).is_ready() {
            let idle = client.pool().close();
            drop(idle);
            return Poll::Ready(());
        }
        loop {
            if let Some(waits) = &mut sleep
                && waits.as_mut().poll(cx).is_pending()
            {
                return Poll::Pending;
            }
            let (dead, next) = client.pool().sweep(Instant::now(), cx.waker(), health);
            drop(dead);
            sleep = next.map(|after| Box::pin(time::sleep(after)));
            if sleep.is_none() {
                return Poll::Pending;
            }
        }
    })
    .await;
}

fn target(uri: &Uri) -> Result<(String, u16), HttpClientError> {
    let bad = |why| HttpClientError::Uri { uri: uri.to_string(), why };
    match uri.scheme_str() {
        Some("http") | None => {}
        Some(_) => return Err(bad("only http is spoken here")),
    }
    let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| bad("it names no host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    Ok((host, uri.port_u16().unwrap_or(80)))
}

/// The request as a server wants it: a path instead of the whole URI, and the host.
fn prepared<B>(mut request: Request<B>, key: &str) -> Result<Request<B>, HttpClientError> {
    let uri = request.uri();
    let bad = |why| HttpClientError::Uri { uri: uri.to_string(), why };
    let host = uri.authority().map_or(key, |authority| {
        let text = authority.as_str();
        text.rsplit_once('@').map_or(text, |(_, host)| host)
    });
    let host = HeaderValue::from_str(host).map_err(|_| bad("its host is no header value"))?;
    if request.method() != Method::CONNECT {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.is_empty() { "/" } else { path };
        let path = path.parse().map_err(|_| bad("its path is none"))?;
        *request.uri_mut() = path;
    }
    request.headers_mut().entry(HOST).or_insert(host);
    *request.version_mut() = Version::HTTP_11;
    Ok(request)
}

#[cfg(feature = "tower")]
impl<B> tower_service::Service<Request<B>> for HttpClient<B>
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<ClientBody<B>>;
    type Error = HttpClientError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, HttpClientError>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), HttpClientError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let client = self.clone();
        Box::pin(async move { client.request(request).await })
    }
}
