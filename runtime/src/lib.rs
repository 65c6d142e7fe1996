//! A runtime for async servers on Linux: one reactor per core on epoll, and connections that any thread may read,
//! write, flush and close directly.
//!
//! The system call is made on the caller's own thread. Only a read that finds nothing, or a flush that the socket
//! refuses, waits on the reactor; a compare-and-swap decides who touches the socket next.
//!
//! ```no_run
//! use epoxide::{Connection, Runtime};
//!
//! fn main() -> std::io::Result<()> {
//!     let mut server = Runtime::builder();
//!     server.listen("127.0.0.1:8080", |mut conn: Connection| async move {
//!         while let Some(data) = conn.read_idle().await? {
//!             conn.stage(&data)?;
//!             conn.flush().await?;
//!         }
//!         Ok::<(), std::io::Error>(())
//!     });
//!     server.run()
//! }
//! ```
//!
//! # The walk out
//! `Connection::flush` (`conn/write_ops`) -> the flush word's owner loop (`conn/drive`) -> `buf/outgoing` ->
//! `sys/io`; only on EAGAIN the reactor (`reactor/dispatch` at the writable edge, or `reactor/inbox` for a flush out of
//! budget).
//!
//! # The walk in
//! `reactor/turn` -> `reactor/dispatch` -> `reactor/table` -> the read word (`conn/read_word`) -> the run queue
//! (`exec/local`) -> the handler's `read`, which makes the recv (`conn/read_half`, `sys/io`).
//!
//! # Rooms and arrows
//! `sys, sync, id, error <- buf, exec, time <- conn <- reactor <- workers <- runtime`. The laws that the files cite by
//! number are in `docs/LAWS.md` of the repository.
//!
//! # Features
//! `tracing` (off by default) sends what happens to connections, listeners, tasks and reactors as events of the target
//! `epoxide` to the subscriber of the crate `tracing`. It changes nothing else.
//!
//! unsafe rooms: sys

mod buf;
mod config;
mod conn;
mod error;
mod exec;
mod id;
mod reactor;
mod runtime;
mod stats;
mod sync;
mod sys;
pub mod time;
mod trace;

/// Waiting for signals as a future.
pub mod signal {
    pub use crate::runtime::signal::{SignalKind, Signals, ctrl_c};
}
pub mod workers;

/// What a protocol between a connection and its user stands on. For `epoxide-tls`: it may change with any version.
#[doc(hidden)]
pub mod layer {
    pub use crate::conn::layer::{Layer, Queue, is_record_ahead, take_step};
    pub use crate::conn::send_file::check_range;
    pub use crate::sys::ktls::{KernelCipher, KernelKeys, NewKeys};
}

/// The fault seam, for this repository's own chaos tests: with `--cfg epoxide_chaos` only.
#[cfg(epoxide_chaos)]
#[doc(hidden)]
pub mod chaos {
    pub use crate::sys::chaos::{Call, EventFault, Fault, Faults, install, now, outstanding, skip};
}

#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub use buf::RecvBuf;
pub use config::ReactorConfig;
pub use conn::address::Address;
pub use conn::async_fd::{AsyncFd, NotReady, Ready, ReadyGuard};
pub use conn::connect::{Connect, connect, connect_with};
pub use conn::connect_addr::{ConnectAddr, ConnectOptions};
pub use conn::connection::Connection;
pub use conn::deadline::ReadTimeoutSuspended;
pub use conn::ending::CloseHandle;
pub use conn::read_half::ReadHalf;
pub use conn::read_ops::{Read, ReadMore, ReadSlice};
pub use conn::rehome::{Rehome, RehomeError};
pub use conn::send_file::SendFile;
pub use conn::shared::{Refusal, SendOutcome, SharedLimits, SharedWriter};
pub use conn::shared_wait::{Closed, SharedFlush};
pub use conn::write_half::{Reserved, WriteHalf};
pub use conn::write_ops::{Flush, SendAll, Shutdown};
pub use error::PostError::{Full, Stopped};
pub use error::{Clock, CloseReason, PostError, StagedLimit};
pub use exec::draining::Draining;
pub use exec::handle::ReactorHandle;
pub use exec::join::{AbortHandle, JoinError, JoinHandle, PanicPayload};
pub use exec::spawn::{Outcome, YieldNow, spawn_local, yield_now};
pub use id::ListenerId;
pub use reactor::stall::{Stall, StalledBy};
pub use runtime::builder::{Builder, OnThisThread, OnThreads};
pub use runtime::listen::{ListenAddr, ListenOptions};
pub use runtime::listener::{Accept, Incoming, Listener};
pub use runtime::running::{Runtime, ShutdownReport};
pub use runtime::single::{Reactor, block_on};
pub use stats::Stats;
