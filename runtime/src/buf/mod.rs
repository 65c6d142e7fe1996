//! Bytes on their way: receive buffers, and the queue of what is still to be sent.
//!
//! Job: the table of contents of the room. State owned: see the files. Thread class: see the files.
//! Laws kept: 3 (what a hand-over of the flush word moves), 16 (buffers are bounded and counted).
//!
//! Walk in: `pool.fill()` -> `recv` into its `space()` -> `commit(n)` -> [`RecvBuf`] -> dropped anywhere -> magazine.
//! Walk out: staging (`spare`, `Outgoing::stage`) -> `Outgoing::send` -> `sys::io`.
//!
//! Arrows: `buf` uses `sys` and nothing else of the crate. No `unsafe`.

mod block;
mod magazine;
pub(crate) mod outgoing;
pub(crate) mod pool;
mod record;
mod recv_buf;
mod spare;

pub(crate) use self::magazine::flush_thread_magazine;
pub(crate) use self::outgoing::{Outgoing, SendEnd, Sent};
pub(crate) use self::pool::BufPool;
pub(crate) use self::record::{Behind, Settled};
pub use self::recv_buf::RecvBuf;
