//! tokio's IO traits, without its runtime: `AsyncRead`, `AsyncBufRead` and `AsyncWrite`, vectored too.
//!
//! Job: impls only. State owned: none. Thread class: any thread. `poll_shutdown` flushes and sends our end.

use crate::transport::{Receive, Transmit};
use crate::{ByteStream, Duplex, PipeReader, PipeWriter};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};

/// Bytes of a `ReadBuf` that are zeroed at most before they are received into.
const MAX_ZEROED: usize = 64 * 1024;

impl<R: Receive> AsyncRead for PipeReader<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // The unfilled part is zeroed once; tokio remembers how far.
        let space = buf.initialize_unfilled_to(buf.remaining().min(MAX_ZEROED));
        self.poll_read_slice(cx, space).map_ok(|n| buf.advance(n))
    }
}

impl<R: Receive> AsyncBufRead for PipeReader<R> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().poll_first(cx)
    }

    fn consume(mut self: Pin<&mut Self>, n: usize) {
        self.advance(n);
    }
}

impl<W: Transmit> AsyncWrite for PipeWriter<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Self::poll_write(&mut self, cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Self::poll_write_vectored(&mut self, cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_all(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Self::poll_shutdown(&mut self, cx)
    }
}

/// The traits of a type that has an `input` and an `output` with them.
macro_rules! both_sides {
    ($($both:ident),*) => { $(
        impl<R: Receive, W: Transmit> AsyncRead for $both<R, W> {
            fn poll_read(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                Pin::new(&mut self.input).poll_read(cx, buf)
            }
        }

        impl<R: Receive, W: Transmit> AsyncBufRead for $both<R, W> {
            fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                Pin::new(&mut self.get_mut().input).poll_fill_buf(cx)
            }

            fn consume(mut self: Pin<&mut Self>, n: usize) {
                self.input.advance(n);
            }
        }

        impl<R: Receive, W: Transmit> AsyncWrite for $both<R, W> {
            fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                self.output.poll_write(cx, bytes)
            }

            fn poll_write_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                slices: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                self.output.poll_write_vectored(cx, slices)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.output.poll_flush_all(cx)
            }

            fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.output.poll_shutdown(cx)
            }
        }
    )* };
}

both_sides!(ByteStream, Duplex);
