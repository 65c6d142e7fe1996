//! One direction of a relay: what one connection sends, the other one gets; and the two together.
//!
//! State: none. Thread class: any thread.

use crate::upstream::Upstream;
use epoxide::spawn_local;
use epoxide_pipes::transport::{Receive, Transmit, Transport};
use epoxide_pipes::{Duplex, PipeReader, PipeWriter};
use std::io;
use std::sync::Arc;

/// Connects to the server behind and relays both ways. Where nobody is, `near` is reset.
///
/// # Errors
/// Why it could not connect, or why a direction broke.
pub async fn on_to(near: impl Transport, to: Arc<Upstream>) -> io::Result<()> {
    let near = Duplex::new(near);
    match to.connect().await {
        Ok(far) => both_ways(near, Duplex::new(far)).await,
        Err(error) => {
            near.input.close_handle().reset();
            Err(error)
        }
    }
}

/// Relays both ways until both sides have ended. An end (FIN) is passed on by itself, so that the other direction goes
/// on; a broken connection breaks the other one.
///
/// # Errors
/// Why a direction broke.
async fn both_ways<R: Receive, W: Transmit>(near: Duplex<R, W>, far: Duplex) -> io::Result<()> {
    let (near_in, near_out) = near.into_parts();
    let (far_in, far_out) = far.into_parts();
    let there = spawn_local(one_way(near_in, far_out));
    let back = one_way(far_in, near_out).await;
    let there = there.await.map_err(|error| io::Error::other(error.to_string()))?;
    there.and(back)
}

async fn one_way<R: Receive, W: Transmit>(mut from: PipeReader<R>, mut to: PipeWriter<W>) -> io::Result<()> {
    let result = copy(&mut from, &mut to).await;
    if result.is_err() {
        // Half a transfer must not look whole: whoever is left learns that it broke.
        from.close_handle().reset();
        to.close_handle().reset();
    }
    result
}

/// At most one buffer is on its way at a time: a slow receiver slows its sender down.
async fn copy<R: Receive, W: Transmit>(from: &mut PipeReader<R>, to: &mut PipeWriter<W>) -> io::Result<()> {
    loop {
        let result = from.read().await?;
        let (held, end) = (result.buffer.len(), result.end);
        // The received buffers themselves are sent.
        to.stage_bytes(from.take(held))?;
        if to.flush().await?.completed {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if end {
            return to.shutdown().await;
        }
    }
}
