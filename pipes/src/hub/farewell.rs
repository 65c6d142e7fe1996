//! The end of a member's connection by its hub: last words behind what waits, then FIN; a reset when that takes too long.
//!
//! State: how many partings are under way and how they went. Who touches it: a task for each member that has to wait, on
//! the member's own reactor. Thread class: any thread. Laws: 8, 10, 12 (a parting that is dropped unfinished counts as cut),
//! 16 (one post for each reactor, however many members it has: a close is not cut by the limit on posts).

use crate::hub::member::Inner;
use crate::quiet::wake_all;
use bytes::Bytes;
use epoxide::{ReactorHandle, Refusal, SendOutcome, spawn_local, time, yield_now};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What a close of a hub came to.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// let member = hub.join(writer)?;
/// let report = hub.close(std::time::Duration::from_secs(1)).await;
/// println!("{report:?}");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct CloseReport {
    /// Members that were there when nothing was under way any more.
    pub members: usize,
    /// Those that got everything that waited for them, the goodbye, and then FIN.
    pub flushed: usize,
    /// Those that were reset because they did not take it in time, or whose connection had ended.
    pub cut: usize,
}

#[derive(Default, Debug)]
struct State {
    within: Option<Duration>,
    /// Have all partings begun? `report.members` is right from then on.
    all_begun: bool,
    report: CloseReport,
    waiters: BTreeMap<u64, Waker>,
    next: u64,
}

/// The partings of one close.
#[derive(Default, Debug)]
pub(super) struct Closing(Mutex<State>);

impl Closing {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first limit counts.
    pub(super) fn limit(&self, within: Duration) {
        self.lock().within.get_or_insert(within);
    }

    pub(super) fn begin(&self, members: usize) -> Duration {
        let mut state = self.lock();
        state.report.members += members;
        state.within.unwrap_or_default()
    }

    pub(super) fn all_begun(&self) {
        self.change(|state| state.all_begun = true);
    }

    pub(super) fn parting(self: Arc<Self>, member: Arc<Inner>) -> Parting {
        Parting { closing: self, member, flushed: false }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        let waiters = if state.is_over() { std::mem::take(&mut state.waiters) } else { BTreeMap::new() };
        drop(state);
        wake_all(waiters.into_values());
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.all_begun && self.report.flushed + self.report.cut >= self.report.members
    }
}

/// One member's part; dropping it ends the connection.
pub(super) struct Parting {
    closing: Arc<Closing>,
    member: Arc<Inner>,
    flushed: bool,
}

impl Drop for Parting {
    fn drop(&mut self) {
        let handle = self.member.writer.close_handle();
        if self.flushed {
            handle.close();
        } else {
            handle.reset();
        }
        self.closing.change(|state| {
            state.report.flushed += usize::from(self.flushed);
            state.report.cut += usize::from(!self.flushed);
        });
    }
}

/// Partings that a reactor begins between two of its other turns.
const TURN: usize = 256;

/// A parting that has to wait, and whether the last words are on their way already.
type Unfinished = (Parting, bool);

/// Begins partings: the last words go behind what waits, in the writer and in the hub.
pub(super) fn part(partings: impl IntoIterator<Item = Parting>, last_words: &Bytes, within: Duration) {
    let mut waiting: Vec<(ReactorHandle, Vec<Unfinished>)> = Vec::new();
    for parting in partings {
        let Some(unfinished) = say(parting, last_words) else { continue };
        let reactor = unfinished.0.member.writer.reactor();
        match waiting.iter_mut().find(|(known, _)| *known == reactor) {
            Some((_, partings)) => partings.push(unfinished),
            None => waiting.push((reactor, vec![unfinished])),
        }
    }
    for (reactor, partings) in waiting {
        let begin = begin(partings, last_words.clone(), within);
        if let Err(refused) = reactor.spawn(begin) {
            // A reactor that has stopped, or takes no more posts from other threads, drops them: resets.
            if reactor.is_current_thread() && !reactor.is_stopped() {
                drop(spawn_local(refused.into_inner()));
            }
        }
    }
}

/// Says the last words if nothing of the member's can come behind them. `None`: that was all.
fn say(mut parting: Parting, last_words: &Bytes) -> Option<Unfinished> {
    // Not by the bytes that wait: a frame in the mover's hands is nowhere.
    if !parting.member.has_moved_all() {
        return Some((parting, false));
    }
    match parting.member.writer.send_control(last_words.clone()) {
        SendOutcome::Sent => {
            parting.flushed = true;
            None
        }
        SendOutcome::Queued => Some((parting, true)),
        SendOutcome::Refused(Refusal::Closed(_), _) => None,
        SendOutcome::Refused(..) => Some((parting, false)),
    }
}

/// Gives each parting a task, in turns.
async fn begin(mut partings: Vec<Unfinished>, last_words: Bytes, within: Duration) {
    while !partings.is_empty() {
        let rest = partings.split_off(partings.len().min(TURN));
        for (parting, said) in std::mem::replace(&mut partings, rest) {
            let last_words = last_words.clone();
            drop(spawn_local(async move {
                // All of it, not the fields by themselves: the drop is what counts.
                let mut parting = parting;
                let all = finish(&parting.member, last_words, said);
                let flushed = time::timeout(within, all).await.unwrap_or(false);
                parting.flushed = flushed;
            }));
        }
        yield_now().await;
    }
}

/// True once everything is in the kernel.
async fn finish(member: &Inner, last_words: Bytes, said: bool) -> bool {
    if !said {
        member.drained().await;
        if matches!(member.writer.send_control(last_words), SendOutcome::Refused(..)) {
            return false;
        }
    }
    member.writer.flush().await.is_ok()
}

/// The future of [`Hub::close`](crate::Hub::close): which took effect when it was called. Cancel safe.
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// hub.close(std::time::Duration::from_secs(1)).await; // everybody was told
/// assert!(hub.is_closed());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct CloseHub {
    closing: Arc<Closing>,
    id: Option<u64>,
}

impl CloseHub {
    pub(super) fn new(closing: Arc<Closing>) -> Self {
        Self { closing, id: None }
    }
}

impl Future for CloseHub {
    type Output = CloseReport;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReport> {
        let waker = cx.waker().clone();
        let Self { closing, id } = &mut *self;
        let mut state = closing.lock();
        if state.is_over() {
            return Poll::Ready(state.report);
        }
        let id = *id.get_or_insert_with(|| {
            state.next += 1;
            state.next
        });
        let old = state.waiters.insert(id, waker);
        drop(state);
        drop(old);
        Poll::Pending
    }
}

impl Drop for CloseHub {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let old = self.closing.lock().waiters.remove(&id);
            drop(old);
        }
    }
}
