//! The named futures of the write family.
//!
//! State: a borrow of the half; what they do is in `write_ops`. Thread class: any thread. Laws: none of its own.

use crate::conn::ending::fin_behind_queue;
use crate::conn::write_half::WriteHalf;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The future of `flush`.
///
/// ```
/// # epoxide::block_on(async {
/// # let (_peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = epoxide::Connection::from_unix(ours)?;
/// conn.stage(b"one ")?;
/// conn.flush().await
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Flush<'a> {
    pub(super) half: &'a mut WriteHalf,
}

impl Future for Flush<'_> {
    type Output = io::Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.half.poll_flush(cx)
    }
}

/// The future of `send_all`.
///
/// ```
/// # epoxide::block_on(async {
/// # let (_peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = epoxide::Connection::from_unix(ours)?;
/// conn.send_all(b"whole").await
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct SendAll<'a> {
    pub(super) half: &'a mut WriteHalf,
    pub(super) bytes: &'a [u8],
}

impl fmt::Debug for SendAll<'_> {
    /// Never the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendAll").field("left", &self.bytes.len()).finish_non_exhaustive()
    }
}

impl Future for SendAll<'_> {
    type Output = io::Result<()>;

    #[inline(always)]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, bytes } = &mut *self;
        half.poll_send_all(cx, bytes)
    }
}

/// The future of `shutdown`.
///
/// ```
/// # epoxide::block_on(async {
/// # let (_peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let mut conn = epoxide::Connection::from_unix(ours)?;
/// conn.shutdown().await // what is staged, then FIN
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct Shutdown<'a> {
    pub(super) half: &'a mut WriteHalf,
}

impl Future for Shutdown<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.half.poll_flush(cx) {
            Poll::Ready(Ok(())) => {
                fin_behind_queue(&self.half.body);
                Poll::Ready(Ok(()))
            }
            other => other,
        }
    }
}
