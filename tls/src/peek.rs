//! Looking at plaintext without taking it.
//!
//! BoringSSL has one record open at a time, so what was looked at is kept here, in a pooled block, and every read takes it
//! from there first. State: that block, the reader's own. Thread class: any thread, one at a time (`&mut self`). Laws: 16
//! (a block grows as in `read_more`).

use crate::read_half::{Fill, TlsReadHalf};
use crate::read_ops::TlsReadSlice;
use bytes::Buf;
use epoxide::{ReadHalf, RecvBuf};
use std::io;
use std::task::{Context, Poll, ready};

impl TlsReadHalf {
    /// Copies what is there into a slice without taking it, or waits for it. 0 is the peer's close_notify (or an empty
    /// slice).
    ///
    /// What it shows is decrypted and kept in a block of this half until it is read.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped.
    pub fn peek<'a>(&'a mut self, space: &'a mut [u8]) -> TlsReadSlice<'a> {
        TlsReadSlice::peek(self, space)
    }

    pub(crate) fn poll_peek(&mut self, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        if space.is_empty() {
            return Poll::Ready(Ok(0));
        }
        if self.session().facts.kernel_rx() {
            let shown = self.poll_kernel(false, |half| half.poll_peek(cx, space).map_ok(|n| (n > 0).then_some(n)));
            return shown.map_ok(Option::unwrap_or_default);
        }
        let mut seen = match self.seen.take() {
            Some(seen) => seen,
            None => match ready!(self.poll_plain(cx, false, |half, fill| half.fill_block(fill)))? {
                Some(seen) => seen,
                None => return Poll::Ready(Ok(0)),
            },
        };
        // What has come meanwhile. Why nothing more comes is told once this is read.
        while seen.len() < space.len()
            && matches!(self.try_plain(|half, fill| half.fill_more(&mut seen, fill)), Ok(Some(_)))
        {}
        let n = space.len().min(seen.len());
        space[..n].copy_from_slice(&seen[..n]);
        self.seen = Some(seen);
        Poll::Ready(Ok(n))
    }

    /// Hands out what a peek has seen.
    #[cold]
    pub(crate) fn take_seen<T>(
        &mut self,
        mut seen: RecvBuf,
        into: &mut impl FnMut(&ReadHalf, &mut Fill<'_>) -> io::Result<T>,
    ) -> io::Result<Option<T>> {
        let taken = into(self.half(), &mut |space| {
            let n = space.len().min(seen.len());
            space[..n].copy_from_slice(&seen[..n]);
            seen.advance(n);
            Ok(n)
        });
        // Declined by the caller's space, or larger than it: it stays.
        self.seen = Some(seen).filter(|seen| !seen.is_empty());
        taken.map(Some)
    }
}
