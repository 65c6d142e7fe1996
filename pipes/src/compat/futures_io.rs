//! `futures-io`: `AsyncRead`, `AsyncBufRead` and `AsyncWrite`, vectored too.
//!
//! Job: impls only. State owned: none. Thread class: any thread. `poll_close` flushes and sends our end.

use crate::transport::{Receive, Transmit};
use crate::{ByteStream, Duplex, PipeReader, PipeWriter};
use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use std::io::{self, IoSlice, IoSliceMut};
use std::pin::Pin;
use std::task::{Context, Poll};

impl<R: Receive> AsyncRead for PipeReader<R> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
        self.poll_read_slice(cx, space)
    }

    fn poll_read_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        spaces: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut done = 0;
        for space in spaces.iter_mut().filter(|space| !space.is_empty()) {
            if done > 0 && self.held_len() == 0 {
                break;
            }
            match self.poll_read_slice(cx, space) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(n)) => done += n,
                other if done == 0 => return other,
                // What came before it is told first; the error comes again.
                _ => break,
            }
        }
        Poll::Ready(Ok(done))
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

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush_all(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_shutdown(cx)
    }
}

/// The traits of a type that has an `input` and an `output` with them.
macro_rules! both_sides {
    ($($both:ident),*) => { $(
        impl<R: Receive, W: Transmit> AsyncRead for $both<R, W> {
            fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, space: &mut [u8]) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.input).poll_read(cx, space)
            }

            fn poll_read_vectored(
                mut self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                spaces: &mut [IoSliceMut<'_>],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.input).poll_read_vectored(cx, spaces)
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

            fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.output.poll_flush_all(cx)
            }

            fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                self.output.poll_shutdown(cx)
            }
        }
    )* };
}

both_sides!(ByteStream, Duplex);
