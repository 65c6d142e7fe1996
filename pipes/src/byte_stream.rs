//! [`ByteStream`]: a connection as a plain stream of bytes.
//!
//! Job: read into slices, write from slices, with bounded buffering. State owned: none beyond the two pipes'. Thread
//! class: any thread, one task at a time (`&mut self`).

use crate::duplex::Duplex;
use crate::read_slice::ReadSlice;
use crate::reader::PipeReader;
use crate::transport::{Receive, Transmit, Transport};
use crate::write_pipe::{ShutdownPipe, WritePipe};
use crate::writer::PipeWriter;
use bytes::Bytes;
use epoxide::{CloseHandle, Draining, ReadHalf, WriteHalf};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A connection as a plain stream of bytes, for code that reads and writes slices.
///
/// With the feature `futures-io` or `tokio` it has their IO traits. It is `Unpin`, and `Send` like everything here.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let mut stream = ByteStream::new(conn);
/// peer.write_all(b"hello")?;
/// let mut space = [0; 64];
/// let n = stream.read(&mut space).await?;
/// stream.write_all(&space[..n]).await?;
/// stream.flush().await?;
/// # let mut back = [0; 5];
/// # peer.read_exact(&mut back)?;
/// # assert_eq!(&back, b"hello");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct ByteStream<R = ReadHalf, W = WriteHalf> {
    pub(crate) input: PipeReader<R>,
    pub(crate) output: PipeWriter<W>,
}

impl<R: Receive, W: Transmit> ByteStream<R, W> {
    /// A stream over a connection.
    pub fn new<T: Transport<Reader = R, Writer = W>>(connection: T) -> Self {
        let (reader, writer) = connection.into_halves();
        Self::from_halves(reader, writer)
    }

    /// A stream over the halves of a connection.
    pub fn from_halves(reader: R, writer: W) -> Self {
        Self { input: PipeReader::new(reader), output: PipeWriter::new(writer) }
    }

    /// A stream over a connection, with a limit for the bytes that writes may leave unsent.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when the limit is 0.
    pub fn with_write_high_water<T>(connection: T, bytes: usize) -> io::Result<Self>
    where
        T: Transport<Reader = R, Writer = W>,
    {
        let (reader, writer) = connection.into_halves();
        Ok(Self { input: PipeReader::new(reader), output: PipeWriter::with_write_high_water(writer, bytes)? })
    }

    /// The reading and the writing side, each for a task or thread of its own. Nothing is lost: what was received and
    /// not read comes first.
    pub fn into_split(self) -> (PipeReader<R>, PipeWriter<W>) {
        (self.input, self.output)
    }

    /// A stream of the two sides that [`into_split`](Self::into_split) gave.
    pub fn from_split(input: PipeReader<R>, output: PipeWriter<W>) -> Self {
        Self { input, output }
    }

    /// The halves of the connection, and the bytes that were received and not read.
    pub fn into_halves(self) -> (R, W, Bytes) {
        let (reader, left) = self.input.into_parts();
        (reader, self.output.into_half(), left)
    }

    /// Reads into `space`, and returns how many bytes came: 0 is the peer's end (every time), or an empty slice.
    ///
    /// # Errors
    /// Why the connection ended, once everything received was delivered.
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read<'a>(&'a mut self, space: &'a mut [u8]) -> ReadSlice<'a, R> {
        self.input.read_slice(space)
    }

    /// Takes bytes of `bytes`, at least one of a slice that is not empty, and sends them at once if nothing is on its
    /// way. With `write_high_water` bytes (64 KiB at first) unsent it waits until half of them has gone.
    ///
    /// # Errors
    /// Why the connection ended; [`io::ErrorKind::BrokenPipe`] after this side's end.
    ///
    /// # Cancel safety
    /// Dropped before it was ready, it has taken nothing.
    pub fn write<'a>(&'a mut self, bytes: &'a [u8]) -> WritePipe<'a, W> {
        self.output.write(bytes)
    }

    /// Writes all of `bytes`. They may be on their way still: [`flush`](Self::flush) waits for that.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Cancel safety
    /// When dropped, some prefix of `bytes` was taken; never a byte twice.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut left = bytes;
        while !left.is_empty() {
            let n = self.write(left).await?;
            left = &left[n..];
        }
        Ok(())
    }

    /// Waits until the kernel has taken everything that was written.
    ///
    /// # Errors
    /// Why the connection ended; [`io::ErrorKind::BrokenPipe`] after this side's end.
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn flush(&mut self) -> FlushStream<'_, R, W> {
        FlushStream { stream: self }
    }

    /// Flushes, then tells the peer that nothing more comes. Reading goes on.
    ///
    /// # Errors
    /// Why the connection ended.
    ///
    /// # Cancel safety
    /// Dropped before it was ready, the flush goes on but no end follows; calling it again is right.
    pub fn shutdown(&mut self) -> ShutdownPipe<'_, W> {
        self.output.shutdown()
    }

    /// Bytes written that the kernel has not taken yet.
    pub fn unsent_len(&self) -> usize {
        self.output.unsent_len()
    }

    /// A handle that closes or resets the connection from any thread.
    pub fn close_handle(&self) -> CloseHandle {
        self.input.close_handle()
    }

    /// Resolves when the connection's runtime drains.
    pub fn draining(&self) -> Draining {
        self.input.draining()
    }

    /// The poll form of [`read`](Self::read). A `Pending` has registered `cx`'s waker in place of any earlier one.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn poll_read(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        self.input.poll_read_slice(cx, space)
    }

    /// The poll form of [`write`](Self::write).
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.output.poll_write(cx, bytes)
    }

    /// The poll form of [`write`](Self::write) with several slices.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn poll_write_vectored(&mut self, cx: &mut Context<'_>, slices: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.output.poll_write_vectored(cx, slices)
    }

    /// The poll form of [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.poll_flush_all(cx)
    }

    /// The poll form of [`shutdown`](Self::shutdown).
    ///
    /// # Errors
    /// As [`shutdown`](Self::shutdown).
    pub fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.output.poll_shutdown(cx)
    }
}

impl<R: Receive, W: Transmit> From<Duplex<R, W>> for ByteStream<R, W> {
    fn from(pipes: Duplex<R, W>) -> Self {
        let (input, output) = pipes.into_parts();
        Self { input, output }
    }
}

/// The future of [`ByteStream::flush`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let mut stream = ByteStream::new(conn);
/// assert_eq!(stream.write(b"hello").await?, 5);
/// stream.flush().await?; // nothing is unsent
/// assert_eq!(stream.unsent_len(), 0);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct FlushStream<'a, R = ReadHalf, W = WriteHalf> {
    stream: &'a mut ByteStream<R, W>,
}

impl<R: Receive, W: Transmit> Future for FlushStream<'_, R, W> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.stream.poll_flush(cx)
    }
}
