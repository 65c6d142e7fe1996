//! What a hub did: counters, and the bytes that it holds.
//!
//! State: atomics. Thread class: any thread. Law 16 (everything is counted).

use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A snapshot of a hub's counters. `Display` prints one `name value` pair a line.
        ///
        /// ```
        /// # use epoxide_pipes::hub::*;
        /// # use std::io::Read as _;
        /// # epoxide::block_on(async {
        /// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
        /// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
        /// # let hub = Hub::new(HubOptions::default())?;
        /// let member = hub.join(writer)?;
        /// println!("{:?}", hub.stats());
        /// # std::io::Result::Ok(())
        /// # }).unwrap();
        /// ```
        #[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct HubStats {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Members that exist now.
            pub members: u64,
            /// Bytes of payloads that some member has not taken yet, each counted once.
            pub bytes: u64,
            /// The most that `bytes` ever was.
            pub bytes_most: u64,
            /// The most bytes that ever waited for one member when a frame was queued for it.
            pub queue_most: u64,
            /// The longest time that a member was behind: from a frame that had to wait to one that did not have to,
            /// as the broadcasts saw it.
            pub behind_most: Duration,
        }

        #[derive(Default, Debug)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)+
            held: AtomicUsize,
            held_most: AtomicUsize,
            queue_most: AtomicU64,
            behind_most: AtomicU64,
        }

        impl Counters {
            pub(super) fn snapshot(&self, members: usize) -> HubStats {
                HubStats {
                    $($name: self.$name.load(Relaxed),)+
                    members: members as u64,
                    bytes: self.held.load(Relaxed) as u64,
                    bytes_most: self.held_most.load(Relaxed) as u64,
                    queue_most: self.queue_most.load(Relaxed),
                    behind_most: Duration::from_millis(self.behind_most.load(Relaxed)),
                }
            }
        }

        impl fmt::Display for HubStats {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(writeln!(f, "{} {}", stringify!($name), self.$name)?;)+
                writeln!(f, "members {}", self.members)?;
                writeln!(f, "bytes {}", self.bytes)?;
                writeln!(f, "bytes_most {}", self.bytes_most)?;
                writeln!(f, "queue_most {}", self.queue_most)?;
                write!(f, "behind_most_ms {}", self.behind_most.as_millis())
            }
        }
    };
}

counters! {
    /// Memberships that began.
    joined,
    /// Memberships that ended.
    left,
    /// Broadcasts that began.
    broadcasts,
    /// Broadcasts that were refused: the hub held too many bytes, or was closed.
    broadcasts_refused,
    /// Frames that the kernel took at once.
    sent,
    /// Frames that had to wait.
    queued,
    /// Frames that a member missed because too many waited for it.
    refused_frames,
    /// Frames that a member missed because too many bytes waited for it.
    refused_bytes,
    /// Frames that a member missed because the oldest one had waited for too long.
    refused_age,
    /// Frames for members whose connection had ended.
    refused_closed,
    /// Waiting frames that gave way to a newer one (`Policy::DropOldest`, `Policy::Latest`).
    dropped_oldest,
    /// Waiting frames that gave way to a newer one of the same key (`Policy::Latest`).
    conflated,
    /// Members that were disconnected because they were slow.
    disconnected,
    /// Members that were removed because they were slow.
    removed,
    /// Panics of `Policy::Ask`'s function that were caught.
    panics,
}

impl Counters {
    pub(super) fn saw_queue(&self, bytes: usize) {
        self.queue_most.fetch_max(bytes as u64, Relaxed);
    }

    pub(super) fn saw_behind(&self, ms: u32) {
        self.behind_most.fetch_max(u64::from(ms), Relaxed);
    }

    /// Counts a payload for as long as anybody holds it. `None`: too much is held already.
    pub(super) fn hold(self: &Arc<Self>, bytes: &Bytes, limit: usize) -> Option<Bytes> {
        let before = self.held.fetch_add(bytes.len(), Relaxed);
        let now = before + bytes.len();
        if before > 0 && now > limit {
            self.held.fetch_sub(bytes.len(), Relaxed);
            return None;
        }
        self.held_most.fetch_max(now, Relaxed);
        Some(Bytes::from_owner(Payload { bytes: bytes.clone(), counters: self.clone() }))
    }
}

/// Bytes that count in their hub.
struct Payload {
    bytes: Bytes,
    counters: Arc<Counters>,
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Payload {
    fn drop(&mut self) {
        self.counters.held.fetch_sub(self.bytes.len(), Relaxed);
    }
}
