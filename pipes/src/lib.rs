//! Buffer pipes, stream adapters and a broadcast hub on epoxide connections.
//!
//! | type | for |
//! |---|---|
//! | [`PipeReader`], [`PipeWriter`] | parsers and protocols: received bytes as one view, consumed and examined by marks; staged writes |
//! | [`Duplex`] | both, of one connection |
//! | [`ByteStream`] | code that reads and writes slices; with the features below, code written for those traits |
//! | [`Hub`] | one message to many connections |
//!
//! ```
//! use epoxide::{Connection, Runtime};
//! use epoxide_pipes::Duplex;
//! # use std::io::{Read, Write};
//! # use std::net::{Shutdown, TcpStream};
//! # use std::time::Duration;
//!
//! # fn main() -> std::io::Result<()> {
//! let mut server = Runtime::builder();
//! server.listen("127.0.0.1:0", |conn: Connection| async move {
//!     let (mut input, mut output) = Duplex::new(conn).into_parts();
//!     // One line of at most 1024 bytes, within 10 s, however it is cut.
//!     let line = input.read_until(b"\n", 1024, Duration::from_secs(10)).await?.buffer.to_vec();
//!     output.stage(&line)?;
//!     output.flush().await?;
//!     std::io::Result::Ok(())
//! });
//! let runtime = server.build()?;
//! # let mut client = TcpStream::connect(runtime.local_addrs()[0])?;
//! # client.write_all(b"hello\n")?;
//! # client.shutdown(Shutdown::Write)?;
//! # let mut back = String::new();
//! # client.read_to_string(&mut back)?;
//! # assert_eq!(back, "hello\n");
//! # Ok(())
//! # }
//! ```
//!
//! Everything works from any thread, over TCP, unix sockets and TLS alike: the types stand on the traits of
//! [`transport`], which connections implement. One task reads and one writes at a time (`&mut self`); a [`PipeHandle`], a
//! close handle and a hub are for everybody.
//!
//! # The walk out: from here to a byte on the wire
//! 1. [`PipeWriter::flush`] or a stream's write (`writer`) asks its transport,
//! 2. which for TCP is `epoxide::WriteHalf` (`transport`), for TLS the half that encrypts first;
//! 3. that claims the connection's flush word (law 3),
//! 4. and makes the `send(2)` on this thread.
//! 5. [`Hub::broadcast`] does the same for every member's shared writer (`hub/dispatch`), on the publisher's thread.
//!
//! The walk in: [`PipeReader::read`] (`reader`) shows what it holds, or receives through its transport into pooled buffers
//! (`held`) and shows them as one [`Sequence`].
//!
//! # Laws
//! Those of `epoxide` (`docs/LAWS.md` of the repository). Kept here: 3 and 8 by the hub's order and turns, 6 (a reader with
//! unconsumed bytes is busy), 10 (no user code under a lock), 12 (what waits is settled by a close), 16 (every limit is in
//! SECURITY.md).
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
mod read_now;
mod read_pipe;
mod read_slice;
mod reader;
mod sequence;
pub mod transport;
mod write_pipe;
mod writer;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

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
pub use hub::{Hub, HubOptions};
pub use read_pipe::{ReadPipe, ReadResult};
pub use read_slice::ReadSlice;
pub use reader::{DEFAULT_MAX_HELD, PipeReader};
pub use sequence::{Sequence, Slices};
pub use write_pipe::{FlushPipe, FlushResult, SendPipe, ShutdownPipe, WritePipe};
pub use writer::{DEFAULT_WRITE_HIGH_WATER, PipeWriter};
