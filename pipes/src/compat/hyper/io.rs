//! hyper's IO traits: `Read` and `Write`, vectored too.
//!
//! Job: impls only. State owned: none. Thread class: any thread. `poll_shutdown` flushes and sends our end.

use crate::transport::{Receive, Transmit};
use crate::{ByteStream, Duplex, PipeReader};
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Moves held bytes into hyper's buffer. Its only safe way in is a copy; the bytes stay in the pooled buffer until then.
pub(super) fn hand_over<R: Receive>(input: &mut PipeReader<R>, buf: &mut ReadBufCursor<'_>) -> usize {
    let mut n = 0;
    for slice in input.buffer() {
        let part = &slice[..slice.len().min(buf.remaining())];
        buf.put_slice(part);
        n += part.len();
    }
    input.advance(n);
    n
}

/// The traits of a type that has an `input` and an `output`.
macro_rules! both_sides {
    ($($both:ident),*) => { $(
        impl<R: Receive, W: Transmit> Read for $both<R, W> {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                mut buf: ReadBufCursor<'_>,
            ) -> Poll<io::Result<()>> {
                let filled = self.input.poll_fill(cx);
                filled.map_ok(|()| {
                    hand_over(&mut self.input, &mut buf);
                })
            }
        }

        impl<R: Receive, W: Transmit> Write for $both<R, W> {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                self.output.poll_write(cx, bytes)
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.output.poll_flush_all(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.output.poll_shutdown(cx)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.output.poll_write_vectored(cx, slices)
            }
        }
    )* };
}

both_sides!(ByteStream, Duplex);
