//! What a broadcast sends, what it came to, and why there was none.
//!
//! State: none. Thread class: pure.

use crate::hub::member::MemberId;
use bytes::Bytes;
use std::fmt;
use std::io;

/// What a broadcast sends, and to whom. Made from anything that [`Bytes`] is made from.
///
/// ```
/// use epoxide_pipes::hub::Message;
///
/// // With `Policy::Latest` a newer price takes the place of one that still waits.
/// let price = Message::new("42.10").key(7);
/// ```
#[derive(Clone, Debug)]
pub struct Message {
    pub(super) frame: Bytes,
    pub(super) key: Option<u64>,
    pub(super) except: Option<MemberId>,
}

impl Message {
    /// One frame, to everybody.
    pub fn new(frame: impl Into<Bytes>) -> Self {
        Self { frame: frame.into(), key: None, except: None }
    }

    /// With [`Policy::Latest`](super::Policy::Latest): takes the place of a frame of the same key that waits still.
    pub fn key(mut self, key: u64) -> Self {
        self.key = Some(key);
        self
    }

    /// Not to this member.
    pub fn except(mut self, member: MemberId) -> Self {
        self.except = Some(member);
        self
    }
}

impl<T: Into<Bytes>> From<T> for Message {
    fn from(frame: T) -> Self {
        Self::new(frame)
    }
}

/// What a broadcast came to. `sent` and `queued` say where a frame is, not that a peer has seen it.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// let tally = hub.broadcast("nobody is here")?;
/// assert_eq!((tally.number, tally.sent), (1, 0));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Tally {
    /// Counts the hub's broadcasts from 1; with [`HubOptions::sequenced`](crate::hub::HubOptions::sequenced) it is the order that all members see.
    pub number: u64,
    /// Members whose kernel buffer has all of it.
    pub sent: usize,
    /// Members for whom it waits.
    pub queued: usize,
    /// Members that miss it because a limit was reached; the policy says what became of them.
    pub refused: usize,
    /// Members whose connection turned out to have ended.
    pub ended: usize,
}

/// Why there was no broadcast; the frame comes back.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// hub.close(std::time::Duration::from_secs(1)).await;
/// let error = hub.broadcast("too late").unwrap_err();
/// assert_eq!(&error.into_inner()[..], b"too late");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BroadcastError {
    /// The hub is closed.
    Closed(Bytes),
    /// Members have yet to take [`HubOptions::bytes`](crate::hub::HubOptions::bytes) of payloads.
    Full(Bytes),
}

impl BroadcastError {
    /// The frame.
    pub fn into_inner(self) -> Bytes {
        match self {
            Self::Closed(frame) | Self::Full(frame) => frame,
        }
    }
}

impl fmt::Debug for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "Closed(..)",
            Self::Full(_) => "Full(..)",
        })
    }
}

impl fmt::Display for BroadcastError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed(_) => "cannot broadcast: the hub is closed",
            Self::Full(_) => "cannot broadcast: members have yet to take too many bytes (HubOptions::bytes)",
        })
    }
}

impl std::error::Error for BroadcastError {}

impl From<BroadcastError> for io::Error {
    /// `NotConnected` or `QuotaExceeded`.
    fn from(error: BroadcastError) -> Self {
        let kind = match error {
            BroadcastError::Closed(_) => io::ErrorKind::NotConnected,
            BroadcastError::Full(_) => io::ErrorKind::QuotaExceeded,
        };
        Self::new(kind, error)
    }
}
