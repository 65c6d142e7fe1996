//! Connections on the async workers: a handler that moves there wholly, halves on two workers at once, hops.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use epoxide::workers::{self, WorkersConfig};
use epoxide::{Connection, ReadHalf, WriteHalf};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Http, Peer, Server, assert_pool_quiet, block_within, echo, http_ok, loopback, moved_to_workers,
    pattern, stage, wait_until,
};

const SOON: Duration = Duration::from_secs(10);

fn on_worker() -> bool {
    thread::current().name().is_some_and(|name| name.starts_with("epoxide-w"))
}

fn on_reactor() -> bool {
    thread::current().name() == Some("epoxide-0")
}

/// Z.1: reads, parked ones too, writes and flushes are made by workers.
#[test]
fn a_handler_wholly_on_a_worker_reads_and_writes_there() {
    let case = Case::start();
    let elsewhere = Arc::new(AtomicUsize::new(0));
    let server = moved_to_workers(&case, {
        let elsewhere = elsewhere.clone();
        move |mut connection| {
            let elsewhere = elsewhere.clone();
            async move {
                let note = || elsewhere.fetch_add(usize::from(!on_worker()), Ordering::AcqRel);
                note();
                while let Some(received) = connection.read_idle().await? {
                    note();
                    stage(&mut connection, &received)?;
                    connection.flush().await?;
                    note();
                }
                Ok(())
            }
        }
    });
    let mut peer = Peer::connect(server.addr());
    let parks = server.stats().parks;
    for turn in 0..50_u8 {
        peer.send(&[turn]).unwrap();
        assert_eq!(peer.read_exactly(1, SOON), Ok(vec![turn]));
    }
    assert!(wait_until(SOON, || server.stats().parks > parks), "vacuity: no read was parked");
    assert_eq!(elsewhere.load(Ordering::Acquire), 0, "steps that ran on another thread");
    drop(peer);
    assert_pool_quiet(&server, 0);
}

/// Z.1: 48 clients at once, whose every answer comes from the pool.
#[test]
fn many_clients_are_served_from_the_pool_alone() {
    let case = Case::start();
    let server = moved_to_workers(&case, http_ok);
    let addr = server.addr();
    let clients: Vec<_> = (0..48)
        .map(|_| {
            thread::spawn(move || {
                let mut client = Http::connect(addr);
                (0..40).filter(|_| client.get().is_ok_and(|r| r.status == 200 && r.body == b"ok")).count()
            })
        })
        .collect();
    let answered: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
    assert_eq!(answered, 48 * 40);
    assert!(server.reactor().workers().report().polls >= 48, "vacuity: the pool polled nothing");
    assert_pool_quiet(&server, 0);
}

