//! A task: its future, its waker and its header in one box.
//!
//! State: what is polled. Who touches it: the reactor, which moves the box out of the table for a poll and back.
//! Thread class: reactor only. Laws: 9, 10.

use crate::exec::header::Header;
use crate::exec::spawn::Outcome;
use crate::trace;
use pin_project_lite::pin_project;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

/// A future with its output type erased: one virtual call a poll, no wrapper future.
pub(crate) trait Erased {
    /// `Ready(false)`: the future returned an error.
    fn poll_erased(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool>;
}

impl<F> Erased for F
where
    F: Future,
    F::Output: Outcome,
{
    #[inline]
    fn poll_erased(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        self.poll(cx).map(|outcome| outcome.settle().inspect_err(|error| trace::handler_failed(error)).is_ok())
    }
}

pin_project! {
    struct Cell<F: ?Sized> {
        waker: Waker,
        header: Arc<Header>,
        #[pin]
        future: F,
    }
}

/// See the module's text. Two words, so that moving it is cheap.
pub(crate) struct Task(Pin<Box<Cell<dyn Erased>>>);

impl Task {
    pub(crate) fn new<F>(future: F, header: Arc<Header>) -> Self
    where
        F: Future + 'static,
        F::Output: Outcome,
    {
        Self(Box::pin(Cell { waker: Waker::from(header.clone()), header, future }))
    }

    #[inline]
    pub(crate) fn header(&self) -> &Arc<Header> {
        &self.0.header
    }

    #[inline]
    pub(crate) fn waker(&self) -> &Waker {
        &self.0.waker
    }

    #[inline]
    pub(crate) fn poll(&mut self) -> Poll<bool> {
        let cell = self.0.as_mut().project();
        cell.future.poll_erased(&mut Context::from_waker(cell.waker))
    }
}
