//! Waiting on a shared writer: for what was accepted to be out, for the end of the connection.
//!
//! State: one number a future; the waker is in `Frames`, behind the mutex of `Body::slow`. Who touches it: the future
//! registers and takes itself out, whoever makes progress takes it. Thread class: any thread. Laws: 9, 10 (wakers are
//! cloned before and dropped after the lock), 12 (every end of a connection wakes every waiter).

use crate::conn::body::{Body, Slow, ends};
use crate::conn::flush_word::FlushWord;
use crate::conn::frames::END;
use crate::conn::shared::SharedWriter;
use crate::error::CloseReason;
use crate::exec::run;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

impl SharedWriter {
    /// Waits until everything that was accepted before this call, by any thread, is in the kernel.
    ///
    /// # Errors
    /// Why the connection ended before that.
    ///
    /// # Cancel safety
    /// Nothing is lost: frames go out whether anybody waits or not.
    pub fn flush(&self) -> SharedFlush<'_> {
        let ticket = lock(&self.body().slow).end;
        SharedFlush { writer: self, wait: Wait::new(self.body(), ticket) }
    }

    /// Waits for the end of the connection and gives its reason: a reset, a close or stop on this side; when nobody reads,
    /// also a drain, and the peer's FIN unless the limits say `half_open`. From then on frames are refused; what was accepted before may
    /// still be on its way.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub fn closed(&self) -> Closed<'_> {
        Closed { writer: self, wait: Wait::new(self.body(), END) }
    }
}

impl Body {
    /// Wakes those waiters of a shared writer whose bytes are out, and all of them when nothing more goes out. To be
    /// called AFTER the progress, the reason or the end was stored: a waiter registers under the same mutex, then looks.
    pub(crate) fn wake_ready(&self) {
        if !self.has_ended(ends::SHARED) {
            return;
        }
        let over = self.flush.is_over();
        let ended = over || self.reason().is_some();
        let accepted = self.accepted.load(Ordering::Relaxed);
        let mut slow = lock(&self.slow);
        let ready = match &mut slow.frames {
            Some(frames) => frames.ready(accepted, over, ended),
            None => Vec::new(),
        };
        slow.settle_waited(&self.flush);
        drop(slow);
        for waiter in ready {
            run::caught(|| waiter.wake());
        }
    }
}

impl Slow {
    /// After waiters went: with none left owners leave by the quiet way again.
    fn settle_waited(&self, flush: &FlushWord) {
        if !self.frames.as_ref().is_some_and(|frames| frames.are_awaited()) {
            flush.forget_waited();
        }
    }
}

/// A place among the waiters, given back when dropped.
#[derive(Debug)]
struct Wait<'a> {
    body: &'a Body,
    offset: u64,
    id: Option<u64>,
}

impl<'a> Wait<'a> {
    fn new(body: &'a Body, offset: u64) -> Self {
        Self { body, offset, id: None }
    }

    fn is_out(&self) -> bool {
        self.offset <= self.body.accepted.load(Ordering::Relaxed)
    }

    /// To be followed by a look: whoever makes progress looks for waiters afterwards.
    fn register(&mut self, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let mut slow = lock(&self.body.slow);
        let old = match &mut slow.frames {
            Some(frames) => frames.wait(self.offset, &mut self.id, waker),
            None => None,
        };
        if self.offset != END {
            self.body.flush.set_waited();
        }
        drop(slow);
        drop(old);
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let mut slow = lock(&self.body.slow);
            let old = match &mut slow.frames {
                Some(frames) => frames.forget(self.offset, id),
                None => None,
            };
            slow.settle_waited(&self.body.flush);
            drop(slow);
            drop(old);
        }
    }
}

/// The future of `SharedWriter::flush`.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let (read, writer) = conn.into_shared(SharedLimits::default());
/// assert!(!matches!(writer.send("frame"), SendOutcome::Refused(..)));
/// writer.flush().await?; // the kernel has it
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SharedFlush<'a> {
    writer: &'a SharedWriter,
    wait: Wait<'a>,
}

impl Future for SharedFlush<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.wait.is_out() {
            return Poll::Ready(Ok(()));
        }
        self.wait.register(cx);
        let over = self.wait.body.flush.is_over();
        if self.wait.is_out() {
            Poll::Ready(Ok(()))
        } else if over {
            Poll::Ready(Err(self.writer.reason().into()))
        } else {
            Poll::Pending
        }
    }
}

/// The future of `SharedWriter::closed`.
///
/// ```
/// # use epoxide::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = Connection::from_unix(ours)?;
/// let (read, writer) = conn.into_shared(SharedLimits::default());
/// writer.close_handle().reset();
/// writer.closed().await;
/// assert!(writer.close_reason().is_some());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Closed<'a> {
    writer: &'a SharedWriter,
    wait: Wait<'a>,
}

impl Closed<'_> {
    fn reason(&self) -> Option<CloseReason> {
        let over = self.wait.body.flush.is_over();
        self.wait.body.reason().or_else(|| over.then(|| self.writer.reason()))
    }
}

impl Future for Closed<'_> {
    type Output = CloseReason;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        if let Some(reason) = self.reason() {
            return Poll::Ready(reason);
        }
        self.wait.register(cx);
        self.reason().map_or(Poll::Pending, Poll::Ready)
    }
}
