//! What a hub may hold, and what happens to members that do not keep up.
//!
//! State: none. Thread class: pure. Law 16: every limit has a name, and a value that cannot work is refused by it.

use crate::hub::member::MemberId;
use bytes::Bytes;
use epoxide::Refusal;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How a hub is set up.
///
/// [`sse`](Self::sse) and [`websocket`](Self::websocket) are the usual ones; change fields with struct update syntax.
///
/// ```
/// use epoxide_pipes::Hub;
/// use epoxide_pipes::hub::{HubOptions, Policy};
///
/// let options = HubOptions { policy: Policy::DropOldest, sequenced: true, ..HubOptions::default() };
/// assert!(Hub::new(options.clone()).is_ok());
/// assert!(Hub::new(HubOptions { members: 0, ..options }).is_err());
/// ```
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// What happens to a frame that a member has no room for. Default [`Policy::DropNewest`].
    pub policy: Policy,
    /// All members see all broadcasts in the same order, whichever threads they come from. Frames then wait in the hub
    /// ([`backlog`](Self::backlog)). Not to be had with [`Policy::Block`]. Default false: the order is kept for each
    /// publisher.
    pub sequenced: bool,
    /// What may wait in the hub for one member; in use with `sequenced`, [`Policy::DropOldest`] and [`Policy::Latest`]. Otherwise frames
    /// wait in the member's writer, and its [`SharedLimits`](epoxide::SharedLimits) are the limits.
    pub backlog: BacklogLimits,
    /// Bytes of payloads that some member has not taken yet, each counted once however many members it waits for. Past it
    /// broadcasts are refused. A single payload may be larger if no other is held. Default 64 MiB.
    pub bytes: usize,
    /// Members. Default 65 536.
    pub members: usize,
    /// What [`Hub::close`](crate::Hub::close) sends to everybody behind all that waits. Empty, the default: nothing.
    pub goodbye: Bytes,
    /// How long a member that is disconnected for being slow may take for what waits, before it is reset. Default 5 s.
    pub grace: Duration,
}

impl Default for HubOptions {
    fn default() -> Self {
        Self {
            policy: Policy::DropNewest,
            sequenced: false,
            backlog: BacklogLimits::default(),
            bytes: 64 * 1024 * 1024,
            members: 65_536,
            goodbye: Bytes::new(),
            grace: Duration::from_secs(5),
        }
    }
}

impl HubOptions {
    /// For Server-Sent Events: a slow member misses whole events, its stream stays well formed.
    pub fn sse() -> Self {
        Self::default()
    }

    /// For WebSocket: a slow member is disconnected with 1013 (try again later), a close says 1001 (going away).
    pub fn websocket() -> Self {
        Self { policy: Policy::Disconnect(websocket_close(1013)), goodbye: websocket_close(1001), ..Self::default() }
    }

    pub(super) fn check(&self) -> io::Result<()> {
        let BacklogLimits { frames, bytes, .. } = self.backlog;
        let name = if frames == 0 {
            "backlog.frames: 0, so nothing could wait; use at least 1"
        } else if bytes == 0 {
            "backlog.bytes: 0, so nothing could wait; use at least 1"
        } else if self.bytes == 0 {
            "bytes: 0, so no payload could be held; use at least 1"
        } else if self.members == 0 {
            "members: 0, so nobody could join; use at least 1"
        } else if self.sequenced && matches!(self.policy, Policy::Block(_)) {
            "sequenced with Policy::Block: a frame that came late would break the order; use another policy"
        } else if matches!(self.policy, Policy::Block(Duration::ZERO)) {
            "policy: Block with no time to wait; use Policy::DropNewest"
        } else {
            return Ok(());
        };
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("HubOptions::{name}")))
    }

    /// Do frames wait in the hub?
    pub(super) fn keeps_backlogs(&self) -> bool {
        self.sequenced || matches!(self.policy, Policy::DropOldest | Policy::Latest)
    }
}

