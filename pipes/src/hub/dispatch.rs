//! One broadcast: to every member of a snapshot, on the thread that makes it, and what follows for those without room.
//!
//! State: the round's own. Who touches it: the broadcast's caller. Thread class: any thread. Laws: 8 (the paced form has
//! turns of 256 members), 10 (callbacks run after the loop, without any lock), 16.

use crate::hub::core::{Core, add};
use crate::hub::member::{Inner, MemberId, now};
use crate::hub::message::{BroadcastError, Message, Tally};
use crate::hub::options::{Policy, Slow, Verdict};
use crate::hub::roster::Begun;
use crate::quiet::quiet;
use bytes::Bytes;
use epoxide::{ReactorHandle, Refusal, SendOutcome, Stamp, time, yield_now};
use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Chunks of the list that a paced broadcast serves in one turn: 256 members.
const TURN: usize = 4;

/// A member without room.
struct Trouble {
    member: Arc<Inner>,
    why: Refusal,
}

/// A broadcast under way. Whoever drops it half way has the rest served: a frame that some members have goes to all.
pub(super) struct Round {
    core: Arc<Core>,
    begun: Begun<Arc<Inner>>,
    /// What members get; and what comes back from those who are waited for.
    frame: Bytes,
    key: Option<u64>,
    except: Option<MemberId>,
    now: u32,
    next_chunk: usize,
    tally: Tally,
    /// In the order of members.
    troubles: Vec<Trouble>,
    is_over: bool,
}

impl Round {
    pub(super) fn begin(core: &Arc<Core>, message: Message) -> Result<Self, BroadcastError> {
        let Message { frame, key, except } = message;
        let now = now();
        let Some(held) = core.counters.hold(&frame, core.options.bytes) else {
            add(&core.counters.broadcasts_refused, 1);
            return Err(BroadcastError::Full(frame));
        };
        let mut troubles = Vec::new();
        // Dropped after the lock: what gives way is user code.
        let mut displaced = Vec::new();
        let begun = core.roster.begin(|begun| {
            if !core.options.sequenced {
                return;
            }
            // Into every backlog before another broadcast begins: so all members see one order.
            for (_, member) in begun.members.iter().flat_map(|chunk| chunk.iter()) {
                if !is_wanted(member, except) {
                    continue;
                }
                match member.offer(&held, key, now) {
                    Ok(gone) if gone.is_empty() => {}
                    Ok(gone) => displaced.push(gone),
                    Err(why) => troubles.push(Trouble { member: member.clone(), why }),
                }
            }
        });
        drop(displaced);
        let Some(begun) = begun else {
            add(&core.counters.broadcasts_refused, 1);
            return Err(BroadcastError::Closed(frame));
        };
        add(&core.counters.broadcasts, 1);
        let tally = Tally { number: begun.number, ..Tally::default() };
        Ok(Self {
            core: core.clone(),
            begun,
            frame: held,
            key,
            except,
            now,
            next_chunk: 0,
            tally,
            troubles,
            is_over: false,
        })
    }

    /// Serves so many chunks of members. False: that was all.
    fn serve(&mut self, chunks: usize) -> bool {
        let members = self.begun.members.clone();
        let until = members.len().min(self.next_chunk.saturating_add(chunks));
        let offered = if self.core.options.sequenced { self.troubles.len() } else { 0 };
        for chunk in &members[self.next_chunk..until] {
            // One look at the clock for up to 64 members.
            let at = Stamp::now();
            for (_, member) in chunk.iter() {
                if !is_wanted(member, self.except) {
                    continue;
                }
                let refused = offered > 0
                    && self.troubles[..offered].binary_search_by_key(&member.id, |trouble| trouble.member.id).is_ok();
                if !refused {
                    self.serve_one(member, at);
                }
            }
        }
        self.next_chunk = until;
        until < members.len()
    }

    #[inline]
    fn serve_one(&mut self, member: &Arc<Inner>, at: Stamp) {
        if member.backlog.is_some()
            && !self.core.options.sequenced
            && let Err(why) = member.offer(&self.frame, self.key, self.now)
        {
            self.troubles.push(Trouble { member: member.clone(), why });
            return;
        }
        match member.pump(&self.frame, at) {
            Ok(true) => {
                self.tally.sent += 1;
                self.note(member, false);
            }
            Ok(false) => {
                self.tally.queued += 1;
                self.note(member, true);
            }
            Err(why) => self.troubles.push(Trouble { member: member.clone(), why }),
        }
    }

    #[inline]
    fn note(&self, member: &Inner, waits: bool) {
        if waits {
            self.core.counters.saw_queue(member.queued());
        }
        if let Some(behind) = member.note(waits, self.now) {
            self.core.counters.saw_behind(behind);
        }
    }

    /// To everybody, on this thread.
    pub(super) fn run(mut self) -> Tally {
        self.serve(usize::MAX);
        if let Policy::Block(within) = self.core.options.policy
            && ReactorHandle::current().is_none()
        {
            wait_here(&mut self, within);
        }
        self.finish()
    }

