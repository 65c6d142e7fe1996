//! Job: streams that come back, directly and through a proxy.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::net::SocketAddr;

use bytes::Bytes;
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
                let served = proxy(connection, to, rng, [Meddle::NOT; 2]).await;
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

/// What a proxy does to the bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meddle {
    /// With the byte of this number.
    pub(super) at: usize,
    pub(super) how: How,
}

/// See [`Meddle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Passes it on.
    Not,
    /// Ends in front of it, with a FIN; what comes behind is thrown away.
    Fin,
    /// Changes a bit of it.
    Flip,
    /// Resets both sides.
    Reset,
}

impl Meddle {
    pub(super) const NOT: Self = Self { at: 0, how: How::Not };
}

/// Pumps until both directions are over; `meddles`: towards the backend, and back.
pub(super) async fn proxy(mut connection: Connection, to: SocketAddr, mut rng: Rng, meddles: [Meddle; 2]) -> Served {
    let Some(reactor) = ReactorHandle::current() else { return Served::Cut };
    let Ok(upstream) = reactor.connect(to).await else {
        // What the client gets must not look like an answer.
        connection.reset();
        return Served::Cut;
    };
    let closers = [connection.close_handle(), upstream.close_handle()];
    let (client_reads, client_writes) = connection.into_split();
    let (reads, writes) = upstream.into_split();
    let up = pump(client_reads, writes, meddles[0]);
    let down = pump(reads, client_writes, meddles[1]);
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

async fn pump(mut from: ReadHalf, mut to: WriteHalf, meddle: Meddle) -> std::io::Result<()> {
    let result = async {
        let mut seen = 0;
        while let Some(got) = from.read().await? {
            let here = meddle.at.checked_sub(seen).filter(|i| *i < got.len());
            seen += got.len();
            let mut bytes = got.freeze();
            match (meddle.how, here) {
                (How::Flip, Some(i)) => {
                    let mut other = bytes.to_vec();
                    other[i] ^= 1 << (i % 8);
                    bytes = Bytes::from(other);
                }
                (How::Reset, Some(_)) => return Err(std::io::ErrorKind::ConnectionAborted.into()),
                (How::Fin, Some(i)) => bytes.truncate(i),
                _ => {}
            }
            to.stage_bytes(bytes).map_err(|limit| std::io::Error::other(limit.to_string()))?;
            to.flush().await?;
            if meddle.how == How::Fin && here.is_some() {
                to.shutdown().await?;
                while from.read().await?.is_some() {}
                return Ok(());
            }
        }
        to.shutdown().await
    }
    .await;
    if result.is_err() {
        to.reset();
    }
    result
}
