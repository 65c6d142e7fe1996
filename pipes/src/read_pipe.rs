//! What waits on a [`PipeReader`]: the future of a read, and what it found.
//!
//! State: none beyond the reader's. Thread class: any thread, one task at a time. Laws: those of `reader`.

use crate::reader::PipeReader;
use crate::sequence::Sequence;
use crate::transport::Receive;
use epoxide::ReadHalf;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// What a read found.
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
/// let result = input.read().await?;
/// assert!(result.buffer.starts_with(b"hel") && !result.cancelled);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "says whether more can come"]
pub struct ReadResult<'a> {
    /// Everything that was received and not consumed.
    pub buffer: Sequence<'a>,
    /// The peer has sent its end: nothing comes behind `buffer`.
    pub end: bool,
    /// The read was cancelled: `buffer` may hold nothing new.
    pub cancelled: bool,
}

/// The future of [`PipeReader::read`] and [`PipeReader::read_idle`].
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (mut input, _output) = Duplex::new(conn).into_parts();
/// drop(peer);
/// assert!(input.read().await?.end);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct ReadPipe<'a, R = ReadHalf> {
    /// `None` once it has returned.
    pub(crate) reader: Option<&'a mut PipeReader<R>>,
    pub(crate) idle: bool,
}

impl<'a, R: Receive> Future for ReadPipe<'a, R> {
    type Output = io::Result<ReadResult<'a>>;

    /// # Panics
    /// When polled again after it was ready.
    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let idle = self.idle;
        let polled = match &mut self.reader {
            Some(reader) => reader.poll_read(cx, idle),
            None => panic!("a read was polled after it had returned"),
        };
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(told)) => match self.reader.take() {
                Some(reader) => Poll::Ready(Ok(reader.result(told))),
                None => Poll::Pending,
            },
        }
    }
}
