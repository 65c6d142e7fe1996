//! What a served connection reads and writes through.
//!
//! Job: tell apart why hyper reads (the start of a request, its body, nothing at all), and treat drain, clocks and the
//! client's end by that. State owned: the stream and a few flags. Thread class: the task that drives the connection;
//! after an upgrade whoever has the stream. Laws kept: 6 (an idle connection reads by `read_idle`), DESIGN 5 (a busy
//! handler is never timed out: the read clock counts only while a body is waited for).
//!
//! hyper's HTTP/1 server is told to allow half-closed clients, so that it reads only for a head or a body. A client that
//! goes away while its answer is pending is seen here instead, from the flush that ends each of hyper's rounds: this
//! reads one buffer ahead, at most.

use super::io::hand_over;
use super::tracked::Requests;
use crate::ByteStream;
use crate::transport::{Receive, Transmit};
use epoxide::ReadTimeoutSuspended;
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// The answer to a head that took too long.
const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";

/// See the module's text.
pub(super) struct ServerIo<R, W> {
    stream: ByteStream<R, W>,
    requests: Arc<Requests>,
    /// HTTP/1: requests follow one another, so it is known why hyper reads.
    one_at_a_time: bool,
    half_close: bool,
    /// hyper was told of the input's end.
    ended: bool,
    /// hyper waits for input, since its last flush: it needs nobody to look for it.
    reads: bool,
    /// Holds the read clock, except while a body is waited for.
    clock: Option<ReadTimeoutSuspended>,
}

impl<R: Receive, W: Transmit> ServerIo<R, W> {
    pub(super) fn new(
        stream: ByteStream<R, W>,
        requests: Arc<Requests>,
        one_at_a_time: bool,
        half_close: bool,
        clock: Option<ReadTimeoutSuspended>,
    ) -> Self {
        Self { stream, requests, one_at_a_time, half_close, ended: false, reads: false, clock }
    }

    /// The stream alone, for the protocol that follows.
    pub(super) fn into_stream(self) -> ByteStream<R, W> {
        self.stream
    }

    fn hold_clock(&mut self) {
        if self.clock.is_none() {
            self.clock = self.stream.input.get_ref().suspend_read_timeout();
        }
    }

    /// Waits for bytes, as the state of the requests asks.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // HTTP/2 first: a tunnel is one of its streams, and upgrades nothing.
        if !self.one_at_a_time {
            return self.stream.input.poll_fill(cx);
        }
        if self.requests.is_upgraded() || self.requests.active() > 0 {
            self.clock = None;
            return self.stream.input.poll_fill(cx);
        }
        if self.requests.head_timed_out() {
            // Best effort: the client may not read. Never into an answer that hyper has more of.
            if !self.requests.is_answering() && self.stream.output.stage(TIMED_OUT).is_ok() {
                let _ = self.stream.output.poll_flush_all(cx)?;
            }
            let text = "the client took too long to send the head of a request";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
        }
        self.hold_clock();
        if self.requests.is_in_head() {
            return self.stream.input.poll_fill(cx);
        }
        // Ends at a drain, too: hyper sees the end of its input.
        self.stream.input.begin_wait();
        self.stream.input.poll_read(cx, true).map_ok(|_| ())
    }

    /// Looks whether the client has gone, while hyper waits for the handler.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        let answering = self.one_at_a_time && self.requests.active() > 0 && !self.requests.is_upgraded();
        if !answering || self.reads || self.ended || self.stream.input.held_len() > 0 {
            return Ok(());
        }
        self.hold_clock();
        match self.stream.input.poll_fill(cx) {
            Poll::Ready(Ok(())) if self.stream.input.held_len() == 0 && !self.half_close => {
                let text = "the client ended the connection before it was answered";
                Err(io::Error::new(io::ErrorKind::ConnectionAborted, text))
            }
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl<R: Receive, W: Transmit> Read for ServerIo<R, W> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, mut buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let filled = self.poll_fill(cx);
        self.reads = filled.is_pending();
        ready!(filled)?;
        if hand_over(&mut self.stream.input, &mut buf) == 0 {
            self.ended = true;
        } else if !self.one_at_a_time {
            self.requests.count_traffic();
        } else if self.requests.active() == 0 {
            self.requests.set_in_head(true);
        }
        Poll::Ready(Ok(()))
    }
}

impl<R: Receive, W: Transmit> Write for ServerIo<R, W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.one_at_a_time {
            self.requests.count_traffic();
        }
        self.stream.output.poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_gone(cx)?;
        self.reads = false;
        ready!(self.stream.output.poll_flush_all(cx))?;
        self.requests.all_is_sent();
        Poll::Ready(Ok(()))
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
        if !self.one_at_a_time {
            self.requests.count_traffic();
        }
        self.stream.output.poll_write_vectored(cx, slices)
    }
}
