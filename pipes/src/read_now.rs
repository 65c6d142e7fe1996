//! Reading without waiting.
//!
//! State: none beyond the reader's. Thread class: any thread, one task at a time (`&mut self`). Laws: those of `reader`.

use crate::control::Asked;
use crate::read_pipe::ReadResult;
use crate::reader::{PipeReader, State, Told, too_much};
use crate::transport::Receive;
use std::io;

impl<R: Receive> PipeReader<R> {
    /// What [`read`](Self::read) would return without waiting; `None` if it would wait.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn try_read(&mut self) -> io::Result<Option<ReadResult<'_>>> {
        if let Some(handle) = self.handle.get() {
            match handle.check() {
                Asked::Nothing => {}
                Asked::Cancel => return Ok(Some(self.result(Told::Cancelled))),
                Asked::Complete => self.complete(),
            }
        }
        self.check_open()?;
        if self.is_settled() {
            return Ok(Some(self.result(Told::Bytes)));
        }
        match self.try_behind() {
            Ok(()) => Ok(Some(self.result(Told::Bytes))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Receives what is known to be there, into the free tail of what is held if that is worth it.
    fn try_behind(&mut self) -> io::Result<()> {
        if self.held.len() > 0 {
            if self.held.len() >= self.max_held() {
                return Err(too_much(self.held.len(), self.max_held()));
            }
            self.held.settle();
            if let Some(last) = self.held.takes_more() {
                match self.half.try_receive_more(last)? {
                    0 => self.state = State::Ended,
                    n => self.held.grown(n),
                }
                return Ok(());
            }
        }
        let received = self.half.try_receive()?;
        self.take_in(received);
        Ok(())
    }
}
