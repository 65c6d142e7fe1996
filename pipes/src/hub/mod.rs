//! A broadcast hub: one frame to many connections, encoded once and shared, sent from any thread.
//!
//! ```
//! use epoxide::{Connection, Runtime, SharedLimits};
//! use epoxide_pipes::hub::{Hub, HubOptions};
//! use std::io;
//!
//! # fn main() -> io::Result<()> {
//! let hub = Hub::new(HubOptions::sse())?;
//! let joined = hub.clone();
//! let mut server = Runtime::builder();
//! server.listen("127.0.0.1:0", move |conn: Connection| {
//!     let hub = joined.clone();
//!     async move {
//!         let (mut reader, writer) = conn.into_shared(SharedLimits::default());
//!         let _member = hub.join(writer)?; // leaves when dropped, or when the connection ends
//!         while reader.read_idle().await?.is_some() {}
//!         io::Result::Ok(())
//!     }
//! });
//! let server = server.build()?;
//! # use std::io::Read;
//! # let mut client = std::net::TcpStream::connect(server.local_addrs()[0])?;
//! # while hub.is_empty() { std::thread::yield_now(); }
//! let tally = hub.broadcast("data: hello\n\n").expect("the hub is open");
//! assert_eq!((tally.sent, tally.refused), (1, 0));
//! # let mut got = [0; 13];
//! # client.read_exact(&mut got)?;
//! # assert_eq!(&got, b"data: hello\n\n");
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! - **Whole frames in order.** A member gets the frames that it has room for, each publisher's in the order of its calls.
//!   With [`HubOptions::sequenced`] all members see all publishers' frames in one order.
//! - **No copy.** The frame is in memory once, and a broadcast takes a snapshot of the members by one reference. Frames up
//!   to 256 bytes are copied behind each other in each connection, which is cheaper.
//! - **Joins and leaves.** A broadcast that begins after [`Hub::join`] returned reaches the member; none that begins after
//!   [`Member::leave`] returned does. A connection that ends is removed at once, without a send.
//! - **A slow member costs the others nothing**: no wait and no system call. What it may have waiting is limited in frames,
//!   bytes and age, and [`Policy`] says what happens beyond.
//! - **No claim of delivery.** [`Tally`] says which frames are in the kernel and which wait.
//!
//! Joins, leaves and broadcasts are legal anywhere: on reactors, on workers, on threads of your own, inside
//! [`Policy::Ask`]. State: see `core`. Laws: 3, 8, 10, 12, 16.

mod backlog;
mod core;
mod counters;
mod dispatch;
mod farewell;
mod list;
mod member;
mod message;
mod options;
mod roster;
mod sync;
mod watch;

pub use self::core::JoinError;
pub use counters::HubStats;
pub use dispatch::Paced;
pub use farewell::{CloseHub, CloseReport};
pub use member::{Leave, Member, MemberId};
pub use message::{BroadcastError, Message, Tally};
pub use options::{BacklogLimits, HubOptions, Policy, Slow, Verdict, websocket_close};

use self::core::Core;
use dispatch::Round;
use epoxide::SharedWriter;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A broadcast hub. Cheap to clone; see the [module's text](crate::hub). Dropping the last clone lets go of the members, whose
/// connections go on.
///
/// ```
/// use epoxide_pipes::hub::{Hub, HubOptions};
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// let hub = Hub::new(HubOptions::default())?;
/// let member = hub.join(writer)?;
/// let tally = hub.broadcast("hello")?;
/// assert_eq!(tally.sent + tally.queued, 1);
/// member.writer().flush().await?;
/// # let mut got = [0; 5];
/// # peer.read_exact(&mut got)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Hub {
    core: Arc<Core>,
}

impl Hub {
    /// An empty hub.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] names the option that cannot work.
    pub fn new(options: HubOptions) -> io::Result<Self> {
        Ok(Self { core: Arc::new(Core::new(options)?) })
    }

    /// Makes a connection a member. Every broadcast that begins from now on reaches it. Joining with a clone of a writer
    /// that has joined gives a handle of the same membership.
    ///
    /// The hub holds a clone of the writer while the membership lasts. A handler that neither reads nor keeps the
    /// [`Member`] should [`detach`](Member::detach) it.
    ///
    /// # Errors
    /// The hub is closed or full, or the connection has ended.
    pub fn join(&self, writer: SharedWriter) -> Result<Member, JoinError> {
        self.core.join(writer)
    }

    /// Sends a frame to all members, on this thread, without waiting (but see [`Policy::Block`]). All are tried, whatever
    /// happens to some. On a reactor it holds the loop for about a system call a member: with hundreds of members use
    /// [`broadcast_paced`](Self::broadcast_paced) there.
    ///
    /// # Errors
    /// The hub is closed, or members have yet to take too much; the frame comes back.
    pub fn broadcast(&self, message: impl Into<Message>) -> Result<Tally, BroadcastError> {
        Round::begin(&self.core, message.into()).map(Round::run)
    }

    /// The same in turns of 256 members: the other tasks of the thread have theirs between. It begins with the first poll.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Cancel safety
    /// Dropped after its first poll it serves the rest of the members at once, on the dropping thread: none misses a frame
    /// that others have.
    pub fn broadcast_paced(&self, message: impl Into<Message>) -> Paced {
        Paced::new(self.core.clone(), message.into())
    }

    /// Closes the hub: from now on joins and broadcasts are errors. Once no broadcast is under way every member gets
    /// [`HubOptions::goodbye`] behind what waits for it, then FIN; a reset when that takes longer than `within`, which
    /// counts from the first call. Later calls wait for the same close.
    ///
    /// # Cancel safety
    /// It takes effect with the call; the result need not be awaited.
    pub fn close(&self, within: Duration) -> CloseHub {
        self.core.close(within);
        CloseHub::new(self.core.closing.clone())
    }

    /// Has [`close`](Self::close) been called?
    pub fn is_closed(&self) -> bool {
        self.core.roster.is_closed()
    }

    /// Members.
    pub fn len(&self) -> usize {
        self.core.roster.len()
    }

    /// Is nobody a member?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The counters.
    pub fn stats(&self) -> HubStats {
        self.core.counters.snapshot(self.len())
    }
}
