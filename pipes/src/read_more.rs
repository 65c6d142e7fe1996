//! Reads that want a certain amount: at least so many bytes, exactly so many, or everything up to a delimiter.
//!
//! Job: receive until the amount is held, bounded, with errors that name the bound. State owned: none beyond the
//! reader's. Thread class: any thread. Laws kept: 16 (each has a limit).

use crate::read_pipe::ReadResult;
use crate::reader::{PipeReader, Told};
use crate::transport::Receive;
use epoxide::time;
use std::future::poll_fn;
use std::io;
use std::time::Duration;

impl<R: Receive> PipeReader<R> {
    /// Reads until at least `n` bytes are held, and returns everything that is: less than `n` only with `end` or
    /// `cancelled` set.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] when `n` is more than [`max_held`](Self::set_max_held); else as
    /// [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped: what was received is held.
    pub async fn read_at_least(&mut self, n: usize) -> io::Result<ReadResult<'_>> {
        let told = self.grow_to(n).await?;
        Ok(self.result(told))
    }

    /// Reads until `n` bytes are held, and returns the first `n`. They are consumed by [`advance`](Self::advance), as always.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] when the peer ends before; what it sent stays held.
    /// [`io::ErrorKind::QuotaExceeded`] when `n` is more than [`max_held`](Self::set_max_held); else as
    /// [`read`](Self::read).
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped: what was received is held.
    pub async fn read_exact(&mut self, n: usize) -> io::Result<ReadResult<'_>> {
        let told = self.grow_to(n).await?;
        let held = self.held_len();
        if told == Told::End && held < n {
            let text = format!("the peer ended after {held} of {n} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
        }
        Ok(self.result_of(n, told))
    }

    /// Reads until `delimiter` is among the first `limit` bytes held, within `within`, and returns everything up to its
    /// end. At the peer's end with nothing held it returns an empty buffer with `end` set.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`] when the first `limit` bytes have no delimiter, and
    /// [`io::ErrorKind::TimedOut`] when it did not come in time: both name the limit. [`io::ErrorKind::UnexpectedEof`]
    /// when the peer ends before; [`io::ErrorKind::InvalidInput`] for an empty delimiter; else as [`read`](Self::read).
    /// What was received stays held after all of them.
    ///
    /// # Cancel safety
    /// Nothing is lost or repeated when the future is dropped: what was received is held.
    pub async fn read_until(&mut self, delimiter: &[u8], limit: usize, within: Duration) -> io::Result<ReadResult<'_>> {
        let (length, told) = match self.find_in_held(delimiter, limit, 0)? {
            Some(length) => (length, Told::Bytes),
            // The clock is taken out only when there is something to wait for.
            None => match time::timeout(within, self.grow_until(delimiter, limit)).await {
                Ok(found) => found?,
                Err(_) => {
                    let held = self.held_len();
                    let text =
                        format!("no delimiter came within {within:?}; {held} bytes are held, the limit is {limit}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            },
        };
        Ok(self.result_of(length, told))
    }

    async fn grow_to(&mut self, n: usize) -> io::Result<Told> {
        let limit = self.max_held();
        if n > limit {
            let text = format!("{n} bytes at once are wanted and max_held is {limit}: raise it or read less");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        self.begin_wait();
        while self.held_len() < n {
            let told = poll_fn(|cx| self.poll_grow(cx)).await?;
            if told != Told::Bytes {
                return Ok(told);
            }
        }
        self.check_open()?;
        Ok(Told::Bytes)
    }

    /// The length up to the delimiter's end, and how the wait for it ended.
    async fn grow_until(&mut self, delimiter: &[u8], limit: usize) -> io::Result<(usize, Told)> {
        self.begin_wait();
        loop {
            // What was searched already cannot hold a whole delimiter, only its beginning.
            let searched = (self.held_len() + 1).saturating_sub(delimiter.len());
            let told = poll_fn(|cx| self.poll_grow(cx)).await?;
            if let Some(length) = self.find_in_held(delimiter, limit, searched)? {
                return Ok((length, Told::Bytes));
            }
            match (told, self.held_len()) {
                (Told::Bytes, _) => {}
                (Told::Cancelled, held) => return Ok((held, told)),
                (Told::End, 0) => return Ok((0, told)),
                (Told::End, held) => {
                    let text = format!("the peer ended after {held} bytes without a delimiter (limit {limit})");
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
            }
        }
    }

    /// The length up to the end of the first delimiter, which is not before `from`.
    fn find_in_held(&self, delimiter: &[u8], limit: usize, from: usize) -> io::Result<Option<usize>> {
        if delimiter.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an empty delimiter ends nothing"));
        }
        if let Some(at) = self.buffer().up_to(limit).find_from(from, delimiter) {
            return Ok(Some(at + delimiter.len()));
        }
        if self.held_len() >= limit {
            let text = format!("the first {limit} bytes have no delimiter, and the limit is {limit}");
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
        }
        Ok(None)
    }

    /// The first `n` bytes as a result. The end is told with the last of them only.
    fn result_of(&self, n: usize, told: Told) -> ReadResult<'_> {
        let result = self.result(told);
        ReadResult { buffer: result.buffer.up_to(n), end: result.end && n >= self.held_len(), ..result }
    }
}
