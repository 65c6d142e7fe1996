//! Job: handlers that panic, let go, reset, are aborted, or take the connection to another thread and end it there.
//! State owned: none. Thread class: the driver's thread; handlers and parties run anywhere.

use std::net::SocketAddr;
use std::time::Duration;

use epoxide::{Connection, chaos, spawn_local, workers as pool};
use epoxide_tests_e2e::{Rng, loopback, provoke_panic};

use super::{Echo, echo_some, start_clients};
use crate::trial::Trial;
use crate::verdict::Served;

pub(super) fn run(trial: &mut Trial) -> Result<(), String> {
    let echo = Echo::new(trial);
    let handler = echo.clone();
    trial.start(|b| {
        b.listen(loopback(), move |connection: Connection| misbehave(handler.clone(), connection));
    })?;
    echo.started(trial);
    let addr = trial.runtime().local_addrs()[0];
    // Any of them may panic.
    trial.panics = 9;
    // A handler may reset before the connect is seen to be decided.
    let clients = start_clients(trial, addr, 9, false, 1)?;
    for client in clients {
        client.judge(trial, &echo.ledger, false)?;
    }
    drop(echo);
    trial.finish()
}

async fn misbehave(echo: Echo, connection: Connection) {
    let Ok(client) = connection.peer_addr() else { return };
    let mut rng = Rng::new(echo.seed ^ u64::from(client.port()));
    let note = echo.board.line(format!("unruly handler of {client}"));
    let rounds = rng.below(12) as usize;
    let how = rng.below(12);
    let next = Rng::new(rng.next_u64());
    if how == 0 {
        // Aborted from another task, at any moment of its work.
        let line = note.clone();
        echo.ledger.report(client, Served::Cut);
        let ledger = echo.ledger.clone();
        let task = spawn_local(async move {
            if let (_, Some(served)) = echo_some(connection, usize::MAX, next, &line).await {
                ledger.report(client, served);
            }
        });
        let abort = task.abort_handle();
        let wait = Duration::from_micros(rng.below(5000));
        pool::spawn(async move {
            epoxide::time::sleep(wait).await;
            abort.abort();
        })
        .detach();
        let _ = task.await;
        note.say("");
        return;
    }
    if how > 8 {
        interrupted(echo, connection, client, how, rng).await;
        note.say("");
        return;
    }
    let (back, served) = echo_some(connection, rounds, next, &note).await;
    note.say("");
    let Some(mut connection) = back else {
        echo.ledger.report(client, served.unwrap_or(Served::LetGo));
        return;
    };
    let (report, ledger) = match how {
        1..4 => (Served::Cut, echo.ledger.clone()),
        _ => (Served::LetGo, echo.ledger.clone()),
    };
    ledger.report(client, report);
    match how {
        1 => provoke_panic("an unruly handler"),
        2 => {
            let panics = pool::spawn(async move {
                let _held = connection;
                provoke_panic("an unruly task on a worker");
            });
            let _ = panics.await;
        }
        3 => connection.reset(),
        4 => drop(connection),
        5 => drop(std::thread::Builder::new().name("party".into()).spawn(move || drop(connection))),
        6 => connection.close_handle().close(),
        8 => connection.set_deadline(Some(chaos::now()), "whim"),
        _ => {
            // Half of it goes first, the rest elsewhere.
            let (reader, writer) = connection.into_split();
            drop(writer);
            pool::spawn(async move { drop(reader) }).detach();
        }
    }
}

/// Ended from outside while it echoes: by its close handle on a worker, or by a deadline.
async fn interrupted(echo: Echo, connection: Connection, client: SocketAddr, how: u64, mut rng: Rng) {
    let note = echo.board.line(format!("interrupted handler of {client}"));
    let wait = Duration::from_micros(rng.below(4000));
    // A close and a deadline may end it cleanly wherever it is: what was queued goes out, nothing more was promised.
    let (report, closer) = (if how == 9 { Served::Cut } else { Served::LetGo }, connection.close_handle());
    if how == 11 {
        connection.set_deadline(Some(chaos::now() + wait), "whim");
    } else {
        pool::spawn(async move {
            epoxide::time::sleep(wait).await;
            if how == 9 { closer.reset() } else { closer.close() }
        })
        .detach();
    }
    let next = Rng::new(rng.next_u64());
    let served = match echo_some(connection, usize::MAX, next, &note).await.1 {
        // The end came too late.
        Some(Served::Whole) => Served::Whole,
        _ => report,
    };
    note.say("");
    echo.ledger.report(client, served);
}
