//! `serve_http`: HTTP/1 and HTTP/2 on a connection, with hyper as the codec.
//!
//! Job: find the version, drive hyper as the clocks say, end in good order at a drain, and by a reset what is cut. State
//! owned: hyper's connection and its clocks, in one future. Thread class: any thread, one task. Laws kept: 6 (an idle
//! connection ends at a drain, a busy one is answered first; a cut body does not look whole), 16.

use super::clocks::{Clocks, MOMENT, Next};
use super::options::{HttpOptions, HttpVersions};
use super::rt::{HttpTimer, LocalExecutor, SendExecutor, on_a_reactor};
use super::server_io::ServerIo;
use super::tracked::{Requests, Tracked, TrackedBody, TrackedFuture};
use crate::ByteStream;
use crate::transport::{Receive, Transmit, Transport};
use epoxide::{CloseHandle, time};
use hyper::body::{Body, Incoming};
use hyper::rt::bounds::Http2ServerConnExec;
use hyper::server::conn::{http1, http2};
use hyper::service::Service;
use hyper::{Request, Response};
use std::error::Error;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

type BoxError = Box<dyn Error + Send + Sync>;

/// What an HTTP/2 connection begins with (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Largest amount that hyper buffers, in bytes: of an HTTP/1 connection each way, of an HTTP/2 stream what is unsent.
const MAX_BUFFERED: usize = 64 * 1024;

/// Serves HTTP on a connection until it ends: TCP, unix or TLS. Ready also once the connection was upgraded; see
/// [`upgraded_stream`](super::upgraded_stream).
///
/// The service and its futures need not be `Send`. HTTP/1 is served on every thread; HTTP/2 runs its requests by
/// [`spawn_local`](epoxide::spawn_local) and so only on a reactor thread: elsewhere use [`serve_http_send`].
///
/// A request is in progress from the call of the service to the end of its answer's body. At a drain an idle connection
/// ends at once; a busy one finishes its requests, says `connection: close` (HTTP/2: GOAWAY) and ends.
///
/// # Errors
/// Why the connection ended, unless the client ended it between two requests: [`io::ErrorKind::TimedOut`] for a head
/// that took too long, [`io::ErrorKind::InvalidData`] for what is not HTTP, [`io::ErrorKind::ConnectionAborted`] when the
/// client left before it was answered, [`io::ErrorKind::Unsupported`] for HTTP/2 on a thread that runs no reactor, what
/// the service failed with, and the connection's own errors.
///
/// # Panics
/// When the service does: over HTTP/1 that resets the connection; over HTTP/2 it ends the stream alone.
///
/// # Cancel safety
/// Dropping the future ends the connection: in the middle of an HTTP/1 answer by a reset, so that a part of it is not
/// taken for the whole.
pub async fn serve_http<T, S, B>(connection: T, service: S, options: HttpOptions) -> io::Result<()>
where
    T: Transport,
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
{
    serve(connection, service, options, LocalExecutor, on_a_reactor).await
}

/// [`serve_http`] for services whose futures and bodies are `Send`, on every thread: HTTP/2 runs its requests where
/// [`SendExecutor::here`] does, so on workers they run in parallel.
///
/// # Errors
/// As [`serve_http`].
///
/// # Cancel safety
/// As [`serve_http`].
pub async fn serve_http_send<T, S, B>(connection: T, service: S, options: HttpOptions) -> io::Result<()>
where
    T: Transport,
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    serve(connection, service, options, SendExecutor::here(), || true).await
}

async fn serve<T, S, B, E>(
    connection: T,
    service: S,
    options: HttpOptions,
    executor: E,
    may_speak_http2: fn() -> bool,
) -> io::Result<()>
where
    T: Transport,
    S: Service<Request<Incoming>, Response = Response<B>>,
    S::Future: 'static,
    S::Error: Into<BoxError>,
    B: Body + 'static,
    B::Error: Into<BoxError>,
    E: Http2ServerConnExec<TrackedFuture<S::Future>, TrackedBody<B>>,
{
    let (reader, writer) = connection.into_halves();
    writer.set_min_send_rate(options.min_send_rate);
    let (draining, close) = (reader.draining(), reader.close_handle());
    let clock = reader.suspend_read_timeout();
    let mut stream = ByteStream::from_halves(reader, writer);
    let http2 = match options.versions {
        HttpVersions::Http1 => false,
        HttpVersions::Http2 => true,
        HttpVersions::Auto => match begins_with_preface(&mut stream, &options).await? {
            Some(found) => found,
            // It has asked for nothing.
            None => return stream.shutdown().await,
        },
    };
    let requests = Arc::new(Requests::default());
    let answers = Arc::clone(&requests);
    let clocks = Clocks::new(Arc::clone(&requests), options, http2, draining);
    let io = ServerIo::new(stream, Arc::clone(&requests), !http2, options.half_close, clock);
    let service = Tracked { service, requests };
    if !http2 {
        let connection = pin!(http1_of(&options).serve_connection(io, service).with_upgrades());
        // Dropped before the connection, whose drop sends a FIN.
        let mut cut = Cut { requests: answers, close: Some(close) };
        drive(clocks, connection).await?;
        cut.close = None;
        return Ok(());
    }
    if !may_speak_http2() {
        let text = "serve_http speaks HTTP/2 on reactor threads only; serve_http_send does everywhere";
        return Err(io::Error::new(io::ErrorKind::Unsupported, text));
    }
    drive(clocks, pin!(http2_of(&options, executor).serve_connection(io, service))).await
}

