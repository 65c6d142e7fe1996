//! `ReactorConfig::moderation`: a reactor that naps before it waits loses nothing and is in time.

use std::io;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Peer, Server, assert_pool_quiet, block_within, echo_in_one_wait, loopback, rounds, wait_until,
};

const SOON: Duration = Duration::from_secs(10);
const PEERS: usize = 16;

/// Echo on workers, so that the reactor's passes run no task, and naps of at most 50 us.
fn moderated(case: &Case) -> Server {
    Server::start(case, |b| {
        b.config(ReactorConfig { moderation: Duration::from_micros(50), ..ReactorConfig::default() });
        b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            let served = async move {
                while let Some(received) = connection.read().await? {
                    connection.send_all(&received).await?;
                }
                Ok::<(), io::Error>(())
            };
            workers::spawn(served).detach();
        });
    })
}

fn open(server: &Server) -> Vec<Peer> {
    let peers: Vec<_> = (0..PEERS).map(|_| Peer::connect(server.addr())).collect();
    assert!(wait_until(SOON, || server.stats().parks >= PEERS as u64), "the reads do not park");
    peers
}

#[test]
fn everything_is_answered_between_naps() {
    let case = Case::start_rounds();
    let server = moderated(&case);
    let mut peers = open(&server);
    for i in 0..rounds() {
        echo_in_one_wait(&server, &mut peers, i as u8);
    }
    let naps = server.stats().naps;
    assert!(naps > 0, "vacuity: no nap");
    println!("{naps} naps in {} passes", server.stats().passes);
    drop(peers);
    assert_pool_quiet(&server, 0);
}

/// Posts, wakes and timers of other threads come at every moment of a nap, and none is slept through.
#[test]
fn what_other_threads_send_during_a_nap_is_served() {
    let case = Case::start_rounds();
    let server = moderated(&case);
    let mut peers = open(&server);
    let reactor = server.reactor();
    let posting = thread::spawn({
        let reactor = reactor.clone();
        move || {
            for i in 0..20 * rounds() {
                let (told, tell) = channel();
                assert!(reactor.run_here(move || told.send(i).unwrap()).is_ok());
                assert_eq!(tell.recv_timeout(SOON), Ok(i), "a post was slept through");
            }
        }
    });
    let mut i = 0_u8;
    while !posting.is_finished() {
        echo_in_one_wait(&server, &mut peers, i);
        i = i.wrapping_add(1);
    }
    posting.join().unwrap();
    let (begun, slept) = (Instant::now(), Duration::from_millis(5));
    let task = reactor.spawn(async move { epoxide::time::sleep(slept).await }).unwrap();
    assert!(matches!(block_within(task, SOON), Some(Ok(()))) && begun.elapsed() >= slept);
    assert!(server.stats().naps > 0, "vacuity: no nap");
    drop(peers);
    assert_pool_quiet(&server, 0);
}

/// The policy of the calling thread (field 41 of proc_pid_stat(5)): 0 is SCHED_OTHER, 3 is SCHED_BATCH.
fn policy() -> u32 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let behind_the_name = stat.rsplit_once(')').unwrap().1;
    behind_the_name.split_whitespace().nth(41 - 3).unwrap().parse().unwrap()
}

/// Its thread does not preempt; the runtime's threads that it happens to start are ordinary ones.
#[test]
fn a_moderated_reactor_gives_way_and_its_workers_do_not() {
    const OTHER: u32 = 0;
    const BATCH: u32 = 3;
    assert_eq!(policy(), OTHER, "the test wants an ordinary thread");
    let case = Case::start();
    for (moderation, expected) in [(Duration::from_micros(1), BATCH), (Duration::ZERO, OTHER)] {
        let server = Server::start(&case, |b| {
            b.config(ReactorConfig { moderation, ..ReactorConfig::default() });
        });
        let seen = server.reactor().spawn(async {
            let worker = workers::spawn(async { policy() }).await.unwrap();
            let pool = workers::spawn_blocking(policy).await.unwrap();
            (policy(), worker, pool)
        });
        assert_eq!(block_within(seen.unwrap(), SOON).unwrap().unwrap(), (expected, OTHER, OTHER), "{moderation:?}");
    }
}

/// Reactors that run their handlers themselves do not nap: only where several edges of one wait wake nobody, as those of
/// new connections do.
#[test]
fn a_reactor_with_tasks_of_its_own_does_not_nap() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { moderation: Duration::from_micros(50), ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            while let Some(received) = connection.read().await? {
                connection.send_all(&received).await?;
            }
            Ok::<(), io::Error>(())
        });
    });
    let mut peers = open(&server);
    let before = server.stats().naps;
    for i in 0..50 {
        echo_in_one_wait(&server, &mut peers, i);
    }
    let naps = server.stats().naps - before;
    assert!(naps <= 5, "{naps} naps in 50 turns of {PEERS} answers");
}
