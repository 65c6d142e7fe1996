//! Job: streams that come back, directly and through a proxy.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::net::SocketAddr;

use epoxide::{Connection, ReactorHandle, ReadHalf, WriteHalf, spawn_local, workers as pool};
use epoxide_tests_e2e::{Rng, loopback};

use super::{Echo, start_clients, start_echo};
use crate::trial::Trial;
use crate::verdict::{Ledger, Served};

/// Clients whose streams come back.
pub(super) fn echo(trial: &mut Trial) -> Result<(), String> {
    let (echo, addr) = start_echo(trial)?;
    attack(trial, addr, &echo.ledger)?;
    drop(echo);
    trial.finish()
}

fn attack(trial: &mut Trial, addr: SocketAddr, ledger: &Ledger) -> Result<(), String> {
    let strict = !trial.plan.is_harsh();
    let clients = start_clients(trial, addr, 6, true, 1)?;
    for client in clients {
        client.judge(trial, ledger, strict)?;
    }
    Ok(())
}

/// The same through a proxy, which pumps each direction in a task of its own.
pub(super) fn relay(trial: &mut Trial) -> Result<(), String> {
    let echo = Echo::new(trial);
    let handler = echo.clone();
    let backend = std::sync::Arc::new(std::sync::OnceLock::<SocketAddr>::new());
    let (to, ledger) = (backend.clone(), Ledger::default());
    let reports = ledger.clone();
    let seed = trial.rng.next_u64();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| {
            let (to, reports) = (to.get().copied(), reports.clone());
            async move {
                let (Some(to), Ok(client)) = (to, connection.peer_addr()) else { return };
                let rng = Rng::new(seed ^ u64::from(client.port()));
                let served = proxy(connection, to, rng).await;
                reports.report(client, served);
            }
        });
        b.listen(loopback(), move |connection: Connection| handler.clone().serve(connection));
    })?;
    echo.started(trial);
    let addrs = trial.runtime().local_addrs();
    let _ = backend.set(addrs[1]);
    attack(trial, addrs[0], &ledger)?;
    drop(echo);
    trial.finish()
}

async fn proxy(mut connection: Connection, to: SocketAddr, mut rng: Rng) -> Served {
    let Some(reactor) = ReactorHandle::current() else { return Served::Cut };
    let Ok(upstream) = reactor.connect(to).await else {
        // What the client gets must not look like an answer.
        connection.reset();
        return Served::Cut;
    };
    let closers = [connection.close_handle(), upstream.close_handle()];
    let (client_reads, client_writes) = connection.into_split();
    let (reads, writes) = upstream.into_split();
    let up = pump(client_reads, writes);
    let down = pump(reads, client_writes);
    let up = if rng.below(2) == 0 { spawn_local(up) } else { pool::spawn(up) };
    let down = if rng.below(2) == 0 { spawn_local(down) } else { pool::spawn(down) };
    // One direction that breaks breaks the other: a proxy has nothing else to tell a cut by.
    let up = up.await;
    if !matches!(up, Ok(Ok(()))) {
        closers.iter().for_each(epoxide::CloseHandle::reset);
    }
    let down = down.await;
    if !matches!(down, Ok(Ok(()))) {
        closers.iter().for_each(epoxide::CloseHandle::reset);
    }
    match (up, down) {
        (Ok(Ok(())), Ok(Ok(()))) => Served::Whole,
        _ => Served::Cut,
    }
}

async fn pump(mut from: ReadHalf, mut to: WriteHalf) -> std::io::Result<()> {
    let result = async {
        while let Some(got) = from.read().await? {
            to.stage_bytes(got.freeze()).map_err(|limit| std::io::Error::other(limit.to_string()))?;
            to.flush().await?;
        }
        to.shutdown().await
    }
    .await;
    if result.is_err() {
        to.reset();
    }
    result
}
