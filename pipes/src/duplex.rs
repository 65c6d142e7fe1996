//! [`Duplex`]: a connection as two pipes.
//!
//! Job: hold them together. State owned: none beyond theirs. Thread class: any thread, one reader and one writer.

use crate::reader::PipeReader;
use crate::transport::{Receive, Transmit, Transport};
use crate::writer::PipeWriter;
use epoxide::{CloseHandle, Draining, ReadHalf, WriteHalf};

/// A connection as two pipes, which may be used by one task or taken apart for two.
///
/// ```no_run
/// use epoxide_pipes::Duplex;
///
/// async fn echo(connection: epoxide::Connection) -> std::io::Result<()> {
///     let mut pipe = Duplex::new(connection);
///     loop {
///         let result = pipe.input.read().await?;
///         if result.end && result.buffer.is_empty() {
///             return pipe.output.shutdown().await;
///         }
///         let n = result.buffer.len();
///         for slice in result.buffer {
///             pipe.output.stage(slice)?;
///         }
///         pipe.input.advance(n);
///         if pipe.output.flush().await?.completed {
///             return Ok(());
///         }
///     }
/// }
/// # let _ = echo;
/// ```
#[derive(Debug)]
pub struct Duplex<R = ReadHalf, W = WriteHalf> {
    /// What the peer sends.
    pub input: PipeReader<R>,
    /// What goes to the peer.
    pub output: PipeWriter<W>,
}

/// The name that it has in ioxide.
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
