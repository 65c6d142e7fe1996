//! The flush owner's loop: send until nothing is left, the socket refuses or the budget is used.
//!
//! State: none of its own; the caller owns Flushing. Thread class: any thread (the writer's own, or the reactor's).
//! Laws: 3 (one owner; the remainder is back before Flushing is left), 8 (budget), 11 (a failed send stores its
//! reason before it leaves Flushing), 15.

use crate::buf::{Outgoing, SendEnd, Sent};
use crate::conn::body::{Body, Slow, ends};
use crate::conn::flush_word::Leave;
use crate::conn::read_word::Mark;
use crate::conn::send_file;
use crate::error::CloseReason;
use crate::exec::home::Msg;
use crate::exec::local::{self, Here};
use crate::stats::Count;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::sync::quiet::quiet;
use crate::sys;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::MutexGuard;
use std::task::{Context, Waker};

/// Times that an owner with a budget looks once more before the reactor goes on.
const MAX_LOOKS: u32 = 16;

/// How the owner left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drive {
    /// Everything queued is in the kernel.
    Done,
    /// The reactor goes on, at an edge or from its owed queue.
    Parked,
    /// The connection is closed; its queue is freed.
    Closed,
}

/// A batch in the hands of the owner.
pub(crate) struct Batch<'a> {
    pub(crate) bytes: &'a mut Outgoing,
    /// Does the batch count in `Body::queued`? The writer's own staging does not.
    pub(crate) counted: bool,
}

/// Sends the batch and what is queued behind it. `waiter` is left with the remainder if there is one.
pub(crate) fn drive(body: &Body, batch: Batch<'_>, budget: usize, waiter: Option<&Waker>) -> Drive {
    drive_from(body, batch, budget, waiter, local::here(&body.home))
}

/// The same for a caller that has looked at the clock already.
pub(crate) fn drive_from(body: &Body, batch: Batch<'_>, budget: usize, waiter: Option<&Waker>, here: Here) -> Drive {
    let first = batch.bytes.send(body.as_fd(), budget);
    go_on(body, batch, budget, waiter, here, first)
}

/// What comes after the owner's first send.
pub(crate) fn go_on(
    body: &Body,
    batch: Batch<'_>,
    budget: usize,
    waiter: Option<&Waker>,
    here: Here,
    first: Sent,
) -> Drive {
    let Batch { bytes, mut counted } = batch;
    let mut left = budget;
    let mut first = Some(first);
    let mut looks = 0;
    loop {
        let sent = first.take().unwrap_or_else(|| bytes.send(body.as_fd(), left));
        body.home.count_from(here.is_home, Count::Sends, u64::from(sent.calls));
        left = left.saturating_sub(sent.bytes);
        if sent.bytes > 0 {
            body.add_accepted(sent.bytes);
            body.touch(here);
            if counted {
                body.queued.fetch_sub(sent.bytes, Ordering::Relaxed);
            }
        }
        let leave = match &sent.end {
            SendEnd::Empty => body.flush.finish(),
            SendEnd::Blocked => {
                body.home.count(Count::SendEagain, 1);
                put_back(body, bytes, &mut counted, waiter);
                body.flush.block()
            }
            SendEnd::Budget => {
                put_back(body, bytes, &mut counted, waiter);
                body.flush.owe()
            }
            SendEnd::Error(error) => {
                body.store_reason(CloseReason::from_io("send", error));
                let _ = body.flush.close();
                Leave::Closed
            }
        };
        match (leave, &sent.end) {
            (Leave::Left { fin }, SendEnd::Empty) => {
                left_idle(body, fin);
                return Drive::Done;
            }
            (Leave::Left { .. }, end) => {
                body.home.count(Count::FlushParks, 1);
                if matches!(end, SendEnd::Budget) {
                    body.home.send(Msg::Owed(body.key()));
                }
                return Drive::Parked;
            }
            (Leave::Again, _) => {
                // Something was appended, or a writable edge came: look once more.
                let mut slow = lock(&body.slow);
                bytes.append(&mut slow.out);
                counted = true;
                looks += 1;
                if looks == MAX_LOOKS && budget != usize::MAX {
                    // Others append little by little and would hold this thread until the budget is gone byte by byte.
                    left = 0;
                }
            }
            (Leave::Closed, _) => {
                if counted {
                    body.queued.fetch_sub(bytes.len(), Ordering::Relaxed);
                }
                if !bytes.is_empty() {
                    body.ends.fetch_or(ends::CUT, Ordering::AcqRel);
                }
                bytes.clear();
                leave_closed(body);
                return Drive::Closed;
            }
        }
    }
}

