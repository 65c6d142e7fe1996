//! Job: bytes that are known in advance, ways to send and to receive them, and what came of it.
//! State owned: none. Thread class: runs anywhere.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use epoxide::{CloseReason, ReadHalf, RecvBuf, StagedLimit, WriteHalf};
use epoxide_tests_e2e::Rng;

use crate::trial::Note;

/// Byte `at` of stream `key`: a shift, a gap or another stream's byte shows.
pub fn byte(key: u64, at: usize) -> u8 {
    let mixed = (at as u64 ^ key.rotate_left(17)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

/// Bytes `from..to` of stream `key`.
pub fn bytes(key: u64, from: usize, to: usize) -> Vec<u8> {
    (from..to).map(|at| byte(key, at)).collect()
}

/// A writing half, plain or of a session.
pub trait Sink: Send {
    /// Copies behind what is staged.
    fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit>;
    /// Puts behind what is staged.
    fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit>;
    /// Sends what is staged.
    fn flush(&mut self) -> impl Future<Output = io::Result<()>> + Send;
    /// Stages and flushes.
    fn send_all(&mut self, bytes: &[u8]) -> impl Future<Output = io::Result<()>> + Send;
    /// Flushes and ends.
    fn shutdown(&mut self) -> impl Future<Output = io::Result<()>> + Send;
    /// Now and then: new keys, where there are any.
    fn renew(&mut self, _rng: &mut Rng) -> io::Result<()> {
        Ok(())
    }
}

/// A reading half, plain or of a session.
pub trait Source: Send {
    /// Reads a block.
    fn read(&mut self) -> impl Future<Output = io::Result<Option<RecvBuf>>> + Send;
    /// Reads behind the bytes of a block.
    fn read_more(&mut self, block: &mut RecvBuf) -> impl Future<Output = io::Result<usize>> + Send;
    /// Reads into a slice.
    fn read_slice(&mut self, space: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;
    /// Copies what is there, and leaves it there.
    fn peek(&mut self, space: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;
}

/// The traits by the methods of the same names, for what has them all; `more_out` is what a writer has beyond.
macro_rules! halves {
    ($writer:ty { $($more_out:tt)* } $reader:ty) => {
        impl crate::stream::Sink for $writer {
            fn stage(&mut self, bytes: &[u8]) -> Result<(), epoxide::StagedLimit> {
                Self::stage(self, bytes)
            }
            fn stage_bytes(&mut self, bytes: bytes::Bytes) -> Result<(), epoxide::StagedLimit> {
                Self::stage_bytes(self, bytes)
            }
            fn flush(&mut self) -> impl Future<Output = std::io::Result<()>> + Send {
                Self::flush(self)
            }
            async fn send_all(&mut self, bytes: &[u8]) -> std::io::Result<()> {
                Self::send_all(self, bytes).await
            }
            fn shutdown(&mut self) -> impl Future<Output = std::io::Result<()>> + Send {
                Self::shutdown(self)
            }
            $($more_out)*
        }
        impl crate::stream::Source for $reader {
            fn read(&mut self) -> impl Future<Output = std::io::Result<Option<epoxide::RecvBuf>>> + Send {
                Self::read(self)
            }
            async fn read_more(&mut self, block: &mut epoxide::RecvBuf) -> std::io::Result<usize> {
                Self::read_more(self, block).await
            }
            async fn read_slice(&mut self, space: &mut [u8]) -> std::io::Result<usize> {
                Self::read_slice(self, space).await
            }
            async fn peek(&mut self, space: &mut [u8]) -> std::io::Result<usize> {
                Self::peek(self, space).await
            }
        }
    };
}
#[cfg(feature = "tls")]
pub(crate) use halves;

halves! {
    WriteHalf {}
    ReadHalf
}

/// How a stream ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The peer's FIN.
    Fin,
    /// An error, with its reason if the runtime gave one.
    Error(Option<CloseReason>, String),
    /// The bytes were wrong.
    Corrupt(String),
}

impl End {
    /// An error of the runtime.
    pub fn of(error: &io::Error) -> Self {
        Self::Error(CloseReason::of(error), error.to_string())
    }
}

/// What a receiver got.
#[derive(Clone, Debug)]
pub struct Got {
    /// Bytes, all of them right unless the end says otherwise.
    pub n: usize,
    /// Why no more came.
    pub end: End,
}

/// Polls once; `None`: it was pending and is dropped.
pub async fn once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(move |cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn refused(limit: &epoxide::StagedLimit) -> io::Error {
    io::Error::other(limit.to_string())
}

/// Sends bytes `0..len` of stream `key`, in pieces and by ways of every kind, then the FIN.
pub async fn send(writer: &mut impl Sink, key: u64, len: usize, rng: Rng, note: Note) -> io::Result<()> {
    send_part(writer, key, len, len, rng, &note).await?;
    note.say(format!("shutting down after {len}"));
    writer.shutdown().await
}

/// Sends bytes `0..until` of them, the same way, without the end.
pub async fn send_part(
    writer: &mut impl Sink,
    key: u64,
    len: usize,
    until: usize,
    mut rng: Rng,
    note: &Note,
) -> io::Result<()> {
    let mut at = 0;
    while at < until {
        writer.renew(&mut rng)?;
        let most = [1, 50, 2000, 40_000][rng.below(4) as usize];
        let piece = bytes(key, at, until.min(at + 1 + rng.below(most) as usize));
        note.say(format!("sending {}..{} of {len}", at, at + piece.len()));
        at += piece.len();
        match rng.below(6) {
            0 => writer.send_all(&piece).await?,
            1 => {
                writer.stage_bytes(Bytes::from(piece)).map_err(|e| refused(&e))?;
                writer.flush().await?;
            }
            2 => {
                // Given up half way: what was staged still goes out.
                writer.stage(&piece).map_err(|e| refused(&e))?;
                if let Some(result) = once(writer.flush()).await {
                    result?;
                }
            }
            3 => {
                let half = piece.len() / 2;
                writer.stage(&piece[..half]).map_err(|e| refused(&e))?;
                writer.stage_bytes(Bytes::copy_from_slice(&piece[half..])).map_err(|e| refused(&e))?;
                writer.flush().await?;
            }
            _ => {
                writer.stage(&piece).map_err(|e| refused(&e))?;
                writer.flush().await?;
            }
        }
    }
    Ok(())
}

/// Receives stream `key` until it ends, by ways of every kind. An end must stay what it is.
pub async fn receive(reader: &mut impl Source, key: u64, rng: Rng, note: Note) -> Got {
    let got = receive_all(reader, key, rng, &note).await;
    note.say(format!("asking again for the end after {}", got.n));
    let again = reader.read().await.map(|more| more.map(|more| more.len()));
    match (&got.end, &again) {
        (End::Fin, Ok(None)) | (End::Error(..), Err(_)) | (End::Corrupt(_), _) => got,
        (end, _) => Got { n: got.n, end: End::Corrupt(format!("it ended with {end:?}, and then with {again:?}")) },
    }
}

async fn receive_all(reader: &mut impl Source, key: u64, mut rng: Rng, note: &Note) -> Got {
    let mut n = 0;
    let mut space = [0; 700];
    loop {
        note.say(format!("reading at {n}"));
        let result = match rng.below(8) {
            0 => match reader.read_slice(&mut space).await {
                Ok(0) => Ok(None),
                other => other.map(|got| Some((check(key, n, &space[..got]), got))),
            },
            1 => match once(reader.read()).await {
                None => continue,
                Some(result) => result.map(|got| got.map(|got| (check(key, n, &got), got.len()))),
            },
            2 => match reader.peek(&mut space).await {
                Ok(0) => Ok(None),
                other => other.map(|got| Some((check(key, n, &space[..got]), 0))),
            },
            3 => match reader.read().await {
                Ok(Some(mut first)) => {
                    note.say(format!("reading more at {n} + {}", first.len()));
                    match reader.read_more(&mut first).await {
                        // What the first read brought counts, whatever the second met; the next look says it again.
                        _ if !first.is_empty() => Ok(Some((check(key, n, &first), first.len()))),
                        other => other.map(|_| None),
                    }
                }
                other => other.map(|_| None),
            },
            _ => reader.read().await.map(|got| got.map(|got| (check(key, n, &got), got.len()))),
        };
        match result {
            Ok(Some((Ok(()), got))) => n += got,
            Ok(Some((Err(what), _))) => return Got { n, end: End::Corrupt(what) },
            Ok(None) => return Got { n, end: End::Fin },
            Err(error) => return Got { n, end: End::of(&error) },
        }
    }
}

/// Are these the bytes from `at` on?
pub fn check(key: u64, at: usize, got: &[u8]) -> Result<(), String> {
    match got.iter().enumerate().find(|(i, b)| **b != byte(key, at + i)) {
        None => Ok(()),
        Some((i, b)) => Err(format!("byte {} is {b}, not {}", at + i, byte(key, at + i))),
    }
}
