//! What a client's connection reads and writes through.
//!
//! Job: hold the connection's read clock while an answer's head is waited for, which has a clock of its own
//! (`response_timeout`); bodies and idle connections are under the read clock. And look at the socket once before a request
//! goes out on a connection that was idle: the server's end may be there and not told yet. hyper reads before it takes a
//! request, so a request that meets an end is given back whole. State owned: the stream; one guard and the flags of a wait,
//! shared with whoever waits for the head. Thread class: the connection's task writes, any thread asks. Laws kept: 10 (the mutex
//! guards no user code).

use crate::ByteStream;
use epoxide::{Connection, ReadTimeoutSuspended};
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

/// A wait for an answer's head. Clones are of one connection.
#[derive(Clone, Debug, Default)]
pub(super) struct HeadWait(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    waits: bool,
    /// The socket is to be asked before the request is written.
    looks: bool,
    clock: Option<ReadTimeoutSuspended>,
}

impl HeadWait {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is about to be written, to a connection that was idle if it is `reused`.
    pub(super) fn begin(&self, reused: bool) {
        let mut state = self.lock();
        (state.waits, state.looks) = (true, reused);
    }

    fn takes_look(&self) -> bool {
        std::mem::take(&mut self.lock().looks)
    }

    /// The head came, or nobody waits for it any more: from now on the read clock counts.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        state.waits = false;
        let clock = state.clock.take();
        drop(state);
        drop(clock);
    }

    fn wrote(&self, stream: &ByteStream) {
        let mut state = self.lock();
        if state.waits && state.clock.is_none() {
            state.clock = Some(stream.input.get_ref().suspend_read_timeout());
        }
    }
}

/// See the module's text.
pub(super) struct ClientIo {
    stream: ByteStream,
    wait: HeadWait,
}

impl ClientIo {
    pub(super) fn new(connection: Connection, wait: HeadWait) -> Self {
        Self { stream: ByteStream::new(connection), wait }
    }
}

impl Read for ClientIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        if self.wait.takes_look() {
            self.stream.input.half.ask_socket();
        }
        Read::poll_read(Pin::new(&mut self.stream), cx, buf)
    }
}

impl Write for ClientIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.wait.wrote(&self.stream);
        self.stream.output.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.output.poll_flush_all(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.output.poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.wait.wrote(&self.stream);
        self.stream.output.poll_write_vectored(cx, slices)
    }
}