/// The owner has left Flushing with everything out.
pub(crate) fn left_idle(body: &Body, fin: bool) {
    if fin {
        send_fin(body);
    }
    body.flush_is_over();
}

/// The owner of an empty queue leaves.
pub(crate) fn leave_empty(body: &Body) {
    loop {
        match body.flush.finish() {
            Leave::Left { fin } => return left_idle(body, fin),
            // A writable edge: nothing is queued.
            Leave::Again => {}
            Leave::Closed => return leave_closed(body),
        }
    }
}

impl Body {
    /// Leaves a waiter for the flush; to be followed by a look. Cloned before the lock and dropped after it: both are user
    /// code (law 10).
    pub(crate) fn set_writer(&self, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let old = lock(&self.slow).waiter.replace(waker);
        drop(old);
    }

    /// Takes the waiter out again.
    pub(crate) fn forget_writer(&self) {
        let unused = lock(&self.slow).waiter.take();
        drop(unused);
    }
}

/// The owner of a connection that is closed: frees the queue, leaves, tells everybody.
pub(crate) fn leave_closed(body: &Body) {
    body.free_queue();
    body.wake_writer();
    body.signal_reader(Mark::Sticky);
}

/// The unsent remainder goes to the FRONT of the queue, and the waiter with it, BEFORE Flushing is left.
fn put_back(body: &Body, bytes: &mut Outgoing, counted: &mut bool, waiter: Option<&Waker>) {
    // Cloned before the lock and dropped after it: both are user code (law 10).
    let waiter = match catch_unwind(AssertUnwindSafe(|| waiter.cloned())) {
        Ok(waiter) => waiter,
        Err(thrown) => {
            // Whoever flushes learns of it; the bytes are the reactor's.
            put_back(body, bytes, counted, None);
            match body.flush.owe() {
                Leave::Closed => leave_closed(body),
                _ => body.home.send(Msg::Owed(body.key())),
            }
            resume_unwind(thrown);
        }
    };
    let mut slow = lock(&body.slow);
    if !*counted {
        body.queued.fetch_add(bytes.len(), Ordering::Relaxed);
        *counted = true;
        // Nothing else was queued: the word was idle.
        slow.end = body.accepted.load(Ordering::Relaxed) + bytes.len() as u64;
    }
    slow.out.prepend(bytes);
    let old = match waiter {
        Some(waiter) => slow.waiter.replace(waiter),
        None => None,
    };
    drop(slow);
    // A panic must not leave Flushing owned by nobody.
    quiet(|| drop(old));
}

/// Reactor: a writable edge or an owed turn gave it the flush.
pub(crate) fn drive_as_reactor(body: &Body) {
    drive_portions(body, 1);
}

/// The same for so many budgets at once.
pub(crate) fn drive_portions(body: &Body, portions: usize) {
    let slow = lock(&body.slow);
    if slow.lent {
        return send_file::hand_over(body, slow);
    }
    drive_within(body, slow, body.home.config.flush_budget.saturating_mul(portions));
}

/// The owner of Flushing, who is no waiting writer: sends what is queued, within the budget, and wakes who waits for it.
pub(crate) fn drive_queue(body: &Body, slow: MutexGuard<'_, Slow>) {
    drive_within(body, slow, body.home.config.flush_budget);
}

fn drive_within(body: &Body, mut slow: MutexGuard<'_, Slow>, budget: usize) {
    let mut batch = slow.out.take();
    drop(slow);
    match drive(body, Batch { bytes: &mut batch, counted: true }, budget, None) {
        Drive::Done => body.wake_writer(),
        Drive::Parked => {
            body.wake_part_way();
            body.wake_ready();
        }
        // The loop itself has woken the writer.
        Drive::Closed => {}
    }
}

/// FIN: this side sends nothing more. A failure means that the socket is not connected any more: then there is
/// nobody to tell.
pub(crate) fn send_fin(body: &Body) {
    let _ = sys::socket::shutdown_write(body.as_fd());
}