/// Reads until it is clear how the connection begins. `None`: it ended, or the runtime drains, before the first byte, or
/// nothing came.
async fn begins_with_preface<R, W>(stream: &mut ByteStream<R, W>, options: &HttpOptions) -> io::Result<Option<bool>>
where
    R: Receive,
    W: Transmit,
{
    let input = &mut stream.input;
    let first = within(options.idle_timeout, input.read_idle()).await.transpose()?;
    if first.is_none_or(|result| result.buffer.is_empty()) {
        return Ok(None);
    }
    let deadline = Instant::now().checked_add(options.head_timeout).filter(|_| !options.head_timeout.is_zero());
    loop {
        let mut start = [0; PREFACE.len()];
        let held = input.buffer();
        let n = held.copy_to(&mut start);
        let all = held.len();
        if start[..n] != PREFACE[..n] {
            return Ok(Some(false));
        }
        if n == PREFACE.len() {
            return Ok(Some(true));
        }
        // What is left belongs to a part of the preface: hyper says what is wrong with it.
        input.advance_to(0, all);
        let left = deadline.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()).max(MOMENT));
        match within(left, input.read()).await.transpose()? {
            Some(result) if !result.end => {}
            _ => {
                // hyper is to look at all of it.
                input.advance(0);
                return Ok(Some(false));
            }
        }
    }
}

/// `None` when it took longer than `limit`; zero is no limit.
async fn within<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
    if limit.is_zero() {
        return Some(future.await);
    }
    time::timeout(limit, future).await.ok()
}

fn http1_of(options: &HttpOptions) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        // See `server_io`: a client's early end is seen there.
        .half_close(true)
        .keep_alive(options.keep_alive)
        .max_headers(options.max_headers)
        .max_header_size(options.max_head)
        .max_buf_size(MAX_BUFFERED.max(options.max_head + 1))
        // The clocks here take its place.
        .header_read_timeout(None);
    builder
}

fn http2_of<E: Clone>(options: &HttpOptions, executor: E) -> http2::Builder<E> {
    let mut builder = http2::Builder::new(executor);
    builder
        .timer(HttpTimer)
        .max_concurrent_streams(options.max_streams)
        // Of each stream. hyper's own 400 KiB make 50 MiB of a client that asks for `max_streams` bodies and reads none.
        .max_send_buf_size(MAX_BUFFERED)
        .max_header_list_size(u32::try_from(options.max_head).unwrap_or(u32::MAX))
        .max_pending_accept_reset_streams(options.max_pending_resets)
        .max_local_error_reset_streams(options.max_local_resets);
    if !options.idle_timeout.is_zero() {
        // A client that is gone without a FIN, in the middle of a request.
        builder.keep_alive_interval(options.idle_timeout);
    }
    builder
}

/// hyper's two kinds of connection.
trait Driven {
    fn poll_driven(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>>;
    fn end_gracefully(self: Pin<&mut Self>);
}

macro_rules! driven {
    ($([$($extra:tt)*] $connection:ty),*) => { $(
        impl<R, W, S, B $($extra)*> Driven for $connection
        where
            R: Receive,
            W: Transmit,
            S: Service<Request<Incoming>, Response = Response<B>>,
            S::Future: 'static,
            S::Error: Into<BoxError>,
            B: Body + 'static,
            B::Error: Into<BoxError>,
        {
            fn poll_driven(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
                self.poll(cx)
            }

            fn end_gracefully(self: Pin<&mut Self>) {
                self.graceful_shutdown();
            }
        }
    )* };
}

driven! {
    [] http1::UpgradeableConnection<ServerIo<R, W>, Tracked<S>>,
    [, E: Http2ServerConnExec<TrackedFuture<S::Future>, TrackedBody<B>>] http2::Connection<ServerIo<R, W>, Tracked<S>, E>
}

async fn drive<D: Driven>(mut clocks: Clocks, mut connection: Pin<&mut D>) -> io::Result<()> {
    poll_fn(|cx| {
        loop {
            // Before hyper: an answer that is ready in this very poll must say that it is the last one.
            if clocks.drains_now() {
                connection.as_mut().end_gracefully();
            }
            if let Poll::Ready(result) = connection.as_mut().poll_driven(cx) {
                return Poll::Ready(result.map_err(told));
            }
            match clocks.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Next::Again) => {}
                Poll::Ready(Next::EndGracefully) => connection.as_mut().end_gracefully(),
                Poll::Ready(Next::Drop) => return Poll::Ready(Ok(())),
            }
        }
    })
    .await
}

/// Resets a connection that ends in the middle of an answer (HTTP/1): behind a FIN a body without a length looks whole.
/// HTTP/2 has an end of its own for every body.
struct Cut {
    requests: Arc<Requests>,
    /// `None`: it came to its end.
    close: Option<CloseHandle>,
}

impl Drop for Cut {
    fn drop(&mut self) {
        if let Some(close) = self.close.take()
            && self.requests.is_answering()
        {
            close.reset();
        }
    }
}

/// hyper's error as one that says what the client or the service did.
fn told(error: hyper::Error) -> io::Error {
    let source = error.source().and_then(|source| source.downcast_ref::<io::Error>());
    let kind = match source {
        Some(source) => source.kind(),
        None if error.is_incomplete_message() => io::ErrorKind::UnexpectedEof,
        None if error.is_parse() => io::ErrorKind::InvalidData,
        None if error.is_timeout() => io::ErrorKind::TimedOut,
        None => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}
