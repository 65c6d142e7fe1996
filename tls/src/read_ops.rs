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
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.send_all(b"hello").await?;
/// assert_eq!(&server.read().await?.unwrap()[..], b"hello");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
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
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.send_all(b"hel").await?;
/// let mut data = server.read().await?.unwrap();
/// client.send_all(b"lo").await?;
/// while data.len() < 5 {
///     assert_ne!(server.read_more(&mut data).await?, 0, "the peer's end");
/// }
/// assert_eq!(&data[..], b"hello");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
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

/// The future of `read_slice` and `peek`.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.send_all(b"hello").await?;
/// let mut space = [0; 3];
/// assert_eq!(server.read_slice(&mut space).await?, 3);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct TlsReadSlice<'a> {
    half: &'a mut TlsReadHalf,
    space: &'a mut [u8],
    peek: bool,
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
        Self { half, space, peek: false }
    }

    pub(crate) fn peek(half: &'a mut TlsReadHalf, space: &'a mut [u8]) -> Self {
        half.begin_wait();
        Self { half, space, peek: true }
    }
}

impl Future for TlsReadSlice<'_> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, space, peek } = &mut *self;
        if *peek { half.poll_peek(cx, space) } else { half.poll_slice(cx, space) }
    }
}

/// The future of `flush`.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.stage(b"one ")?;
/// client.stage(b"two")?;
/// client.flush().await?; // both, in one record
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
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
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.shutdown().await?; // what is staged, close_notify, FIN
/// assert!(server.read().await?.is_none());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
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
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// client.send_all(&[7; 100_000]).await?; // in records of 16 KiB
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
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

/// Bytes that `send_all` takes at a time: what is encrypted under one hold of the lock.
const PORTION: usize = 256 * 1024;

impl Future for TlsSendAll<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { half, bytes } = &mut *self;
        loop {
            let (now, later) = bytes.split_at(bytes.len().min(half.room()).min(PORTION));
            *bytes = later;
            match half.poll_send(cx, now) {
                Poll::Ready(Ok(())) if bytes.is_empty() => return Poll::Ready(Ok(())),
                // The queue is empty now: there is room for the next portion.
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        }
    }
}
