//! A runtime for async servers on Linux: one reactor per core on epoll, and connections that any thread may read,
//! write, flush and close directly.
//!
//! The system call is made on the caller's own thread. Only a read that finds nothing, or a flush that the socket
//! refuses, waits on the reactor; a compare-and-swap decides who touches the socket next.
//!
//! ```
//! use epoxide::{Connection, Runtime};
//! # use std::io::{Read, Write};
//! # use std::net::{Shutdown, TcpStream};
//!
//! # fn main() -> std::io::Result<()> {
//! let mut server = Runtime::builder();
//! server.listen("127.0.0.1:0", |mut conn: Connection| async move {
//!     // `None`: the peer is done, or the server drains.
//!     while let Some(data) = conn.read_idle().await? {
//!         conn.stage(&data)?;
//!         conn.flush().await?;
//!     }
//!     Ok::<(), std::io::Error>(())
//! });
//! let runtime = server.build()?; // `server.run()` serves until SIGINT or SIGTERM instead
//! # let mut client = TcpStream::connect(runtime.local_addrs()[0])?;
//! # client.write_all(b"echo")?;
//! # client.shutdown(Shutdown::Write)?;
//! # let mut back = String::new();
//! # client.read_to_string(&mut back)?;
//! # assert_eq!(back, "echo");
//! # Ok(())
//! # }
//! ```
//!
//! # Three kinds of thread
//! | thread | runs | waits |
//! |---|---|---|
//! | reactor | its loop and the tasks spawned on it ([`spawn_local`]), which may be `!Send` | in `epoll_wait` |
//! | worker | `Send` futures and blocking closures ([`workers`]) | parked on the pool |
//! | any other | your threads, other runtimes, a test | [`block_on`], or its own executor |
//!
//! A [`Connection`] works the same on all three. Reactor and worker threads have a current runtime; elsewhere a
//! [`ReactorHandle`] takes its place. `docs/THREADS.md` of the repository says for each operation who may call it, what a
//! dropped future leaves behind, and what wakes it.
//!
//! # The walk out: from here to a byte on the wire
//! 1. [`Connection::flush`] (`conn/connection`) is its write half's.
//! 2. `WriteHalf::poll_flush` (`conn/write_ops`) finds what was staged, in the handle's own memory,
//! 3. and claims the flush word (`conn/flush_word`, law 3): idle to flushing, one compare-and-swap.
//! 4. `sys/io` makes the `send(2)`, on this thread.
//! 5. The word goes back to idle. The kernel has every byte: ready.
//!
//! Only on `EAGAIN` does anybody wait: what is left goes to `buf/outgoing`, the owner's loop (`conn/drive`) leaves the word
//! blocked, and `reactor/dispatch` claims it at the writable edge; `reactor/inbox` does for a flush out of budget.
//!
//! # The walk in
//! 1. `reactor/turn` waits for events; `reactor/dispatch` takes each,
//! 2. finds the connection in `reactor/table` by slot and generation,
//! 3. makes its read word ready (`conn/read_word`, law 1), and who was parked there runnable:
//! 4. the run queue (`exec/local`) polls the handler's `read`,
//! 5. which makes the `recv(2)` (`conn/read_half`, `sys/io`), on the handler's thread, into a pooled buffer (`buf/pool`).
//!
//! # The laws
//! Files cite them by number; `docs/LAWS.md` has them whole. Each with two parties has a loom test and a broken twin.
//!
//! | | law | in one sentence |
//! |---|---|---|
//! | 1 | read word | who may receive next is one atomic word; whoever parks writes itself into it |
//! | 2 | drained rule | over TCP a short recv means drained, until the connection saw a FIN, a hang-up or an error |
//! | 3 | flush word | one owner sends; who comes meanwhile leaves a mark, and nothing is sent twice |
//! | 4 | one registration | added to epoll once, edge-triggered, never modified; a move makes a second one first |
//! | 5 | descriptors | the last holder closes, nobody else |
//! | 6 | letting go | what was flushed goes out, then FIN, then the peer's input is thrown away for a while; a panic resets |
//! | 7 | wake | push, fence, look at `sleeping`; the sleeper sets it, fences, and looks again at every source |
//! | 8 | budgets | tasks, accepts, reads and sends of a pass are bounded, and who yields goes to the back |
//! | 9 | foreign hands | other threads hold ids and an `Arc`, never a pointer into a reactor |
//! | 10 | user code | never runs under a lock of the runtime; a panic costs one task |
//! | 11 | ends and reasons | a FIN ends reading alone; what ended both directions is told once, first reason wins |
//! | 12 | stop | settles everything that waits, and gives back what is handed over later |
//! | 13 | pool credit | a job is queued only against a parked thread |
//! | 14 | TLS | encrypting and appending are one critical section |
//! | 15 | one kind of sender | files and kernel TLS go through the flush word too |
//! | 16 | bounds | everything is bounded and counted; SECURITY.md has the table |
//!
//! # Rooms and arrows
//! `sys, sync, id, error <- buf, exec, time <- conn <- reactor <- workers <- runtime`: a room uses those left of it.
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
    pub use crate::conn::kernel_tx::KernelTx;
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
#[doc = include_str!("../README.md")]
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
pub use conn::shared::SharedWriter;
pub use conn::shared_limits::{Refusal, SendOutcome, SharedLimits};
#[doc(hidden)]
pub use conn::shared_send::Stamp;
pub use conn::shared_wait::{Closed, SharedFlush};
pub use conn::write_futures::{Flush, SendAll, Shutdown};
pub use conn::write_half::{Reserved, WriteHalf};
pub use error::PostError::{Full, Stopped};
pub use error::{Clock, CloseReason, PostError, StagedLimit};
pub use exec::draining::Draining;
pub use exec::handle::ReactorHandle;
pub use exec::join::{AbortHandle, JoinHandle};
pub use exec::join_error::{JoinError, PanicPayload};
pub use exec::spawn::{Outcome, YieldNow, spawn_local, yield_now};
pub use id::ListenerId;
pub use reactor::stall::{Stall, StalledBy};
pub use runtime::builder::{Builder, OnThisThread, OnThreads};
pub use runtime::listen::ListenAddr;
pub use runtime::listen_options::ListenOptions;
pub use runtime::listener::{Accept, Incoming, Listener};
pub use runtime::running::{Runtime, ShutdownReport};
pub use runtime::single::{Reactor, block_on};
pub use stats::Stats;
