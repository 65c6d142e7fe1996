//! Buffer pipes, stream adapters and a broadcast hub on epoxide connections.
//!
//! | type | for |
//! |---|---|
//! | [`PipeReader`], [`PipeWriter`] | parsers and protocols: received bytes as one view, consumed and examined by marks; staged writes |
//! | [`Duplex`] | both, of one connection |
//! | [`ByteStream`] | code that reads and writes slices; with the features below, code written for those traits |
//! | [`Hub`] | one message to many connections |
//!
//! Everything works from any thread, over TCP, unix sockets and TLS alike: the types stand on the traits of
//! [`transport`], which connections implement.
//!
//! # Features
//! None is on by default, and none brings tokio's runtime.
//!
//! | feature | what it adds |
//! |---|---|
//! | `futures-io`, `tokio` | the IO traits of those crates |
//! | `hyper` | hyper's IO traits, timer and executors; `serve_http` for HTTP/1 and HTTP/2; `HttpClient` with its pool |
//! | `tower` | layers for timeouts, concurrency and rate; with `hyper`, `TowerService`: axum routers for `serve_http` |

mod byte_stream;
mod compat;
mod control;
mod duplex;
mod held;
pub mod hub;
mod quiet;
mod read_more;
mod read_slice;
mod reader;
mod sequence;
pub mod transport;
mod writer;

pub use byte_stream::{ByteStream, FlushStream};
#[cfg(feature = "hyper")]
pub use compat::hyper::{
    BodyTimeout, ClientBody, ClientOptions, HttpClient, HttpClientError, HttpOptions, HttpOptionsBuilder, HttpTimer,
    HttpVersions, LocalExecutor, SendExecutor, TimedBody, serve_http, serve_http_send, upgraded_stream,
};
#[cfg(feature = "tower")]
pub use compat::tower::{
    ConcurrencyLimit, ConcurrencyLimitFuture, ConcurrencyLimitLayer, LimitError, RateLimit, RateLimitLayer, Timeout,
    TimeoutFuture, TimeoutLayer,
};
#[cfg(all(feature = "hyper", feature = "tower"))]
pub use compat::tower::{TowerCall, TowerService};
pub use control::PipeHandle;
pub use duplex::{DualPipe, Duplex};
pub use hub::Hub;
pub use read_slice::ReadSlice;
pub use reader::{DEFAULT_MAX_HELD, PipeReader, ReadPipe, ReadResult};
pub use sequence::{Sequence, Slices};
pub use writer::{DEFAULT_WRITE_HIGH_WATER, FlushPipe, FlushResult, PipeWriter, SendPipe, ShutdownPipe, WritePipe};
