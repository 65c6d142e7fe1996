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
//! None is on by default, and each only adds impls: `futures-io` and `tokio` the IO traits of those crates (no tokio
//! runtime).

mod byte_stream;
mod compat;
mod control;
mod duplex;
mod held;
pub mod hub;
mod read_more;
mod read_slice;
mod reader;
mod sequence;
pub mod transport;
mod writer;

pub use byte_stream::{ByteStream, FlushStream};
pub use control::PipeHandle;
pub use duplex::{DualPipe, Duplex};
pub use hub::Hub;
pub use read_slice::ReadSlice;
pub use reader::{DEFAULT_MAX_HELD, PipeReader, ReadPipe, ReadResult};
pub use sequence::{Sequence, Slices};
pub use writer::{DEFAULT_WRITE_HIGH_WATER, FlushPipe, FlushResult, PipeWriter, ShutdownPipe, WritePipe};
