//! What all clones of a hub share, and how members come and go.
//!
//! State: the roster, the counters, the state of the close. Thread class: any thread. Laws: 10 (members, and with them
//! writers, are dropped without any lock), 12 (a hub that goes lets go of its members).

use crate::hub::counters::Counters;
use crate::hub::farewell::{self, Closing};
use crate::hub::list::Snapshot;
use crate::hub::member::{Inner, Member};
use crate::hub::options::HubOptions;
use crate::hub::roster::{Ended, NoEntry, Roster};
use crate::quiet::wake_all;
use bytes::Bytes;
use epoxide::{CloseReason, SharedWriter};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What of a roster's end is the caller's.
type End = Ended<SharedWriter, Arc<Inner>>;

/// Why nobody joined.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// hub.close(std::time::Duration::from_secs(1)).await;
/// assert_eq!(hub.join(writer).err(), Some(JoinError::Closed));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum JoinError {
    /// The hub is closed.
    Closed,
    /// [`HubOptions::members`] have joined.
    Full,
    /// The connection has ended already, for this reason.
    Ended(CloseReason),
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("cannot join: the hub is closed"),
            Self::Full => f.write_str("cannot join: the hub is full (HubOptions::members)"),
            Self::Ended(reason) => write!(f, "cannot join: the connection has ended: {reason}"),
        }
    }
}

impl std::error::Error for JoinError {}

impl From<JoinError> for io::Error {
    /// `NotConnected`, `QuotaExceeded`, or the kind of the connection's own end.
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Closed => Self::new(io::ErrorKind::NotConnected, error),
            JoinError::Full => Self::new(io::ErrorKind::QuotaExceeded, error),
            JoinError::Ended(reason) => Self::new(Self::from(reason).kind(), error),
        }
    }
}

pub(super) struct Core {
    pub(super) options: HubOptions,
    pub(super) roster: Roster<SharedWriter, Arc<Inner>>,
    pub(super) counters: Arc<Counters>,
    pub(super) closing: Arc<Closing>,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("members", &self.roster.len()).field("closed", &self.roster.is_closed()).finish()
    }
}

impl Core {
    pub(super) fn new(options: HubOptions) -> io::Result<Self> {
        options.check()?;
        let roster = Roster::new(options.members);
        Ok(Self { options, roster, counters: Arc::default(), closing: Arc::default() })
    }

    pub(super) fn join(self: &Arc<Self>, writer: SharedWriter) -> Result<Member, JoinError> {
        let mut is_new = true;
        let joined = self.roster.join(
            writer.clone(),
            |number| Inner::new(number, writer, self),
            |member| {
                is_new = false;
                member.count_handle();
            },
        );
        let inner = match joined {
            Ok(inner) => inner,
            Err(NoEntry::Closed) => return Err(JoinError::Closed),
            Err(NoEntry::Full) => return Err(JoinError::Full),
        };
        let member = Member::counted(inner.clone());
        if is_new {
            self.counters.joined.fetch_add(1, Ordering::Relaxed);
            if !inner.watch_end() {
                let reason = inner.writer.close_reason().unwrap_or(CloseReason::Local);
                return Err(JoinError::Ended(reason));
            }
        }
        Ok(member)
    }

    /// Ends a membership. True once for each.
    pub(super) fn remove(&self, member: &Arc<Inner>) -> bool {
        self.remove_if(member, || true)
    }

    pub(super) fn remove_if(&self, member: &Arc<Inner>, really: impl FnOnce() -> bool) -> bool {
        let Some(entry) = self.roster.leave(member.id.0, &member.writer, really) else { return false };
        self.has_left(member);
        drop(entry);
        true
    }

    fn has_left(&self, member: &Arc<Inner>) {
        member.set_gone();
        member.unwatch();
        self.counters.left.fetch_add(1, Ordering::Relaxed);
    }

    /// A broadcast is over.
    pub(super) fn end(&self, number: u64) {
        let ended = self.roster.end(number);
        self.settle(ended);
    }

    /// Closes, once: later calls change nothing.
    pub(super) fn close(&self, within: std::time::Duration) {
        self.closing.limit(within);
        let ended = self.roster.close();
        self.settle(ended);
    }

    fn settle(&self, ended: End) {
        let Ended { wakers, last } = ended;
        wake_all(wakers);
        if let Some((members, by_key)) = last {
            drop(by_key);
            self.say_goodbye(&members);
        }
    }

    /// Nobody else comes or goes any more: these are all that are left.
    fn say_goodbye(&self, members: &Snapshot<Arc<Inner>>) {
        let members: Vec<_> = members.iter().flat_map(|chunk| chunk.iter()).map(|(_, member)| member).collect();
        let within = self.closing.begin(members.len());
        let partings = members.into_iter().map(|member| {
            self.has_left(member);
            self.closing.clone().parting(member.clone())
        });
        farewell::part(partings, &self.options.goodbye, within);
        self.closing.all_begun();
    }

    /// A slow member goes, and its connection with it.
    pub(super) fn disconnect(&self, member: &Arc<Inner>, last_words: Bytes) {
        if !self.remove(member) {
            return;
        }
        self.counters.disconnected.fetch_add(1, Ordering::Relaxed);
        if let Some(backlog) = &member.backlog {
            backlog.end();
        }
        let parting = Arc::new(Closing::default()).parting(member.clone());
        farewell::part([parting], &last_words, self.options.grace);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // Nothing is under way: a broadcast holds its hub.
        if let Some((members, by_key)) = self.roster.close().last {
            drop(by_key);
            members.iter().flat_map(|chunk| chunk.iter()).for_each(|(_, member)| self.has_left(member));
        }
        self.closing.begin(0);
        self.closing.all_begun();
    }
}

/// How many frames a broadcast counted for its hub.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    if n > 0 {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