/// What may wait in the hub for one member.
///
/// ```
/// use epoxide_pipes::hub::{BacklogLimits, HubOptions};
///
/// let short = BacklogLimits { frames: 16, ..BacklogLimits::default() };
/// let options = HubOptions { sequenced: true, backlog: short, ..HubOptions::default() };
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BacklogLimits {
    /// Frames. Default 1024.
    pub frames: usize,
    /// Bytes. Default 1 MiB. A single frame may be larger if nothing else waits.
    pub bytes: usize,
    /// Age of the oldest frame, as exact as [`SharedLimits::age`](epoxide::SharedLimits::age). Default 10 s; zero is off.
    pub age: Duration,
}

impl Default for BacklogLimits {
    fn default() -> Self {
        Self { frames: 1024, bytes: 1024 * 1024, age: Duration::from_secs(10) }
    }
}

/// What happens when a member has no room for a frame. Frames are dropped whole, and never one whose first byte is out.
///
/// With a backlog there is also no room ([`Refusal::Frames`]) while the member's reactor takes no posts and a publisher
/// works off what waits in its place.
///
/// ```
/// use epoxide_pipes::hub::{HubOptions, Policy, websocket_close};
///
/// let options = HubOptions { policy: Policy::Disconnect(websocket_close(1013)), ..HubOptions::default() };
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub enum Policy {
    /// The member misses this frame.
    DropNewest,
    /// The member misses the oldest frames that wait, as many as it takes.
    DropOldest,
    /// As `DropOldest`; and of frames with the same [key](crate::hub::Message::key) only the latest waits.
    Latest,
    /// The member is removed and its connection ends: this frame (empty: none) goes out behind what waits, then FIN; or a
    /// reset after [`HubOptions::grace`].
    Disconnect(Bytes),
    /// After all others were served, those without room are waited for, this long together; then they miss the frame.
    /// [`Hub::broadcast`](crate::Hub::broadcast) does not wait on threads of a runtime, nor on those that have entered one;
    /// [`Hub::broadcast_paced`](crate::Hub::broadcast_paced) waits anywhere.
    Block(Duration),
    /// The function decides, after all members were tried, without any lock of the hub. A panic in it counts as
    /// [`Verdict::Disconnect`].
    Ask(Arc<dyn Fn(&Slow) -> Verdict + Send + Sync>),
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DropNewest => f.write_str("DropNewest"),
            Self::DropOldest => f.write_str("DropOldest"),
            Self::Latest => f.write_str("Latest"),
            Self::Disconnect(frame) => f.debug_tuple("Disconnect").field(frame).finish(),
            Self::Block(within) => f.debug_tuple("Block").field(within).finish(),
            Self::Ask(_) => f.write_str("Ask(..)"),
        }
    }
}

/// A member that has no room for a frame, as [`Policy::Ask`] sees it.
///
/// ```
/// use epoxide_pipes::hub::{Policy, Slow, Verdict};
/// use std::sync::Arc;
///
/// let policy = Policy::Ask(Arc::new(|slow: &Slow| {
///     if slow.queued > 1 << 20 { Verdict::Disconnect } else { Verdict::Keep }
/// }));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Slow {
    /// Which.
    pub member: MemberId,
    /// Which limit.
    pub why: Refusal,
    /// Bytes that wait for it.
    pub queued: usize,
}

/// What becomes of a slow member. It misses the frame in any case.
///
/// ```
/// use epoxide_pipes::hub::{Policy, Verdict};
///
/// let once_and_out = Policy::Ask(std::sync::Arc::new(|_| Verdict::Remove));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Verdict {
    /// It stays.
    Keep,
    /// It is a member no more; its connection goes on.
    Remove,
    /// It is removed and its connection ends, as with [`Policy::Disconnect`] without a frame.
    Disconnect,
}

/// A WebSocket close frame (RFC 6455, 5.5.1) as a server sends it, with this code and no text.
pub fn websocket_close(code: u16) -> Bytes {
    let [high, low] = code.to_be_bytes();
    Bytes::copy_from_slice(&[0x88, 2, high, low])
}
