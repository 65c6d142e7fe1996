//! Job: two streams at once on each connection, all four halves apart.
//! State owned: none. Thread class: the driver's thread; parties run anywhere.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide::Connection;
use epoxide_tests_e2e::loopback;

use super::{connect_all, length, receiver, sender};
use crate::stream::End;
use crate::trial::Trial;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let (accepted, served) = channel();
    let accepted = Mutex::new(accepted);
    let accepted = std::sync::Arc::new(accepted);
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| {
            // Out of the reactor: whoever takes the halves serves them.
            let _ = accepted.lock().map(|accepted| accepted.send(connection));
            async {}
        });
    })?;
    let strict = !trial.plan.is_harsh();
    let addr = trial.runtime().local_addrs()[0];
    let count = 1 + trial.rng.below(4) as usize;
    let clients = connect_all(trial, addr, count, true)?;
    let mut ends = Vec::new();
    for client in clients {
        let Ok(name) = client.local_addr() else { continue };
        // One at a time: the first that is accepted may be another's.
        ends.push((name, client));
    }
    let mut flows = Vec::new();
    while !ends.is_empty() {
        let Ok(server) = served.recv_timeout(Duration::from_secs(5)) else {
            if strict {
                return Err(format!("HANG: {} connections were never accepted\n{}", ends.len(), trial.diagnosis()));
            }
            break;
        };
        let Ok(peer) = server.peer_addr() else { continue };
        let Some(at) = ends.iter().position(|(name, _)| *name == peer) else { continue };
        let client = ends.swap_remove(at).1;
        let (client_reads, client_writes) = client.into_split();
        let (server_reads, server_writes) = server.into_split();
        for (from, writer, reader) in [("client", client_writes, server_reads), ("server", server_writes, client_reads)]
        {
            let (key, len) = (trial.rng.next_u64(), length(&mut trial.rng));
            let name = format!("{from} of {peer}");
            let sent = sender(trial, &name, writer, key, len);
            let got = receiver(trial, &name, reader, key);
            flows.push((name, len, sent, got));
        }
    }
    drop(ends);
    for (name, len, sent, got) in flows {
        let (sent, got) = (trial.join(sent)?, trial.join(got)?);
        let whole = got.end == End::Fin && got.n == len;
        let wrong = match &got.end {
            End::Corrupt(_) => true,
            End::Fin => got.n != len,
            End::Error(..) => strict,
        };
        if wrong || strict && !(whole && sent.is_ok()) {
            return Err(format!("WRONG: {name} sent {len} ({sent:?}), the other end got {} ({:?})", got.n, got.end));
        }
    }
    // Whoever is accepted from here on, by the drain perhaps, is let go.
    drop(served);
    trial.finish()
}
