//! `Builder::enter`: another runtime's handle on every thread of ours, so that libraries which need it work in handlers.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use epoxide::workers::{self, WorkersConfig};
use epoxide::{Builder, Connection, Reactor, spawn_local};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, loopback, provoke_panic, stage};

const SOON: Duration = Duration::from_secs(10);

/// A tokio of its own, whose handle every thread of the server enters.
fn hosting(b: &mut Builder) -> tokio::runtime::Runtime {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let handle = tokio.handle().clone();
    b.enter(move |thread| {
        let _entered = handle.enter();
        thread();
    });
    tokio
}

/// What tokio-only libraries do: its timer, a task of its own, a channel that a thread of tokio's wakes.
async fn uses_tokio(connection: &mut Connection, received: &[u8]) -> io::Result<()> {
    let here = thread::current().id();
    let begun = Instant::now();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert!(begun.elapsed() >= Duration::from_millis(5));
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let (echo, bytes) = (tokio::sync::Notify::new(), received.to_vec());
    let there = tokio::spawn(async move {
        tokio::task::yield_now().await;
        let _ = sender.send(bytes);
        thread::current().id()
    });
    let bytes = receiver.await.map_err(io::Error::other)?;
    assert_ne!(there.await.map_err(io::Error::other)?, here, "tokio's task ran on this thread");
    echo.notify_one();
    echo.notified().await;
    stage(connection, &bytes)?;
    connection.flush().await
}

/// Timers, tasks and channels of tokio in handlers on the reactor (its tasks resume there), on workers and in jobs.
#[test]
fn tokio_works_on_reactors_workers_and_blocking_threads() {
    let case = Case::start();
    let mut tokio = None;
    let server = Server::start(&case, |b| {
        tokio = Some(hosting(b));
        b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            let here = thread::current().id();
            while let Some(received) = connection.read_idle().await? {
                uses_tokio(&mut connection, &received).await?;
                assert_eq!(thread::current().id(), here, "the handler resumed elsewhere");
            }
            io::Result::Ok(())
        });
        b.listen(loopback(), |mut connection: Connection| async move {
            let served = workers::spawn(async move {
                while let Some(received) = connection.read_idle().await? {
                    uses_tokio(&mut connection, &received).await?;
                }
                io::Result::Ok(())
            });
            served.await?
        });
        b.listen(loopback(), |mut connection: Connection| async move {
            while let Some(received) = connection.read_idle().await? {
                let job = move || tokio::runtime::Handle::current().block_on(async move { received.to_vec() });
                let bytes = workers::spawn_blocking(job).await?;
                connection.send_all(&bytes).await?;
            }
            io::Result::Ok(())
        });
    });
    for addr in server.addrs() {
        let mut peers: Vec<_> = (0..4).map(|_| Peer::connect(*addr)).collect();
        for turn in 0..20_u8 {
            for peer in &mut peers {
                peer.send(&[turn]).unwrap();
            }
            for peer in &mut peers {
                assert_eq!(peer.read_exactly(1, SOON), Ok(vec![turn]), "turn {turn} of {addr}");
            }
        }
    }
    assert!(server.wait_quiet());
    assert_eq!((server.stats().handler_errors, server.stats().panics), (0, 0));
    server.stop(SOON).unwrap();
    drop(tokio);
}

/// Notes where it was made, and where and when it was dropped.
struct Guard {
    made: ThreadId,
    log: Log,
}

