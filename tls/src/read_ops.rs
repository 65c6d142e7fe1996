//! The named futures of a session's halves.
//!
//! State: none beyond the half's. Thread class: any thread.

use crate::read_half::TlsReadHalf;
use crate::write_half::TlsWriteHalf;
use epoxide::RecvBuf;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future of `read` and `read_idle`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct TlsRead<'a> {
    half: &'a mut TlsReadHalf,
    idle: bool,
}

impl<'a> TlsRead<'a> {
    pub(crate) fn new(half: &'a mut TlsReadHalf, idle: bool) -> Self {
        half.begin_wait();
        Self { half, idle }
    }
}

impl Future for TlsRead<'_> {
    type Output = io::Result<Option<RecvBuf>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let idle = self.idle;
        self.half.poll_block(cx, idle)
    }
}

/// The future of `read_more`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct TlsReadMore<'a> {
    half: &'a mut TlsReadHalf,
    buf: &'a mut RecvBuf,
}

impl<'a> TlsReadMore<'a> {
    pub(crate) fn new(half: &'a mut TlsReadHalf, buf: &'a mut RecvBuf) -> Self {
        half.begin_wait();
        Self { half, buf }
    }
}

impl Future for TlsReadMore<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, buf } = &mut *self;
        half.poll_more(cx, buf)
    }
}

/// The future of `read_slice`.
#[must_use = "futures do nothing unless polled"]
pub struct TlsReadSlice<'a> {
    half: &'a mut TlsReadHalf,
    space: &'a mut [u8],
}

impl fmt::Debug for TlsReadSlice<'_> {
    /// Never the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsReadSlice").field("len", &self.space.len()).finish_non_exhaustive()
    }
}

impl<'a> TlsReadSlice<'a> {
    pub(crate) fn new(half: &'a mut TlsReadHalf, space: &'a mut [u8]) -> Self {
        half.begin_wait();
        Self { half, space }
    }
}

impl Future for TlsReadSlice<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, space } = &mut *self;
        half.poll_slice(cx, space)
    }
}

/// The future of `flush`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct TlsFlush<'a> {
    half: &'a mut TlsWriteHalf,
}

impl<'a> TlsFlush<'a> {
    pub(crate) fn new(half: &'a mut TlsWriteHalf) -> Self {
        Self { half }
    }
}

impl Future for TlsFlush<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.half.poll_flush(cx)
    }
}

/// The future of `shutdown`.
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct TlsShutdown<'a> {
    half: &'a mut TlsWriteHalf,
}

impl<'a> TlsShutdown<'a> {
    pub(crate) fn new(half: &'a mut TlsWriteHalf) -> Self {
        Self { half }
    }
}

impl Future for TlsShutdown<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.half.poll_shutdown(cx)
    }
}

/// The future of `send_all`.
#[must_use = "futures do nothing unless polled"]
pub struct TlsSendAll<'a> {
    half: &'a mut TlsWriteHalf,
    bytes: &'a [u8],
}

impl fmt::Debug for TlsSendAll<'_> {
    /// Never the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSendAll").field("left", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl<'a> TlsSendAll<'a> {
    pub(crate) fn new(half: &'a mut TlsWriteHalf, bytes: &'a [u8]) -> Self {
        Self { half, bytes }
    }
}

/// Bytes that `send_all` stages at a time: what is encrypted under one hold of the lock.
const PORTION: usize = 256 * 1024;

impl Future for TlsSendAll<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, bytes } = &mut *self;
        loop {
            let room = half.room().min(PORTION);
            if room > 0 {
                let (now, later) = bytes.split_at(bytes.len().min(room));
                half.stage(now)?;
                *bytes = later;
            }
            match half.poll_flush(cx) {
                Poll::Ready(Ok(())) if bytes.is_empty() => return Poll::Ready(Ok(())),
                // The queue is empty now: there is room for the next portion.
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        }
    }
}