    /// To everybody, in turns.
    pub(super) async fn run_paced(mut self) -> Tally {
        while self.serve(TURN) {
            yield_now().await;
        }
        if let Policy::Block(within) = self.core.options.policy {
            // What has room in time is done when the time is up.
            let _ = time::timeout(within, self.retry()).await;
        }
        self.finish()
    }

    /// Waits for those without room, one after the other: they all make room meanwhile.
    async fn retry(&mut self) {
        let mut at = 0;
        while at < self.troubles.len() {
            let member = self.troubles[at].member.clone();
            let taken = loop {
                // An error is the connection's end, which the send reports.
                let _ = member.writer.flush().await;
                match member.writer.send(self.frame.clone()) {
                    SendOutcome::Sent => {
                        self.tally.sent += 1;
                        break true;
                    }
                    SendOutcome::Queued => {
                        self.tally.queued += 1;
                        break true;
                    }
                    SendOutcome::Refused(why @ Refusal::Closed(_), _) => {
                        self.troubles[at].why = why;
                        break false;
                    }
                    // Others were quicker.
                    SendOutcome::Refused(..) => {}
                }
            };
            if taken {
                self.troubles.remove(at);
            } else {
                at += 1;
            }
        }
    }

    fn finish(mut self) -> Tally {
        self.end();
        self.tally
    }

    /// What follows for those without room; then the round is over, once.
    fn end(&mut self) {
        if std::mem::replace(&mut self.is_over, true) {
            return;
        }
        let core = &self.core;
        let counters = &*core.counters;
        let mut missed = [0; 4];
        for Trouble { member, why } in std::mem::take(&mut self.troubles) {
            let kind = match why {
                Refusal::Frames => 0,
                Refusal::Bytes => 1,
                Refusal::Age => 2,
                _ => 3,
            };
            missed[kind] += 1;
            if kind == 3 {
                core.remove(&member);
                continue;
            }
            // A look at the clock of its own: this may be long after the broadcast began.
            if let Some(behind) = member.note(true, now()) {
                counters.saw_behind(behind);
            }
            apply(core, &member, why);
        }
        let [frames, bytes, age, ended] = missed;
        self.tally.refused = (frames + bytes + age) as usize;
        self.tally.ended = ended as usize;
        add(&counters.refused_frames, frames);
        add(&counters.refused_bytes, bytes);
        add(&counters.refused_age, age);
        add(&counters.refused_closed, ended);
        add(&counters.sent, self.tally.sent as u64);
        add(&counters.queued, self.tally.queued as u64);
        core.end(self.begun.number);
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if !self.is_over {
            self.serve(usize::MAX);
            self.end();
        }
    }
}

#[inline]
fn is_wanted(member: &Inner, except: Option<MemberId>) -> bool {
    !member.is_gone() && except != Some(member.id)
}

/// The policy for a member that missed a frame.
fn apply(core: &Core, member: &Arc<Inner>, why: Refusal) {
    let verdict = match &core.options.policy {
        Policy::Disconnect(last_words) => return core.disconnect(member, last_words.clone()),
        Policy::Ask(ask) => {
            let slow = Slow { member: member.id, why, queued: member.queued() };
            quiet(|| ask(&slow)).unwrap_or_else(|| {
                add(&core.counters.panics, 1);
                Verdict::Disconnect
            })
        }
        _ => Verdict::Keep,
    };
    match verdict {
        Verdict::Keep => {}
        Verdict::Remove => {
            if core.remove(member) {
                add(&core.counters.removed, 1);
            }
        }
        Verdict::Disconnect => core.disconnect(member, Bytes::new()),
    }
}

/// Wakes a thread that waits in [`Policy::Block`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// [`Round::retry`] on a thread of the user's own.
fn wait_here(round: &mut Round, within: Duration) {
    // A time that is longer than the clock is none.
    let deadline = Instant::now().checked_add(within);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut retry = pin!(round.retry());
    while retry.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return;
        }
        std::thread::park_timeout(left);
    }
}

type Running = Pin<Box<dyn Future<Output = Result<Tally, BroadcastError>> + Send>>;

/// The future of [`Hub::broadcast_paced`](crate::Hub::broadcast_paced).
///
/// ```
/// # use epoxide_pipes::hub::*;
/// # use std::io::Read as _;
/// # epoxide::block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let (_read, writer) = epoxide::Connection::from_unix(ours)?.into_shared(epoxide::SharedLimits::default());
/// # let hub = Hub::new(HubOptions::default())?;
/// let member = hub.join(writer)?;
/// let tally = hub.broadcast_paced("hello").await?; // yields to others between turns
/// assert_eq!(tally.number, 1);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Paced {
    running: Running,
}

impl fmt::Debug for Paced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paced").finish_non_exhaustive()
    }
}

impl Paced {
    pub(super) fn new(core: Arc<Core>, message: Message) -> Self {
        let running = async move { Ok(Round::begin(&core, message)?.run_paced().await) };
        Self { running: Box::pin(running) }
    }
}

impl Future for Paced {
    type Output = Result<Tally, BroadcastError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.running.as_mut().poll(cx)
    }
}
