//! The loop of `http::answer_all` on pipes: heads are looked for in the view over what was received, and nothing is
//! copied or counted by hand. Over any transport.
//!
//! State: none. Thread class: any thread.

use crate::http::{END, HEAD_DEADLINE, MAX_HEAD, TOO_LARGE};
use epoxide_pipes::transport::{Receive, Transmit};
use epoxide_pipes::{Duplex, Sequence};
use std::io;

/// Gives every request the same answer until the client leaves, or stalls in a head for longer than [`HEAD_DEADLINE`].
///
/// A drain ends it between requests. The deadline costs nothing while heads come whole.
///
/// # Errors
/// Why the connection ended, if not by the client's FIN.
pub async fn answer_all<R: Receive, W: Transmit>(mut pipe: Duplex<R, W>, answer: &'static [u8]) -> io::Result<()> {
    loop {
        let result = pipe.input.read_idle().await?;
        if result.end && result.buffer.is_empty() {
            return Ok(());
        }
        let (requests, used) = heads(result.buffer);
        if requests == 0 {
            // A head that has begun: the rest of it within bounds. Nothing is consumed, so the next round finds it whole.
            match pipe.input.read_until(END, MAX_HEAD, HEAD_DEADLINE).await {
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                    return refuse(pipe).await;
                }
                Err(error) => return Err(error),
            }
        }
        pipe.input.advance(used);
        if requests == 1 {
            if pipe.output.send(answer).await?.completed {
                return Ok(());
            }
            continue;
        }
        for _ in 0..requests {
            pipe.output.stage(answer)?;
        }
        if pipe.output.flush().await?.completed {
            return Ok(());
        }
    }
}

#[cold]
async fn refuse<R: Receive, W: Transmit>(mut pipe: Duplex<R, W>) -> io::Result<()> {
    pipe.output.stage(TOO_LARGE)?;
    pipe.output.shutdown().await
}

/// How many heads end in `view`, and where the last one does.
#[inline]
fn heads(view: Sequence<'_>) -> (usize, usize) {
    let (mut requests, mut rest) = (0, view);
    while let Some(at) = rest.find(END) {
        requests += 1;
        rest = rest.from(at + END.len());
    }
    (requests, rest.position())
}
