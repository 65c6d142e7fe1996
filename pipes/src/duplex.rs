//! [`Duplex`]: a connection as two pipes.
//!
//! Job: hold them together. State owned: none beyond theirs. Thread class: any thread, one reader and one writer.

use crate::reader::PipeReader;
use crate::transport::{Receive, Transmit, Transport};
use crate::writer::PipeWriter;
use epoxide::{CloseHandle, Draining, ReadHalf, WriteHalf};

/// A connection as two pipes, which may be used by one task or taken apart for two.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let (mut input, mut output) = Duplex::new(conn).into_parts();
/// peer.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
/// let head = input.read_until(b"\r\n\r\n", 16 * 1024, std::time::Duration::from_secs(10)).await?;
/// output.stage(&head.buffer.to_vec())?;
/// output.flush().await?;
/// # let mut back = [0; 18];
/// # peer.read_exact(&mut back)?;
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Duplex<R = ReadHalf, W = WriteHalf> {
    /// What the peer sends.
    pub input: PipeReader<R>,
    /// What goes to the peer.
    pub output: PipeWriter<W>,
}

/// The name that it has in ioxide.
///
/// ```
/// # use epoxide::{Connection, block_on};
/// # use epoxide_pipes::*;
/// # use std::io::{Read as _, Write as _};
/// # block_on(async {
/// # let (mut peer, ours) = std::os::unix::net::UnixStream::pair()?;
/// # let conn = Connection::from_unix(ours)?;
/// let pipes: DualPipe = DualPipe::new(conn);
/// let (input, output) = pipes.into_parts();
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
pub type DualPipe<R = ReadHalf, W = WriteHalf> = Duplex<R, W>;

impl<R: Receive, W: Transmit> Duplex<R, W> {
    /// A connection as two pipes.
    pub fn new<T: Transport<Reader = R, Writer = W>>(connection: T) -> Self {
        let (reader, writer) = connection.into_halves();
        Self::from_halves(reader, writer)
    }

    /// The halves of a connection as two pipes.
    pub fn from_halves(reader: R, writer: W) -> Self {
        Self { input: PipeReader::new(reader), output: PipeWriter::new(writer) }
    }

    /// Two pipes as one.
    pub fn from_parts(input: PipeReader<R>, output: PipeWriter<W>) -> Self {
        Self { input, output }
    }

    /// The two pipes, each for a task or thread of its own.
    pub fn into_parts(self) -> (PipeReader<R>, PipeWriter<W>) {
        (self.input, self.output)
    }

    /// A handle that closes or resets the connection from any thread.
    pub fn close_handle(&self) -> CloseHandle {
        self.input.close_handle()
    }

    /// Resolves when the connection's runtime drains.
    pub fn draining(&self) -> Draining {
        self.input.draining()
    }
}
