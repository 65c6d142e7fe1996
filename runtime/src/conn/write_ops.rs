//! The write family: flush, send and shutdown.
//!
//! State: none beyond the half's. Thread class: any thread. Laws: 3 (the fast path claims an idle word, sends and
//! leaves; otherwise append, unlock, kick), 8 (a flush on a reactor thread has a budget,
//! and so have flushes in a row), 11.

use crate::buf::{SendEnd, Sent};
use crate::conn::drive::{self, Batch, Drive};
use crate::conn::flush_word::Kick;
use crate::conn::write_futures::{Flush, SendAll, Shutdown};
use crate::conn::write_half::WriteHalf;
use crate::error::CloseReason;
use crate::exec::local;
use crate::stats::Count;
use crate::sync::lock;
use crate::sync::plain::Ordering;
use crate::sys;
use std::io;
use std::os::fd::AsFd;
use std::task::{Context, Poll, Waker};

impl WriteHalf {
    /// Hands everything staged to the kernel, or as much as it takes now and the rest as it takes it.
    ///
    /// The send is made by the caller, on its own thread; only what the socket refuses waits on the reactor.
    ///
    /// # Errors
    /// Why the connection ended; [`io::ErrorKind::BrokenPipe`] after this side's FIN.
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated: what was staged still goes out, in order, before anything staged later.
    pub fn flush(&mut self) -> Flush<'_> {
        Flush { half: self }
    }

    /// The poll form of [`flush`](Self::flush). A `Pending` has registered `cx`'s waker in place of any earlier one.
    #[inline]
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.trim();
        if let Some(bytes) = self.staged.plain()
            && let Some(first) = self.send_whole(bytes)
        {
            let len = bytes.len();
            let sent = match first {
                First::Done => {
                    self.staged.clear();
                    return self.sent(cx, len);
                }
                First::Disturbed => {
                    self.staged.clear();
                    Sent { bytes: 0, calls: 0, end: SendEnd::Empty }
                }
                First::Short(first) => self.staged.send_after(self.body.as_fd(), self.budget(), first),
            };
            return self.go_on(cx, len, sent);
        }
        self.poll_flush_slow(cx)
    }

    /// Ready once at most `at_most` bytes are unsent ([`unsent_len`](Self::unsent_len)); what is staged is flushed for it.
    /// A `Pending` has registered `cx`'s waker in place of any earlier one of this half.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn poll_unsent(&mut self, cx: &mut Context<'_>, at_most: usize) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = self.poll_flush(cx) {
            return Poll::Ready(result);
        }
        self.poll_part_way(at_most)
    }

    /// For [`poll_unsent`](Self::poll_unsent), its own and the layer's: a flush was pending and has left a waiter.
    #[doc(hidden)]
    pub fn poll_part_way(&self, at_most: usize) -> Poll<io::Result<()>> {
        // Register how far it waits, then look: whoever makes progress takes the mutex after it, and looks there.
        lock(&self.body.slow).wake_at = at_most;
        if self.body.queued.load(Ordering::Relaxed) <= at_most { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// The path that nearly every answer takes: the word was idle and is ours, all goes in one call, and nobody comes
    /// meanwhile. `None`: it is not to be taken, and nothing was done. After all but `Done` the word is still ours.
    #[inline(always)]
    fn send_whole(&self, bytes: &[u8]) -> Option<First> {
        let body = &*self.body;
        if bytes.len() > body.home.config.flush_budget || !body.flush.claim() {
            return None;
        }
        match sys::io::send(body.as_fd(), bytes) {
            Ok(n) if n == bytes.len() => {
                let here = local::here(&body.home);
                body.home.count_from(here.is_home, Count::Sends, 1);
                body.touch(here);
                body.add_accepted(n);
                if !body.flush.finish_quiet() {
                    return Some(First::Disturbed);
                }
                if self.split {
                    body.flush_is_over();
                }
                Some(First::Done)
            }
            first => Some(First::Short(first)),
        }
    }

    /// Sends what it can without waiting; the reactor goes on with the rest.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when a rest is left (it still goes out); else as [`flush`](Self::flush).
    pub fn try_flush(&mut self) -> io::Result<()> {
        self.try_now(Self::poll_flush)
    }

    /// Polls once, without a waker.
    pub(crate) fn try_now(
        &mut self,
        poll: impl FnOnce(&mut Self, &mut Context<'_>) -> Poll<io::Result<()>>,
    ) -> io::Result<()> {
        // It cannot yield: that everything is out must not read as a rest.
        let streak = std::mem::replace(&mut self.streak, usize::MAX);
        let polled = poll(self, &mut Context::from_waker(Waker::noop()));
        match polled {
            Poll::Ready(result) => {
                self.streak = streak.saturating_sub(usize::MAX - self.streak);
                result
            }
            // The rest waits for its turn as every flush does.
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Stages and flushes `bytes`, in portions when they exceed `max_staged`. With nothing staged they are sent from where
    /// they are, and only what the socket refuses is copied.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    ///
    /// # Cancel safety
    /// When dropped, some prefix of `bytes` was sent, is queued or is staged; never a byte twice.
    pub fn send_all<'a>(&'a mut self, bytes: &'a [u8]) -> SendAll<'a> {
        SendAll { half: self, bytes }
    }

    /// Flushes, then sends FIN: the peer reads everything and then the end. Reading goes on.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    ///
    /// # Cancel safety
    /// Dropped before it was ready, the flush goes on but no FIN follows; calling it again is right.
    pub fn shutdown(&mut self) -> Shutdown<'_> {
        Shutdown { half: self }
    }

    /// Bytes a flush may send before others get their turn: bounded on a reactor thread, not elsewhere.
    #[inline]
    fn budget(&self) -> usize {
        if local::is_reactor_thread() { self.body.home.config.flush_budget } else { usize::MAX }
    }

    /// Everything is out, `len` bytes of it by this flush. One that had its share on a reactor thread lets the others go
    /// first, once: polled again it finds nothing to do. Given up meanwhile, it leaves nothing behind.
    #[inline]
    fn sent(&mut self, cx: &Context<'_>, len: usize) -> Poll<io::Result<()>> {
        if len >= self.streak {
            return self.had_its_share(cx);
        }
        self.streak -= len;
        Poll::Ready(Ok(()))
    }

    #[cold]
    fn had_its_share(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        self.streak = self.body.home.config.flush_budget;
        if !local::is_reactor_thread() {
            return Poll::Ready(Ok(()));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The send took less, or somebody came meanwhile.
    #[cold]
    fn go_on(&mut self, cx: &Context<'_>, len: usize, sent: Sent) -> Poll<io::Result<()>> {
        let budget = self.budget();
        let batch = Batch { bytes: &mut self.staged, counted: false };
        let drive = drive::go_on(&self.body, batch, budget, Some(cx.waker()), local::here(&self.body.home), sent);
        self.driven(cx, len, drive)
    }

    /// How the owner's loop left.
    fn driven(&mut self, cx: &Context<'_>, len: usize, drive: Drive) -> Poll<io::Result<()>> {
        match drive {
            Drive::Done => self.sent(cx, len),
            Drive::Parked => {
                // The others have their turn before this one goes on.
                self.streak = self.body.home.config.flush_budget;
                Poll::Pending
            }
            Drive::Closed => Poll::Ready(Err(self.refusal())),
        }
    }

    /// The rest of a send from the caller's own slice: copied, and flushed as if it had been staged.
    #[cold]
    fn sent_in_part(&mut self, cx: &Context<'_>, bytes: &[u8], first: First) -> Poll<io::Result<()>> {
        let sent = match first {
            First::Short(first) => {
                self.staged.stage(bytes);
                // Taken without a reservation: the next staging looks anew.
                self.room = 0;
                self.staged.send_after(self.body.as_fd(), self.budget(), first)
            }
            First::Done | First::Disturbed => Sent { bytes: 0, calls: 0, end: SendEnd::Empty },
        };
        self.go_on(cx, bytes.len(), sent)
    }

    /// The poll form of [`send_all`](Self::send_all): `bytes` becomes what is still to be staged, and is to be given again.
    ///
    /// # Errors
    /// As [`send_all`](Self::send_all).
    #[inline(always)]
    pub fn poll_send_all(&mut self, cx: &mut Context<'_>, bytes: &mut &[u8]) -> Poll<io::Result<()>> {
        if self.staged.is_bare()
            && !bytes.is_empty()
            // What is refused will be staged.
            && bytes.len() <= self.room
            && let Some(first) = self.send_whole(bytes)
        {
            let all = std::mem::take(bytes);
            return match first {
                First::Done => self.sent(cx, all.len()),
                other => self.sent_in_part(cx, all, other),
            };
        }
        self.poll_staged(cx, bytes)
    }

    fn poll_staged(&mut self, cx: &mut Context<'_>, bytes: &mut &[u8]) -> Poll<io::Result<()>> {
        loop {
            let portion = bytes.len().min(self.room());
            if portion > 0 {
                let (now, later) = bytes.split_at(portion);
                self.stage(now)?;
                *bytes = later;
            }
            match self.poll_flush(cx) {
                Poll::Ready(Ok(())) if bytes.is_empty() => return Poll::Ready(Ok(())),
                // The queue is empty now: there is room for the next portion.
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        }
    }

    /// More than one piece, or somebody else sends, or nothing is staged, or the connection is over.
    #[cold]
    fn poll_flush_slow(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let body = &*self.body;
        let len = self.staged.len();
        if len == 0 {
            self.staged.clear();
            // Nobody is to tell us of anything: a waker less to clone and drop, for whoever flushes once too often.
            if body.flush.is_at_rest() {
                return Poll::Ready(Ok(()));
            }
            return self.poll_queued(cx, None);
        }
        if body.flush.claim() {
            let sent = self.staged.send(body.as_fd(), self.budget());
            return self.go_on(cx, len, sent);
        }
        if body.flush.has_fin() || body.flush.is_closed() {
            self.staged.clear();
            return Poll::Ready(Err(self.refusal()));
        }
        body.append(&mut self.staged);
        self.poll_queued(cx, Some(len))
    }

    /// Waits until everything queued is out; after an append, of so many bytes, it first sends, or makes sure that somebody
    /// does.
    pub(crate) fn poll_queued(&mut self, cx: &Context<'_>, appended: Option<usize>) -> Poll<io::Result<()>> {
        let body = &*self.body;
        if let Some(len) = appended {
            match body.flush.kick() {
                Kick::Own => {
                    let mut out = lock(&body.slow).out.take();
                    let batch = Batch { bytes: &mut out, counted: true };
                    let drive = drive::drive(body, batch, self.budget(), Some(cx.waker()));
                    return self.driven(cx, len, drive);
                }
                Kick::Wait => {}
                Kick::Closed => {
                    body.discard_queue();
                    return Poll::Ready(Err(self.refusal()));
                }
            }
        }
        // Register, then look: whoever makes the word idle looks for a waiter afterwards.
        body.set_writer(cx);
        // Idle before closed: whoever frees a closed queue makes the word idle, and then the bytes are not out.
        let idle = body.flush.is_idle();
        if body.flush.is_closed() {
            return Poll::Ready(Err(self.refusal()));
        }
        if idle {
            body.forget_writer();
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    /// Why nothing is sent any more.
    pub(crate) fn refusal(&self) -> io::Error {
        match self.body.reason() {
            Some(reason) => reason.into(),
            None if self.body.flush.has_fin() => {
                io::Error::new(io::ErrorKind::BrokenPipe, "written after this side's FIN (shutdown or close)")
            }
            None => CloseReason::Aborted.into(),
        }
    }
}

/// How a first send came out.
enum First {
    /// All is out and the word is idle again.
    Done,
    /// All is out, but somebody came meanwhile: the word is still ours.
    Disturbed,
    /// Not all, or an error.
    Short(io::Result<usize>),
}
