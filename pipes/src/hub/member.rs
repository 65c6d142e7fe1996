//! A member: its writer, what waits for it, and how it leaves.
//!
//! State: a writer, the backlog if the hub keeps one, two watches. Who touches it: every broadcast, whoever wakes the
//! watches, the handles. Thread class: any thread. Laws: 9 (a member holds its hub weakly), 10, 12.

use crate::hub::backlog::{Backlog, Displaced, Moved, NoRoom, Overflow, Sink, Took};
use crate::hub::core::Core;
use crate::hub::counters::Counters;
use crate::hub::watch::{OnEmpty, OnEnd, Watch};
use bytes::Bytes;
use epoxide::{CloseReason, Refusal, SendOutcome, SharedWriter, Stamp, spawn_local, yield_now};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};

/// Bytes that one thread moves on from a backlog before the member's reactor goes on.
const MOVE_BUDGET: usize = 256 * 1024;

/// Milliseconds of the writers' clock, so that an age here is never less than theirs; wraps after 49 days, never 0.
pub(super) fn now() -> u32 {
    Stamp::now().ms().max(1)
}

/// Names a member among all that its hub ever had.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// let member = hub.join(writer)?;
/// let others = Message::new("not to the one who said it").except(member.id());
/// assert_eq!(hub.broadcast(others)?.sent, 0);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemberId(pub(super) u64);

/// A membership. Cheap to clone; it ends with [`leave`](Self::leave), with the connection, or when the last clone is
/// dropped (unless [`detach`](Self::detach)ed). Any thread.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// let member = hub.join(writer)?;
/// let _ = member.send("for this one alone");
/// member.leave().await;
/// assert!(hub.is_empty());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub struct Member {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) id: MemberId,
    pub(super) writer: SharedWriter,
    pub(super) backlog: Option<Backlog>,
    hub: Weak<Core>,
    counters: Arc<Counters>,
    gone: AtomicBool,
    handles: AtomicUsize,
    detached: AtomicBool,
    /// Since when (ms of the hub's clock, never 0) frames have had to wait; 0: they do not.
    behind: AtomicU32,
    on_end: Watch,
    on_empty: Watch,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("id", &self.inner.id.0).field("is_member", &self.is_member()).finish()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("id", &self.id.0).finish_non_exhaustive()
    }
}

impl Member {
    /// For a handle that was counted when its membership was made or found.
    pub(super) fn counted(inner: Arc<Inner>) -> Self {
        Self { inner }
    }

    /// Names the member, for [`Message::except`](crate::hub::Message::except).
    pub fn id(&self) -> MemberId {
        self.inner.id
    }

    /// The writer that broadcasts use. What is sent on it directly goes out before frames that wait in the hub.
    pub fn writer(&self) -> &SharedWriter {
        &self.inner.writer
    }

    /// Is it a member still?
    pub fn is_member(&self) -> bool {
        !self.inner.is_gone()
    }

    /// Sends a frame to this member alone, in order with the broadcasts. The limits are those of broadcasts; no policy is
    /// applied to a frame that is refused.
    pub fn send(&self, frame: impl Into<Bytes>) -> SendOutcome {
        let frame = frame.into();
        match self.inner.offer(&frame, None, now()) {
            Ok(displaced) => {
                drop(displaced);
                match self.inner.pump(&frame, Stamp::now()) {
                    Ok(true) => SendOutcome::Sent,
                    Ok(false) => SendOutcome::Queued,
                    Err(why) => SendOutcome::Refused(why, frame),
                }
            }
            Err(why) => SendOutcome::Refused(why, frame),
        }
    }

    /// Sends a ping, a pong or the like: it overtakes what waits in the hub, and the limits do not hold it back; see
    /// [`SharedWriter::send_control`].
    pub fn send_control(&self, frame: impl Into<Bytes>) -> SendOutcome {
        self.inner.writer.send_control(frame)
    }

    /// Ends the membership, for every clone: no broadcast that begins from now on reaches the connection, which goes on.
    /// Awaiting the result waits until none that had begun before is under way either; never do that inside a broadcast.
    pub fn leave(&self) -> Leave {
        let hub = self.inner.hub.upgrade();
        if let Some(hub) = &hub {
            hub.remove(&self.inner);
        }
        let upto = hub.as_ref().map_or(0, |hub| hub.roster.latest());
        Leave { hub, upto, id: None }
    }

