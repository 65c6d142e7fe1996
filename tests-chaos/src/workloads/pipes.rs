//! Job: streams that come back through buffer pipes: views that are consumed and examined in part, reads and flushes that
//! others cancel or that are given up.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use epoxide::{Connection, spawn_local, workers as pool};
use epoxide_pipes::{Duplex, PipeReader, PipeWriter};
use epoxide_tests_e2e::{Rng, loopback};

use super::{Echo, start_clients};
use crate::stream::once;
use crate::trial::{Note, Trial};
use crate::verdict::Served;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let strict = !trial.plan.is_harsh();
    let echo = Echo::new(trial);
    let echoed = Arc::new(AtomicU64::new(0));
    let (handler, count) = (echo.clone(), echoed.clone());
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| serve(handler.clone(), connection, count.clone()));
    })?;
    echo.started(trial);
    let addr = trial.runtime().local_addrs()[0];
    for client in start_clients(trial, addr, 6, true, 1)? {
        client.judge(trial, &echo.ledger, strict)?;
    }
    if strict && echoed.load(Ordering::Acquire) == 0 {
        return Err("VACUOUS: nothing went through a pipe".into());
    }
    drop(echo);
    trial.finish()
}

async fn serve(echo: Echo, connection: Connection, echoed: Arc<AtomicU64>) {
    // Reset while it waited in the queue: nobody asks for a report.
    let Ok(client) = connection.peer_addr() else { return };
    let mut rng = Rng::new(echo.seed ^ u64::from(client.port()));
    let note = echo.board.line(format!("handler of {client}"));
    let (input, output) = Duplex::new(connection).into_parts();
    if rng.below(2) == 0 {
        let (handles, mut waits) = ([input.handle(), output.handle()], Rng::new(rng.next_u64()));
        spawn_local(async move {
            for _ in 0..20 {
                epoxide::time::sleep(Duration::from_micros(waits.below(500))).await;
                handles[waits.below(2) as usize].cancel();
            }
        })
        .detach();
    }
    let on_pool = rng.below(2) == 0;
    let line = note.clone();
    let work = async move { back(input, output, rng, &line, &echoed).await };
    let served = if on_pool { pool::spawn(work).await.unwrap_or(Served::Cut) } else { work.await };
    note.say("");
    echo.ledger.report(client, served);
}

/// Sends back what comes, in pieces that have nothing to do with how it came.
async fn back(mut input: PipeReader, mut output: PipeWriter, mut rng: Rng, note: &Note, echoed: &AtomicU64) -> Served {
    let mut total = 0;
    loop {
        note.say(format!("reading after {total}, {} bytes held", input.held_len()));
        let read = match rng.below(4) {
            0 => match once(input.read()).await {
                None => continue,
                Some(read) => read,
            },
            _ => input.read().await,
        };
        let (held, end) = match read {
            Ok(read) => (read.buffer.len(), read.end),
            Err(error) => return Served::ReadFailed(error.to_string()),
        };
        if end && held == 0 {
            note.say(format!("shutting down after {total}"));
            return match output.shutdown().await {
                Ok(()) => Served::Whole,
                Err(error) => Served::WriteFailed(error.to_string()),
            };
        }
        // All of it looked at and some of it left: waits for more, unless nothing more comes.
        let n = if held > 0 && rng.below(4) > 0 { 1 + rng.below(held as u64) as usize } else { 0 };
        if n == 0 {
            input.advance_to(0, if end || rng.below(2) == 0 { 0 } else { held });
            continue;
        }
        let n = n.min(4000);
        note.say(format!("flushing {n} up to {}", total + n));
        let staged = match rng.below(2) {
            0 => output.stage_bytes(input.take(n)),
            _ => {
                let bytes = input.buffer().up_to(n).to_vec();
                input.advance(n);
                output.stage(&bytes)
            }
        };
        let flushed = match staged {
            // Cancelled or given up, it goes out all the same; a limit is met only by what was left so.
            Ok(()) if rng.below(4) == 0 => once(output.flush()).await.map_or(Ok(()), |flushed| flushed.map(drop)),
            Ok(()) => output.flush().await.map(drop),
            Err(limit) => Err(std::io::Error::other(limit.to_string())),
        };
        if let Err(error) = flushed {
            return Served::WriteFailed(error.to_string());
        }
        total += n;
        echoed.fetch_add(n as u64, Ordering::AcqRel);
    }
}
