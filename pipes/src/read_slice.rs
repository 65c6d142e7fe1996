//! A pipe reader as a plain stream of bytes: what byte streams and the IO traits are made of.
//!
//! Job: read into slices, or lend the first buffer. State owned: none beyond the reader's. Thread class: any thread.

use crate::reader::{PipeReader, State};
use crate::transport::Receive;
use epoxide::ReadHalf;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Reads shorter than this go through a pooled buffer, so that a reader of few bytes at a time makes few system calls.
const SHORT_READ: usize = 2048;

impl<R: Receive> PipeReader<R> {
    /// Reads into a slice and consumes what it took, as [`std::io::Read`] would: 0 is the peer's end (every time), or an
    /// empty slice. Held bytes come first; without any, a slice of some size is received into directly.
    ///
    /// # Errors
    /// As [`read`](Self::read). A cancel does not end it.
    pub fn poll_read_slice(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        if space.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.held.len() == 0 && self.state == State::Open && space.len() >= SHORT_READ && self.handle.get().is_none()
        {
            let n = self.half.poll_receive_slice(cx, space);
            if let Poll::Ready(Ok(0)) = n {
                self.state = State::Ended;
            }
            return n;
        }
        match self.poll_fill(cx) {
            Poll::Ready(Ok(())) => {
                let n = self.held.view().copy_to(space);
                self.advance(n);
                Poll::Ready(Ok(n))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Ready when bytes are held, or at the peer's end.
    pub(crate) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(handle) = self.handle.get()
            && handle.wait_for_completion(cx.waker())
        {
            self.complete();
        }
        self.check_open()?;
        if self.held.len() > 0 || self.state == State::Ended {
            return Poll::Ready(Ok(()));
        }
        self.half.poll_receive(cx).map_ok(|received| self.take_in(received))
    }

    /// The first slice held, received if there is none; empty at the peer's end.
    #[cfg(any(feature = "futures-io", feature = "tokio"))]
    pub(crate) fn poll_first(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        match self.poll_fill(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Ok(self.held.view().first())),
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }

    /// The future form of [`poll_read_slice`](Self::poll_read_slice).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn read_slice<'a>(&'a mut self, space: &'a mut [u8]) -> ReadSlice<'a, R> {
        self.begin_wait();
        ReadSlice { reader: self, space }
    }
}

/// The future of [`PipeReader::read_slice`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (mut input, _output) = Duplex::new(conn).into_parts();
/// peer.write_all(b"hello")?;
/// let mut space = [0; 3];
/// assert_eq!(input.read_slice(&mut space).await?, 3);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ReadSlice<'a, R = ReadHalf> {
    reader: &'a mut PipeReader<R>,
    space: &'a mut [u8],
}

impl<R: Receive> Future for ReadSlice<'_, R> {
    type Output = io::Result<usize>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { reader, space } = &mut *self;
        reader.poll_read_slice(cx, space)
    }
}