type Log = Arc<Mutex<Vec<(&'static str, Option<String>)>>>;

fn note(log: &Log, what: &'static str) {
    log.lock().unwrap().push((what, thread::current().name().map(str::to_owned)));
}

impl Drop for Guard {
    fn drop(&mut self) {
        assert_eq!(self.made, thread::current().id());
        note(&self.log, "left");
    }
}

/// What a task holds says when it is dropped.
struct Held(Log);

impl Drop for Held {
    fn drop(&mut self) {
        note(&self.0, "task dropped");
    }
}

/// Everything of a thread happens inside: start hooks, tasks to their last drop, stop hooks; then the guard goes, there.
#[test]
fn what_is_entered_is_left_last_and_on_its_own_thread() {
    let case = Case::start();
    let log = Log::default();
    let server = Server::start(&case, |b| {
        let on = log.clone();
        b.enter(move |thread| {
            let _guard = Guard { made: thread::current().id(), log: on.clone() };
            note(&on, "entered");
            thread();
        });
        let on = log.clone();
        b.on_start(move |_| note(&on, "on_start"));
        let on = log.clone();
        b.on_stop(move |_| note(&on, "on_stop"));
        b.workers(WorkersConfig { threads: 1, ..WorkersConfig::default() });
        b.listen(loopback(), |_connection: Connection| async {});
    });
    let (told, tells) = channel();
    let (reactor, on) = (server.reactor(), log.clone());
    let worker_told = told.clone();
    let spawned = reactor.spawn_with(move || async move {
        let (held, there) = (Held(on.clone()), Held(on));
        spawn_local(async move {
            let _held = held;
            let _ = told.send(());
            std::future::pending::<()>().await;
        })
        .detach();
        workers::spawn(async move {
            let _held = there;
            let _ = worker_told.send(());
            std::future::pending::<()>().await;
        })
        .detach();
    });
    block_within(spawned.unwrap(), SOON).unwrap().unwrap();
    for _ in 0..2 {
        tells.recv_timeout(SOON).expect("both tasks run");
    }
    server.stop(Duration::ZERO).unwrap();
    let log = std::mem::take(&mut *log.lock().unwrap());
    let of = |prefix: &str| -> Vec<_> {
        let here = |name: &Option<String>| name.as_deref().is_some_and(|name| name.starts_with(prefix));
        log.iter().filter(|(_, name)| here(name)).map(|(what, _)| *what).collect()
    };
    assert_eq!(of("epoxide-0"), ["entered", "on_start", "task dropped", "on_stop", "left"]);
    assert_eq!(of("epoxide-w"), ["entered", "task dropped", "left"]);
    assert_eq!(log.len(), 8, "{log:?}");
}

/// A single reactor on the calling thread enters it for as long as it runs.
#[test]
fn a_reactor_on_the_calling_thread_enters_it() {
    let _case = Case::start();
    let (inside, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut builder = Reactor::builder();
    let on = inside.clone();
    builder.enter(move |thread| {
        on.fetch_add(1, Ordering::AcqRel);
        thread();
        on.fetch_sub(1, Ordering::AcqRel);
    });
    let (on, counted) = (inside.clone(), ran.clone());
    builder.on_start(move |reactor| {
        counted.fetch_add(on.load(Ordering::Acquire), Ordering::AcqRel);
        reactor.stop();
    });
    builder.run().unwrap();
    assert_eq!((ran.load(Ordering::Acquire), inside.load(Ordering::Acquire)), (1, 0));
}

/// A hook that does not call its thread, or panics, fails the start by its name; nothing is left running.
#[test]
fn a_hook_that_does_not_call_on_fails_the_start() {
    let case = Case::start();
    for panics in [false, true] {
        let refused = Server::try_start(&case, |b| {
            b.reactors(2);
            b.enter(move |thread| {
                if panics {
                    provoke_panic("an enter hook");
                }
                if thread::current().name() != Some("epoxide-1") {
                    thread();
                }
            });
            b.listen(loopback(), |_connection: Connection| async {});
        });
        let error = refused.expect_err("a reactor that never ran");
        assert!(error.to_string().contains("enter hook"), "{error}");
        let mut builder = Reactor::builder();
        builder.enter(|_| {});
        assert!(builder.run().unwrap_err().to_string().contains("enter hook"));
    }
}

/// On a thread of a pool it costs no job.
#[test]
fn a_job_runs_though_the_hook_of_its_thread_does_not_call_on() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.enter(|thread| {
            if thread::current().name().is_some_and(|name| name.starts_with("epoxide-0")) {
                thread();
            }
        });
        b.listen(loopback(), |mut connection: Connection| async move {
            let name = workers::spawn_blocking(|| thread::current().name().map(str::to_owned)).await?;
            connection.send_all(name.unwrap_or_default().as_bytes()).await
        });
    });
    let mut peer = Peer::connect(server.addr());
    let (name, ending) = peer.read_to_end(SOON);
    assert!(name.starts_with(b"epoxide-b") && ending == Ending::Eof);
}
