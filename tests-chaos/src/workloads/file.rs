//! Job: files sent between staged bytes, from anywhere: the stream is whole and in order.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use epoxide::{Connection, workers as pool};
use epoxide_tests_e2e::{Rng, loopback, wait_until};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{connect_all, length, receiver};
use crate::stream::{End, bytes, once};
use crate::trial::Trial;
use crate::verdict::{Ledger, Served};

/// The handler reports after its last call.
const SOON: Duration = Duration::from_secs(2);

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let (key, len) = (trial.rng.next_u64(), length(&mut trial.rng));
    let file = memfd(&bytes(key, 0, len)).map_err(|error| format!("no file: {error}"))?;
    let seed = trial.rng.next_u64();
    let ledger = Ledger::default();
    let reports = ledger.clone();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| {
            let (file, reports) = (file.clone(), reports.clone());
            async move {
                let Ok(client) = connection.peer_addr() else { return };
                let mut rng = Rng::new(seed ^ u64::from(client.port()));
                let elsewhere = rng.below(2) == 0;
                let work = give(connection, file, key, len, rng);
                let given = if elsewhere { pool::spawn(work).await.ok() } else { Some(work.await) };
                let served = match given {
                    Some(Ok(())) => Served::Whole,
                    Some(Err(error)) if error.kind() == io::ErrorKind::Interrupted => Served::Cut,
                    Some(Err(error)) => Served::WriteFailed(error.to_string()),
                    None => Served::Cut,
                };
                reports.report(client, served);
            }
        });
    })?;
    let strict = !trial.plan.is_harsh();
    let addr = trial.runtime().local_addrs()[0];
    let count = 1 + trial.rng.below(4) as usize;
    let mut readers = Vec::new();
    // A send that is given up resets, perhaps before the connect is seen to be decided.
    for connection in connect_all(trial, addr, count, false)? {
        let Ok(name) = connection.local_addr() else { continue };
        let (reader, writer) = connection.into_split();
        readers.push((name, receiver(trial, &format!("client {name}"), reader, key), writer));
    }
    for (name, party, writer) in readers {
        let got = trial.join(party)?;
        drop(writer);
        let wrong = match &got.end {
            End::Corrupt(_) => true,
            End::Fin => got.n != len,
            End::Error(..) => strict && !wait_until(SOON, || ledger.of(name) == Some(Served::Cut)),
        };
        if wrong {
            return Err(format!(
                "WRONG: {name} got {} of {len} ({:?}), the handler: {:?}",
                got.n,
                got.end,
                ledger.of(name)
            ));
        }
    }
    trial.finish()
}

fn memfd(content: &[u8]) -> io::Result<Arc<OwnedFd>> {
    let mut file = File::from(memfd_create(c"chaos", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content)?;
    Ok(Arc::new(file.into()))
}

/// The stream, piece by piece: a range of the file, staged bytes, a range that is given up before it is done.
async fn give(mut connection: Connection, file: Arc<OwnedFd>, key: u64, len: usize, mut rng: Rng) -> io::Result<()> {
    let mut at = 0;
    while at < len {
        let most = [1, 500, 20_000, 400_000][rng.below(4) as usize];
        let end = len.min(at + 1 + rng.below(most) as usize);
        match rng.below(4) {
            0 => connection.send_all(&bytes(key, at, end)).await?,
            1 => {
                // Staged bytes go first, then the file.
                let middle = at + (end - at) / 2;
                connection.stage(&bytes(key, at, middle)).map_err(|limit| io::Error::other(limit.to_string()))?;
                connection.send_file(file.clone(), middle as u64..end as u64).await?;
            }
            2 => {
                // Given up: none of it has gone and it may be sent another way, or the connection is reset.
                match once(connection.send_file(file.clone(), at as u64..end as u64)).await {
                    Some(result) => result?,
                    None if connection.close_reason().is_none() => connection.send_all(&bytes(key, at, end)).await?,
                    None => return Err(io::Error::from(io::ErrorKind::Interrupted)),
                }
            }
            _ => connection.send_file(file.clone(), at as u64..end as u64).await?,
        }
        at = end;
    }
    connection.shutdown().await
}
