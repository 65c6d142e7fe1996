//! The loop of `http::answer_all` on pipes: heads are looked for in the view over what was received, and nothing is
//! copied or counted by hand.
//!
//! State: none. Thread class: any thread.

use crate::http::{END, MAX_HEAD, TOO_LARGE};
use epoxide_pipes::{Duplex, Sequence};
use std::io;
use std::time::Duration;

/// Gives every request the same answer until the client leaves, or stalls in a head for longer than `head_deadline`.
///
/// A drain ends it between requests. The deadline costs nothing while heads come whole.
///
/// # Errors
/// Why the connection ended, if not by the client's FIN.
pub async fn answer_all(mut pipe: Duplex, answer: &'static [u8], head_deadline: Duration) -> io::Result<()> {
    loop {
        let result = pipe.input.read_idle().await?;
        if result.end && result.buffer.is_empty() {
            return Ok(());
        }
        let (requests, used) = heads(result.buffer);
        if requests == 0 {
            // A head that has begun: the rest of it within bounds. Nothing is consumed, so the next round finds it whole.
            match pipe.input.read_until(END, MAX_HEAD, head_deadline).await {
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => {
                    pipe.output.stage(TOO_LARGE)?;
                    return pipe.output.shutdown().await;
                }
                Err(error) => return Err(error),
            }
        }
        pipe.input.advance(used);
        for _ in 0..requests {
            pipe.output.stage(answer)?;
        }
        if pipe.output.flush().await?.completed {
            return Ok(());
        }
    }
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
