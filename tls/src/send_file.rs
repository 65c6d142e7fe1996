//! Sending a range of a file: by the kernel (sendfile(2)) where it makes the records, else read and encrypted here.
//!
//! State: how far the range is. Who touches it: whoever polls the future. Thread class: any thread. Laws: 6 (a cut body
//! must not look whole), 8 (one portion a poll), 14, 15.

use crate::write_half::TlsWriteHalf;
use epoxide::SendFile;
use epoxide::layer::check_range;
use std::fs::File;
use std::future::Future;
use std::io;
use std::ops::RangeBounds;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// Bytes that are read and encrypted in one poll.
const PORTION: usize = 256 * 1024;

impl TlsWriteHalf {
    /// Sends a range of a regular file behind what is staged. Where the kernel makes the records
    /// ([`TlsFacts::kernel_tx`](crate::TlsFacts::kernel_tx)) it is not copied through this process (sendfile(2)); else it is
    /// read and encrypted here, 256 KiB at a time. Ready when the kernel has all of it.
    ///
    /// Any thread; the file is read by whoever polls: **polled on a reactor, a file that is not in the page cache blocks its
    /// loop**. The file must not change meanwhile.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] when `file` is not a regular file or ends before `range` does: nothing was sent, the
    /// session stays usable. [`io::ErrorKind::UnexpectedEof`] when the file was truncated while it was sent: the connection
    /// was reset. Else as [`flush`](Self::flush).
    ///
    /// # Cancel safety
    /// Dropped before a byte of the file has gone, none goes: what was staged is flushed, the session stays usable. Dropped
    /// later, the connection is reset: a cut body must not look whole. A [`close`](epoxide::CloseHandle::close) meanwhile goes
    /// out behind the file where the kernel encrypts; here it ends the file, with an error, and the peer sees a cut.
    pub fn send_file(&mut self, file: impl Into<Arc<OwnedFd>>, range: impl RangeBounds<u64>) -> TlsSendFile<'_> {
        let file = file.into();
        let how = match check_range(&file, &range) {
            Err(error) => How::Refused(self, Some(error)),
            Ok((at, end)) if self.session().facts.kernel_tx() => match self.queue_for_kernel() {
                Err(error) => How::Refused(self, Some(error)),
                Ok(()) => How::Kernel(self.half_mut().send_file(file, at..end)),
            },
            Ok((at, end)) => match file.try_clone() {
                Err(error) => How::Refused(self, Some(error)),
                Ok(file) => How::Here(Here { half: self, file: File::from(file), start: at, at, end, done: false }),
            },
        };
        TlsSendFile { how }
    }
}

/// The future of `send_file`.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// let file = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))?;
/// client.send_file(std::os::fd::OwnedFd::from(file), 0..9).await?;
/// assert_eq!(&server.read().await?.unwrap()[..], b"[package]");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless polled"]
pub struct TlsSendFile<'a> {
    how: How<'a>,
}

#[derive(Debug)]
enum How<'a> {
    /// The error is told once; then the future is over.
    Refused(&'a mut TlsWriteHalf, Option<io::Error>),
    Kernel(SendFile<'a>),
    Here(Here<'a>),
}

impl Future for TlsSendFile<'_> {
    type Output = io::Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.how {
            How::Refused(half, error) => match error.take() {
                Some(error) => Poll::Ready(Err(error)),
                None => half.poll_flush(cx),
            },
            How::Kernel(sending) => Pin::new(sending).poll(cx),
            How::Here(sending) => sending.poll(cx),
        }
    }
}

/// Read and encrypted here.
#[derive(Debug)]
struct Here<'a> {
    half: &'a mut TlsWriteHalf,
    file: File,
    start: u64,
    at: u64,
    end: u64,
    done: bool,
}

impl Here<'_> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Everything before the next portion is in the kernel: so there is room for it.
        if let Err(error) = ready!(self.half.poll_flush(cx)) {
            return self.over(Err(error));
        }
        if self.at == self.end {
            return self.over(Ok(()));
        }
        if self.at == self.start {
            self.half.session().set_file(true);
        }
        if let Err(error) = self.stage_portion() {
            self.half.cut();
            return self.over(Err(error));
        }
        match ready!(self.half.poll_flush(cx)) {
            Ok(()) if self.at < self.end => {
                // To the back of whatever queue this is polled from.
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            result => self.over(result),
        }
    }

    fn over(&mut self, result: io::Result<()>) -> Poll<io::Result<()>> {
        self.done = true;
        self.half.session().set_file(false);
        Poll::Ready(result)
    }

    fn stage_portion(&mut self) -> io::Result<()> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        // `max_staged` may be smaller than a portion, but it takes a byte.
        let len = left.min(PORTION).min(self.half.room()).max(1);
        let space = &mut self.half.spare(len)?[..len];
        let n = loop {
            match self.file.read_at(space, self.at) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => break result?,
            }
        };
        self.half.advance(n);
        if n == 0 {
            let Self { at, end, .. } = self;
            let text = format!(
                "send_file: the file ends at byte {at} and was to be sent up to {end}: it was truncated meanwhile; the \
                 connection was reset, so that the peer does not take a part for the whole"
            );
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        self.at += n as u64;
        Ok(())
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        if !self.done && self.at > self.start {
            self.half.cut();
        }
    }
}
