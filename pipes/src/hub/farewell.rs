//! The end of a member's connection by its hub: last words behind what waits, then FIN; a reset when that takes too long.
//!
//! State: how many partings are under way and how they went. Who touches it: a task for each member, on the member's own
//! reactor. Thread class: any thread. Laws: 10, 12 (a parting that is dropped unfinished counts as cut).

use crate::hub::member::Inner;
use bytes::Bytes;
use epoxide::{Refusal, SendOutcome, time};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// What a close of a hub came to.
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
        waiters.into_values().for_each(Waker::wake);
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

/// Begins a parting. `behind`: the last words go behind what waits in the hub.
pub(super) fn part(parting: Parting, last_words: Bytes, within: Duration, behind: bool) {
    let mut parting = parting;
    let mut said = false;
    if parting.member.queued() == 0 {
        match parting.member.writer.send_control(last_words.clone()) {
            SendOutcome::Sent => {
                parting.flushed = true;
                return;
            }
            SendOutcome::Queued => said = true,
            SendOutcome::Refused(Refusal::Closed(_), _) => return,
            SendOutcome::Refused(..) => {}
        }
    }
    let reactor = parting.member.writer.reactor();
    // A reactor that has stopped, or takes no more posts, drops it: a reset.
    let _ = reactor.spawn(async move {
        // All of it, not the fields by themselves: the drop is what counts.
        let mut parting = parting;
        let all = finish(&parting.member, last_words, said, behind);
        let flushed = time::timeout(within, all).await.unwrap_or(false);
        parting.flushed = flushed;
    });
}

/// True once everything is in the kernel.
async fn finish(member: &Inner, last_words: Bytes, said: bool, behind: bool) -> bool {
    if behind {
        member.drained().await;
    }
    if !said && matches!(member.writer.send_control(last_words), SendOutcome::Refused(..)) {
        return false;
    }
    member.writer.flush().await.is_ok()
}

/// The future of [`Hub::close`](crate::Hub::close): which took effect when it was called. Cancel safe.
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