/// Z.1: a read that parks resumes where its task lives: on a worker, or inline on the reactor.
#[test]
fn a_parked_read_resumes_where_its_task_lives() {
    let case = Case::start();
    let (told, tells) = channel();
    let server = Server::start(&case, move |b| {
        for there in [true, false] {
            let told = told.clone();
            b.listen(loopback(), move |mut connection: Connection| {
                let told = told.clone();
                let serve = async move {
                    while let Some(received) = connection.read().await? {
                        let _ = told.send(if there { on_worker() } else { on_reactor() });
                        stage(&mut connection, &received)?;
                        connection.flush().await?;
                    }
                    io::Result::Ok(())
                };
                async move { if there { workers::spawn(serve).await? } else { serve.await } }
            });
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        for turn in 1..=20 {
            let parks = server.stats().parks;
            peer.send(b"x").unwrap();
            assert_eq!(peer.read_exactly(1, SOON), Ok(vec![b'x']));
            assert_eq!(tells.recv_timeout(SOON), Ok(true), "turn {turn} of {addr} resumed elsewhere");
            // Before the next byte: the read parks, so that each resumption is one from a park.
            assert!(wait_until(SOON, || server.stats().parks > parks || turn == 1));
        }
    }
    assert_pool_quiet(&server, 0);
}

/// Z.1: a flush that the socket refuses is finished by the reactor, and resumes on a worker.
#[test]
fn a_parked_flush_resumes_on_a_worker() {
    const SIZE: usize = 4 << 20;
    let case = Case::start();
    let (told, tells) = channel();
    let server = moved_to_workers(&case, move |mut connection| {
        let told = told.clone();
        async move {
            connection.send_all(&pattern(SIZE)).await?;
            let _ = told.send(on_worker());
            connection.shutdown().await
        }
    });
    let mut peer = Peer::connect_stalling(server.addr());
    assert!(wait_until(SOON, || server.stats().flush_parks > 0), "the flush parks");
    assert!(tells.try_recv().is_err(), "vacuity: the flush was done before the peer read");
    let (received, ending) = peer.read_to_end(Duration::from_secs(30));
    assert_eq!((received.len(), ending), (SIZE, Ending::Eof));
    assert!(received == pattern(SIZE));
    assert_eq!(tells.recv_timeout(SOON), Ok(true));
    assert_pool_quiet(&server, 0);
}

/// One direction's bytes: `pattern`, whose period a shift would break.
const BLOCK: usize = 64 * 1024;

/// Z.1: both halves at once on two workers, each of which is known to run while the other one does; pauses of the peer
/// force both to park. MIB_EACH_WAY in the environment makes it longer.
#[test]
fn full_duplex_on_two_workers() {
    let mib: usize = std::env::var("MIB_EACH_WAY").ok().and_then(|n| n.parse().ok()).unwrap_or(16);
    let blocks = mib * (1 << 20) / BLOCK;
    let case = Case::start_rounds();
    let (done, dones) = channel();
    let server = Server::start(&case, move |b| {
        b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        b.listen(loopback(), move |connection: Connection| {
            let done = done.clone();
            async move {
                let (reader, writer) = connection.into_split();
                // Each waits on its own thread until the other one runs too: they overlap by construction.
                let both = Arc::new(std::sync::Barrier::new(2));
                workers::spawn(receive(reader, both.clone(), done.clone())).detach();
                workers::spawn(produce(writer, blocks, both, done)).detach();
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    let mut sender = peer.stream().try_clone().unwrap();
    let reactor = server.reactor();
    let sending = thread::spawn(move || {
        use std::io::Write;
        let block = pattern(BLOCK);
        for i in 0..blocks {
            let parks = reactor.stats().parks;
            sender.write_all(&block).unwrap();
            // A pause now and then, until the server has read everything and parks.
            assert!(
                i % 16 != 7 || wait_until(SOON, || reactor.stats().parks > parks),
                "block {i}: the read does not park"
            );
        }
        sender.shutdown(std::net::Shutdown::Write).unwrap();
    });
    let block = pattern(BLOCK);
    for i in 0..blocks {
        if i % 16 == 3 {
            let parks = server.stats().flush_parks;
            // Until the server's flush parks, or all of it has gone into the kernel.
            let _ = wait_until(Duration::from_millis(20), || server.stats().flush_parks > parks);
        }
        assert!(peer.read_exactly(BLOCK, SOON).as_ref() == Ok(&block), "block {i} of {blocks}");
    }
    assert_eq!(peer.ending(SOON), Ending::Eof);
    sending.join().unwrap();
    for _ in 0..2 {
        let (what, bytes, whole) = dones.recv_timeout(SOON).expect("both halves end");
        assert_eq!((bytes, whole), (blocks * BLOCK, true), "{what}");
    }
    let stats = server.stats();
    assert!(
        stats.parks > 1 && stats.flush_parks > 1,
        "vacuity: {} parks, {} flush parks",
        stats.parks,
        stats.flush_parks
    );
    println!("{} reads parked, {} flushes parked", stats.parks, stats.flush_parks);
    assert_pool_quiet(&server, 0);
}

type Done = Sender<(&'static str, usize, bool)>;

async fn receive(mut reader: ReadHalf, both: Arc<std::sync::Barrier>, done: Done) -> io::Result<()> {
    both.wait();
    let (mut total, mut whole) = (0, on_worker());
    let block = pattern(BLOCK);
    while let Some(received) = reader.read().await? {
        for &byte in &*received {
            whole &= byte == block[total % BLOCK];
            total += 1;
        }
        whole &= on_worker();
    }
    let _ = done.send(("received", total, whole));
    Ok(())
}

async fn produce(mut writer: WriteHalf, blocks: usize, both: Arc<std::sync::Barrier>, done: Done) -> io::Result<()> {
    both.wait();
    let block = pattern(BLOCK);
    for _ in 0..blocks {
        writer.send_all(&block).await?;
    }
    let _ = done.send(("sent", blocks * BLOCK, on_worker()));
    writer.shutdown().await
}

/// Streams that never end hold no worker while they wait: with more of them than workers all start, and a short
/// request after them is answered.
#[test]
fn more_endless_streams_than_workers_all_start() {
    const STREAMS: usize = 16;
    let case = Case::start();
    let server = moved_to_workers(&case, |mut connection| async move {
        let Some(first) = connection.read().await? else { return Ok(()) };
        if first[0] == b's' {
            return connection.send_all(b"short").await;
        }
        drop(first);
        loop {
            connection.send_all(&[7; 4096]).await?;
            epoxide::yield_now().await;
        }
    });
    let mut streams: Vec<_> = (0..STREAMS).map(|_| Peer::connect_stalling(server.addr())).collect();
    for stream in &mut streams {
        stream.send(b"e").unwrap();
    }
    for (i, stream) in streams.iter_mut().enumerate() {
        assert_eq!(stream.read_exactly(1, SOON), Ok(vec![7]), "stream {i} never started");
    }
    let mut short = Peer::connect(server.addr());
    short.send(b"s").unwrap();
    assert_eq!(short.read_exactly(5, SOON), Ok(b"short".to_vec()));
    let pool = server.reactor().workers();
    assert!(pool.report().tasks >= STREAMS, "{:?}", pool.report());
    streams.into_iter().for_each(Peer::reset);
    assert_pool_quiet(&server, 0);
}

/// The connection goes to a worker for each answer and comes back, under several clients at once.
#[test]
fn a_connection_hops_between_its_reactor_and_the_workers() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.workers(WorkersConfig { threads: 2, ..WorkersConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            while let Some(received) = connection.read_idle().await? {
                if !on_reactor() {
                    return Err(io::Error::other("the read did not resume on the reactor"));
                }
                let there = workers::spawn(async move {
                    stage(&mut connection, &received)?;
                    connection.flush().await?;
                    io::Result::Ok((connection, on_worker()))
                });
                let (back, was_there) = there.await??;
                connection = back;
                if !was_there {
                    return Err(io::Error::other("the flush was not made on a worker"));
                }
            }
            io::Result::Ok(())
        });
    });
    let mut peers: Vec<_> = (0..8).map(|_| Peer::connect(server.addr())).collect();
    for turn in 0..50_u8 {
        for peer in &mut peers {
            peer.send(&[turn]).unwrap();
        }
        for peer in &mut peers {
            assert_eq!(peer.read_exactly(1, SOON), Ok(vec![turn]));
        }
    }
    drop(peers);
    assert_pool_quiet(&server, 0);
    assert_eq!(server.stats().handler_errors, 0);
}

/// The reactor serves others while a handler awaits a job.
#[test]
fn a_handler_that_awaits_a_job_does_not_hold_its_reactor() {
    let case = Case::start();
    let gate = Gate::new();
    let server = Server::start(&case, {
        let gate = gate.clone();
        move |b| {
            b.listen(loopback(), move |mut connection: Connection| {
                let gate = gate.clone();
                async move {
                    let opened = workers::spawn_blocking(move || gate.wait_blocking(Duration::from_secs(60))).await?;
                    connection.send_all(&[u8::from(opened)]).await
                }
            });
            b.listen(loopback(), echo);
        }
    });
    let mut waits = Peer::connect(server.addrs()[0]);
    let mut other = Peer::connect(server.addrs()[1]);
    assert!(wait_until(SOON, || server.reactor().workers().report().jobs_running == 1));
    other.send(b"x").unwrap();
    assert_eq!(other.read_exactly(1, SOON), Ok(b"x".to_vec()));
    gate.open();
    assert_eq!(waits.read_to_end(SOON), (vec![1], Ending::Eof));
}

/// A worker, a job and a thread that has entered the runtime connect as a reactor does; a thread without one may not.
#[test]
fn every_thread_with_a_current_runtime_connects() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let addr = server.addr();
    let ask = async move || {
        let mut connection = epoxide::connect(addr).await?;
        connection.send_all(b"ask").await?;
        let answer = connection.read().await?;
        io::Result::Ok((answer.map(|bytes| bytes.to_vec()), connection.reactor()))
    };
    let expected = (Some(b"ask".to_vec()), server.reactor());
    let pool = server.reactor().workers();
    let on_a_worker = pool.spawn(async move { (on_worker(), ask().await) }).unwrap();
    let (there, asked) = block_within(on_a_worker, SOON).unwrap().unwrap();
    assert!(there);
    assert_eq!(asked.unwrap(), expected);
    let in_a_job = pool.spawn_blocking(move || block_within(ask(), SOON).unwrap().unwrap()).unwrap();
    assert_eq!(block_within(in_a_job, SOON).unwrap().unwrap(), expected);
    let reactor = server.reactor();
    let entered = reactor.enter();
    assert_eq!(block_within(ask(), SOON).unwrap().unwrap(), expected);
    drop(entered);
    assert_eq!(block_within(ask(), SOON).unwrap().unwrap_err().kind(), io::ErrorKind::NotConnected);
}
