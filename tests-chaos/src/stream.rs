//! Job: bytes that are known in advance, ways to send and to receive them, and what came of it.
//! State owned: none. Thread class: runs anywhere.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::Bytes;
use epoxide::{CloseReason, ReadHalf, WriteHalf};
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
pub async fn send(writer: &mut WriteHalf, key: u64, len: usize, mut rng: Rng, note: Note) -> io::Result<()> {
    let mut at = 0;
    while at < len {
        let most = [1, 50, 2000, 40_000][rng.below(4) as usize];
        let piece = bytes(key, at, len.min(at + 1 + rng.below(most) as usize));
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
    note.say(format!("shutting down after {len}"));
    writer.shutdown().await
}

/// Receives stream `key` until it ends, by ways of every kind.
pub async fn receive(reader: &mut ReadHalf, key: u64, mut rng: Rng, note: Note) -> Got {
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
