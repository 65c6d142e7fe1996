//! What waits on a [`PipeWriter`]: the named futures, and what a flush came to.
//!
//! State: none beyond the writer's. Thread class: any thread, one task at a time. Laws: those of `writer`.

use crate::transport::Transmit;
use crate::writer::PipeWriter;
use epoxide::WriteHalf;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// How a flush ended.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (_input, mut output) = Duplex::new(conn).into_parts();
/// output.stage(b"hello")?;
/// let result = output.flush().await?;
/// assert!(!result.completed && !result.cancelled);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlushResult {
    /// Nothing more goes out by our own doing: this side was completed, shut down or closed. A loop that writes until this is set
    /// ends; when the connection broke instead, the flush is an error that says why.
    pub completed: bool,
    /// The wait was cancelled; what was staged goes out all the same.
    pub cancelled: bool,
}

/// The future of [`PipeWriter::flush`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (_input, mut output) = Duplex::new(conn).into_parts();
/// output.stage(b"hello")?;
/// assert!(!output.flush().await?.completed);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct FlushPipe<'a, W = WriteHalf> {
    pub(crate) writer: &'a mut PipeWriter<W>,
}

impl<W: Transmit> Future for FlushPipe<'_, W> {
    type Output = io::Result<FlushResult>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.writer.poll_flush(cx)
    }
}

/// The future of [`PipeWriter::send`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (_input, mut output) = Duplex::new(conn).into_parts();
/// assert!(!output.send(b"hello").await?.completed); // all of it is on its way
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct SendPipe<'a, W = WriteHalf> {
    pub(crate) writer: &'a mut PipeWriter<W>,
    pub(crate) bytes: &'a [u8],
}

impl<W: Transmit> Future for SendPipe<'_, W> {
    type Output = io::Result<FlushResult>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { writer, bytes } = &mut *self;
        writer.poll_send(cx, bytes)
    }
}

/// The future of [`PipeWriter::shutdown`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (_input, mut output) = Duplex::new(conn).into_parts();
/// output.shutdown().await?; // what is staged, then FIN
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ShutdownPipe<'a, W = WriteHalf> {
    pub(crate) writer: &'a mut PipeWriter<W>,
}

impl<W: Transmit> Future for ShutdownPipe<'_, W> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.writer.poll_shutdown(cx)
    }
}

/// The future of [`PipeWriter::write`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (_input, mut output) = Duplex::new(conn).into_parts();
/// assert_eq!(output.write(b"hello").await?, 5); // on its way at once, or waiting for its turn
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct WritePipe<'a, W = WriteHalf> {
    pub(crate) writer: &'a mut PipeWriter<W>,
    pub(crate) bytes: &'a [u8],
}

impl<W: Transmit> Future for WritePipe<'_, W> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { writer, bytes } = &mut *self;
        writer.poll_write(cx, bytes)
    }
}