    /// Leaves the membership to the hub: it ends with the connection.
    pub fn detach(self) {
        self.inner.detached.store(true, Ordering::Release);
    }
}

impl Clone for Member {
    fn clone(&self) -> Self {
        self.inner.handles.fetch_add(1, Ordering::Relaxed);
        Self { inner: self.inner.clone() }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let inner = &self.inner;
        if inner.handles.fetch_sub(1, Ordering::AcqRel) == 1
            && !inner.detached.load(Ordering::Acquire)
            && let Some(hub) = inner.hub.upgrade()
        {
            // The same writer may just have joined again: then there is a handle, counted under the roster's lock.
            hub.remove_if(inner, || inner.handles.load(Ordering::Acquire) == 0);
        }
    }
}

/// The future of [`Member::leave`]: which took effect when it was called. Cancel safe.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// let member = hub.join(writer)?;
/// member.leave().await; // no broadcast has it in hand any more
/// assert_eq!(hub.broadcast("hello")?.sent, 0);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Leave {
    hub: Option<Arc<Core>>,
    upto: u64,
    id: Option<u64>,
}

impl Future for Leave {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Self { hub, upto, id } = &mut *self;
        match hub {
            Some(hub) if !hub.roster.poll_past(*upto, id, cx.waker()) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

impl Drop for Leave {
    fn drop(&mut self) {
        if let (Some(hub), Some(id)) = (&self.hub, self.id) {
            hub.roster.forget(self.upto, id);
        }
    }
}

impl Inner {
    pub(super) fn new(id: u64, writer: SharedWriter, hub: &Arc<Core>) -> Arc<Self> {
        let options = &hub.options;
        Arc::new(Self {
            id: MemberId(id),
            writer,
            backlog: options.keeps_backlogs().then(|| Backlog::new(options.backlog, Overflow::of(&options.policy))),
            hub: Arc::downgrade(hub),
            counters: hub.counters.clone(),
            gone: AtomicBool::new(false),
            handles: AtomicUsize::new(1),
            detached: AtomicBool::new(false),
            behind: AtomicU32::new(0),
            on_end: Watch::default(),
            on_empty: Watch::default(),
        })
    }

    /// One handle more; under the roster's lock.
    pub(super) fn count_handle(&self) {
        self.handles.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// It is a member no more.
    pub(super) fn set_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Has its end remove it. False: it has ended already.
    pub(super) fn watch_end(self: &Arc<Self>) -> bool {
        let writer = self.writer.clone();
        let end = async move {
            writer.closed().await;
        };
        self.on_end.arm(Box::pin(end), &Waker::from(Arc::new(OnEnd(Arc::downgrade(self)))))
    }

    pub(super) fn is_woken_by_the_end(self: &Arc<Self>, waker: &Waker) {
        if self.on_end.is_over(waker)
            && let Some(hub) = self.hub.upgrade()
        {
            hub.remove(self);
        }
    }

    /// The watches hold clones of the writer: without this the last clone would never go.
    pub(super) fn unwatch(&self) {
        self.on_end.disarm();
    }

    /// A frame had to wait (`true`) or not. For how long that has been so comes out.
    #[inline]
    pub(super) fn note(&self, waits: bool, now: u32) -> Option<u32> {
        let since = self.behind.load(Ordering::Relaxed);
        match (waits, since) {
            (false, 0) => return None,
            (true, 0) => self.behind.store(now, Ordering::Relaxed),
            (false, _) => self.behind.store(0, Ordering::Relaxed),
            (true, _) => {}
        }
        // Broadcasts of other threads may have begun a little later than this one.
        (since != 0).then(|| now.wrapping_sub(since)).filter(|ms| *ms < u32::MAX / 2)
    }

    /// Bytes that wait for it, in the hub and in its writer.
    pub(super) fn queued(&self) -> usize {
        self.writer.queued_len() + self.backlog.as_ref().map_or(0, Backlog::bytes)
    }

    /// Into the backlog, if there is one: [`pump`](Self::pump) follows.
    pub(super) fn offer(&self, frame: &Bytes, key: Option<u64>, now: u32) -> Result<Displaced, Refusal> {
        let Some(backlog) = &self.backlog else { return Ok(Displaced::default()) };
        let displaced = backlog.offer(frame, key, now).map_err(|why| match why {
            NoRoom::Limit(why) => why,
            NoRoom::Over => Refusal::Closed(self.writer.close_reason().unwrap_or(CloseReason::Local)),
        })?;
        if !displaced.dropped.is_empty() {
            self.counters.dropped_oldest.fetch_add(displaced.dropped.len() as u64, Ordering::Relaxed);
        }
        if displaced.conflated.is_some() {
            self.counters.conflated.fetch_add(1, Ordering::Relaxed);
        }
        Ok(displaced)
    }

    /// Sends a frame that was offered. True: it is in the kernel, false: it waits.
    #[inline]
    pub(super) fn pump(self: &Arc<Self>, frame: &Bytes, at: Stamp) -> Result<bool, Refusal> {
        match &self.backlog {
            None => self.writer.send_shared(frame, at),
            Some(backlog) => Ok(self.see_to(backlog.start(self, MOVE_BUDGET)) == Moved::All),
        }
    }

    pub(super) fn is_woken_by_room(self: &Arc<Self>, waker: &Waker) {
        if self.on_empty.is_over(waker)
            && let Some(backlog) = &self.backlog
        {
            self.see_to(backlog.go_on(self, MOVE_BUDGET));
        }
    }

    /// A mover that has moved enough hands over to the reactor.
    fn see_to(self: &Arc<Self>, moved: Moved) -> Moved {
        if moved == Moved::Budget {
            return self.hand_over();
        }
        if moved == Moved::Over
            && let Some(hub) = self.hub.upgrade()
        {
            hub.remove(self);
        }
        moved
    }

    /// The mark is this thread's, and so it stays unless the reactor takes it.
    fn hand_over(self: &Arc<Self>) -> Moved {
        let (reactor, member) = (self.writer.reactor(), self.clone());
        let Err(refused) = reactor.spawn(async move { member.move_the_rest().await }) else { return Moved::Later };
        if reactor.is_current_thread() && !reactor.is_stopped() {
            drop(spawn_local(refused.into_inner()));
            return Moved::Later;
        }
        // It takes no posts: what waits goes out from here. It ends (law 8), for others may not append meanwhile.
        drop(refused);
        let Some(backlog) = &self.backlog else { return Moved::All };
        self.see_to(backlog.finish(self))
    }

    /// Moves on until nothing waits or the writer is blocked; others have their turns between.
    async fn move_the_rest(self: Arc<Self>) {
        let Some(backlog) = &self.backlog else { return };
        while backlog.go_on(&self, MOVE_BUDGET) == Moved::Budget {
            yield_now().await;
        }
    }

    /// Is all that was accepted with the writer?
    pub(super) fn has_moved_all(&self) -> bool {
        self.backlog.as_ref().is_none_or(Backlog::is_idle)
    }

    /// Waits until what was accepted is in the kernel, or the connection has ended.
    pub(super) async fn drained(&self) {
        while self.writer.flush().await.is_ok() {
            if self.has_moved_all() || self.writer.close_reason().is_some() {
                return;
            }
            // The mover is about to give the writer more.
            yield_now().await;
        }
    }
}

impl Sink for Arc<Inner> {
    fn send(&self, frame: Bytes) -> Result<Took, ()> {
        match self.writer.send(frame) {
            SendOutcome::Sent => Ok(Took::Sent),
            SendOutcome::Queued => Ok(Took::Queued),
            SendOutcome::Refused(Refusal::Closed(_), _) => Err(()),
            SendOutcome::Refused(_, frame) => Ok(Took::Back(frame)),
        }
    }

    fn wait(&self) -> bool {
        let writer = self.writer.clone();
        let empty = async move {
            let _ = writer.flush().await;
        };
        self.on_empty.arm(Box::pin(empty), &Waker::from(Arc::new(OnEmpty(self.clone()))))
    }
}
