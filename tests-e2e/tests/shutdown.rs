//! The shutdown list where drain.rs and its relatives leave off: pools, resets and storms during a drain, hooks in order, a
//! listener that dies, stops in every order. Ids in the comments are of that list.

use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use epoxide::{CloseReason, Connection, JoinError, Reactor, ReactorConfig, ReactorHandle, Runtime, workers};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Peer, Place, Server, begin_drain, block_within, echo, free_fd_limit, handing_over,
    hold_reactor, http_ok, loopback, moved_to_workers, pair, pattern, rounds, run_at, several, stage, wait_until,
};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const SOON: Duration = Duration::from_secs(20);
const NEVER: Duration = Duration::from_secs(600);

/// S4, G5: requests that are in progress on workers, on plain threads and on another reactor are answered, then FIN.
#[test]
fn requests_in_progress_anywhere_are_answered() {
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let gate = Gate::new();
    let mut peers = Vec::new();
    let mut served = Vec::new();
    for place in Place::ALL.repeat(4) {
        let (mut peer, mut connection, reactors) = pair(&server, &accepted);
        let gate = gate.clone();
        served.push(run_at(place, &reactors, SOON, async move {
            while let Some(request) = connection.read_idle().await? {
                gate.wait().await;
                stage(&mut connection, &request)?;
                connection.flush().await?;
            }
            io::Result::Ok(())
        }));
        peer.send(b"first").unwrap();
        peers.push(peer);
    }
    assert!(gate.wait_waiting(peers.len(), SOON), "every request is in its handler");
    // Later ones are let go by their handlers, and hold nothing.
    drop(accepted);
    let stopping = begin_drain(server, NEVER);
    gate.open();
    for (i, peer) in peers.iter_mut().enumerate() {
        assert_eq!(peer.read_to_end(SOON), (b"first".to_vec(), Ending::Eof), "connection {i}");
    }
    let report = stopping.join().unwrap();
    assert!(report.graceful && report.cut == 0, "{report:?}");
    for served in served {
        // A worker's task may be dropped by the pool's stop after its last answer.
        assert!(!matches!(served.try_recv(), Ok(Err(_))));
    }
}

/// A reactor without connections of its own does not end a drain before the others: its tasks have theirs.
#[test]
fn a_reactor_without_connections_waits_for_those_of_the_others() {
    let case = Case::start();
    let (server, accepted) = several(&case, 2, |_| {});
    let gate = Gate::new();
    let (mut peer, mut connection, reactors) = pair(&server, &accepted);
    let away = reactors.last().unwrap();
    let held = gate.clone();
    let _served = run_at(Place::Away, &reactors, SOON, async move {
        let request = connection.read().await?.expect("a request");
        held.wait().await;
        connection.send_all(&request).await
    });
    peer.send(b"first").unwrap();
    assert!(gate.wait_waiting(1, SOON), "the request is in its handler");
    drop(accepted);
    let addr = server.addr();
    let stopping = begin_drain(server, NEVER);
    assert!(wait_until(SOON, || TcpStream::connect(addr).is_err()), "a listener is open");
    // Both have seen the drain by now, and the one without connections has decided whether it ends.
    for _ in 0..200 {
        let (tell, told) = channel();
        assert!(away.run_here(move || tell.send(()).unwrap()).is_ok(), "it ended, with the task that has the request");
        assert_eq!(told.recv_timeout(SOON), Ok(()), "it ended, with the task that has the request");
    }
    gate.open();
    assert_eq!(peer.read_to_end(SOON), (b"first".to_vec(), Ending::Eof));
    let report = stopping.join().unwrap();
    assert!(report.graceful && report.cut == 0, "{report:?}");
}

/// S9: a job that still runs when the stop comes, with no deadline: its answer arrives, then FIN.
#[test]
fn a_job_without_a_deadline_is_waited_for() {
    let case = Case::start();
    let gate = Gate::new();
    let opens = gate.clone();
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let gate = opens.clone();
            async move {
                while let Some(request) = connection.read_idle().await? {
                    let job = move |gate: Gate| (gate.wait_blocking(Duration::from_secs(60)), request);
                    let gate = gate.clone();
                    let (opened, request) = workers::spawn_blocking(move || job(gate)).await?;
                    assert!(opened);
                    connection.send_all(&request).await?;
                }
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"work").unwrap();
    let pool = server.reactor().workers();
    assert!(wait_until(SOON, || pool.report().jobs_running == 1));
    let stopping = begin_drain(server, Duration::MAX);
    gate.open();
    assert_eq!(peer.read_to_end(SOON), (b"work".to_vec(), Ending::Eof));
    let report = stopping.join().unwrap();
    assert!(report.graceful && report.jobs_running == 0, "{report:?}");
}

/// S7, G7: no deadline, and a peer that reads nothing: the send clock ends it, and the drain with it.
#[test]
fn a_peer_that_reads_nothing_does_not_hold_a_drain_without_a_deadline() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { send_timeout: Duration::from_millis(300), ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            let _request = connection.read_idle().await?;
            connection.send_all(&pattern(8 << 20)).await
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"go").unwrap();
    assert!(wait_until(SOON, || server.stats().send_eagain > 0), "the answer really waits for the peer");
    let report = server.stop(Duration::MAX).unwrap();
    assert!(report.took < SOON, "{report:?}");
    assert_eq!(peer.ending(SOON), Ending::Reset);
}

/// S15: the peer resets in every phase while a drain waits: in its handler, in a flush, idle, after letting go.
#[test]
fn resets_in_every_phase_do_not_hold_a_drain() {
    let case = Case::start();
    let (gate, told) = (Gate::new(), channel());
    let (opens, ended) = (gate.clone(), told.0);
    let server = Server::start(&case, move |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (gate, ended) = (opens.clone(), ended.clone());
            async move {
                let request = connection.read_idle().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
                let outcome = match request[0] {
                    b'h' => {
                        gate.wait().await;
                        connection.read().await.map(drop)
                    }
                    b'f' => connection.send_all(&pattern(8 << 20)).await,
                    b'i' => connection.read_idle().await.map(drop),
                    _ => Ok(()),
                };
                let _ = ended.send((request[0], outcome.map_err(|error| CloseReason::of(&error))));
                io::Result::Ok(())
            }
        });
    });
    let mut peers = Vec::new();
    for phase in [b'h', b'f', b'i', b'l'] {
        let mut peer = Peer::connect_stalling(server.addr());
        peer.send(&[phase]).unwrap();
        peers.push(peer);
    }
    assert!(gate.wait_waiting(1, SOON) && wait_until(SOON, || server.stats().flush_parks > 0));
    assert!(wait_until(SOON, || server.stats().lingering == 1), "one was let go and waits for its peer");
    let stopping = begin_drain(server, NEVER);
    peers.into_iter().for_each(Peer::reset);
    gate.open();
    let report = stopping.join().unwrap();
    assert!(report.cut == 0 && report.took < SOON, "{report:?}");
    let mut outcomes: Vec<_> = told.1.try_iter().collect();
    outcomes.sort_by_key(|(phase, _)| *phase);
    let reset = |outcome: &Result<(), Option<CloseReason>>| matches!(outcome, Err(Some(CloseReason::PeerReset { .. })));
    assert!(matches!(&outcomes[..], [(b'f', f), (b'h', h), (b'i', Ok(())), (b'l', Ok(()))] if reset(f) && reset(h)));
}

/// S12: a stop in the middle of a storm of connects: whoever was accepted is closed, once.
#[test]
fn a_stop_in_an_accept_storm_closes_whom_it_accepted() {
    let case = Case::start_rounds();
    let mut stormed = 0;
    for round in 0..rounds().div_ceil(30) {
        let server = Server::start(&case, |b| {
            b.reactors(2);
            b.listen(loopback(), echo);
        });
        let (addr, over) = (server.addr(), Arc::new(AtomicBool::new(false)));
        let clients: Vec<_> = (0..3)
            .map(|_| {
                let over = over.clone();
                thread::spawn(move || {
                    let mut made = 0;
                    while !over.load(Ordering::Acquire) {
                        let Ok(stream) = TcpStream::connect(addr) else { break };
                        made += 1;
                        drop(stream);
                    }
                    made
                })
            })
            .collect();
        let handles = server.runtime().handles();
        assert!(wait_until(SOON, || server.stats().accepted > 100), "round {round}: no storm");
        server.stop(if round % 2 == 0 { Duration::ZERO } else { SOON }).unwrap();
        over.store(true, Ordering::Release);
        stormed += clients.into_iter().map(|client| client.join().unwrap()).sum::<u64>();
        let sum = |field: fn(&epoxide::Stats) -> u64| handles.iter().map(|r| field(&r.stats())).sum::<u64>();
        assert_eq!(sum(|s| s.accepted), sum(|s| s.closed), "round {round}");
        assert_eq!(sum(|s| s.open) + sum(|s| s.lingering), 0, "round {round}");
    }
    println!("{stormed} connects");
}

/// S16: no descriptor is free when the drain serves the accept queue: it ends all the same, and waiting clients learn of it.
#[test]
fn a_drain_without_descriptors_ends() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let held = hold_reactor(&server.reactor());
    let mut peers: Vec<_> = (0..4).map(|_| Peer::connect(server.addr())).collect();
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, free_fd_limit(0).unwrap(), hard).unwrap();
    let reactor = server.reactor();
    reactor.drain(NEVER);
    drop(held);
    let ended = wait_until(SOON, || reactor.is_stopped());
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    assert!(ended, "the drain hangs");
    assert!(reactor.stats().accept_starved > 0, "vacuity: there were descriptors");
    for peer in &mut peers {
        assert!(peer.ending(SOON).is_closed());
    }
    server.stop(SOON).unwrap();
}

/// S17, G8: handler done, then the hook, then the stop returns; a hook that panics stops neither the others nor the stop.
#[test]
fn hooks_come_after_the_last_handler_and_before_the_stop_returns() {
    let case = Case::start();
    let log = Arc::new(Mutex::new(Vec::new()));
    let gate = Gate::new();
    let (on, opens) = (log.clone(), gate.clone());
    let mut server = Server::start(&case, |b| {
        b.reactors(2);
        b.on_stop(|_| epoxide_tests_e2e::provoke_panic("a stop hook"));
        let hook = on.clone();
        b.on_stop(move |_| hook.lock().unwrap().push("hook"));
        b.listen(loopback(), move |mut connection: Connection| {
            let (log, gate) = (on.clone(), opens.clone());
            async move {
                let request = connection.read_idle().await?;
                gate.wait().await;
                connection.send_all(&request.ok_or(io::ErrorKind::UnexpectedEof)?).await?;
                log.lock().unwrap().push("handler");
                io::Result::Ok(())
            }
        });
    });
    server.claim_panics(2);
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    assert!(gate.wait_waiting(1, SOON));
    let stopping = begin_drain(server, NEVER);
    gate.open();
    assert_eq!(peer.read_to_end(SOON), (b"x".to_vec(), Ending::Eof));
    assert!(stopping.join().unwrap().graceful);
    log.lock().unwrap().push("stopped");
    let mut log = std::mem::take(&mut *log.lock().unwrap());
    // The other reactor had nobody to wait for.
    let first = log.iter().position(|what| *what == "hook").expect("a hook ran");
    log.remove(first);
    assert_eq!(log, ["handler", "hook", "stopped"]);
}

/// S18, G12: a listener that dies under the runtime is an error, never a clean end; what is served meanwhile is drained.
#[test]
fn a_listener_that_dies_is_an_error() {
    let case = Case::start();
    let listener = TcpListener::bind(loopback()).unwrap();
    let (addr, killer) = (listener.local_addr().unwrap(), listener.try_clone().unwrap());
    let server = Server::start(&case, |b| {
        b.listen_on(listener, http_ok);
    });
    let mut peer = Peer::connect(addr);
    peer.send(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(peer.read_exactly(12, SOON).is_ok_and(|head| head.ends_with(b"200")));
    // shutdown(2) of a listening socket: every accept says EINVAL from then on.
    nix::sys::socket::shutdown(killer.as_raw_fd(), nix::sys::socket::Shutdown::Both).unwrap();
    assert!(wait_until(SOON, || server.reactor().is_stopped()), "a dead listener is not noticed");
    // The hook is called after the last connection has gone.
    let mut faults = Vec::new();
    let told = || {
        faults.extend(case.claim_faults());
        !faults.is_empty()
    };
    assert!(wait_until(SOON, told), "the fault is not reported");
    assert!(faults.len() == 1 && faults[0].contains("listener 0"), "{faults:?}");
    assert!(peer.ending(SOON).is_closed());
    let error = server.runtime().block_on(async { server.reactor().spawn(async {}).map(drop) });
    assert!(error.is_err(), "a reactor that died takes a task");
    server.stop(SOON).unwrap();
}

/// S14, G9: stops from every reactor at once, each twice, and from outside; they join into one.
#[test]
fn stops_from_every_reactor_at_once_are_one_stop() {
    let _case = Case::start();
    let runtime = Arc::new(Runtime::builder().reactors(3).build().unwrap());
    // Each waits for the others on its own thread.
    let (all_here, refused) = (Arc::new(Barrier::new(3)), Arc::new(AtomicUsize::new(0)));
    let handles = runtime.handles();
    for reactor in &handles {
        let (runtime, all_here, refused) = (runtime.clone(), all_here.clone(), refused.clone());
        let stops = move || {
            all_here.wait();
            drop((runtime.shutdown(SOON), runtime.shutdown(NEVER)));
            let blocking = runtime.shutdown_blocking(SOON).expect_err("a reactor must not wait");
            assert_eq!(blocking.kind(), io::ErrorKind::Deadlock);
            refused.fetch_add(1, Ordering::AcqRel);
        };
        reactor.run_here(stops).expect("it runs").detach();
    }
    assert!(wait_until(SOON, || handles.iter().all(ReactorHandle::is_stopped)));
    assert!(runtime.shutdown_blocking(SOON).unwrap().graceful);
    assert_eq!(refused.load(Ordering::Acquire), 3);
}

/// G9: stopped before it runs, it ends at once and serves nobody; whatever was handed to it comes back.
#[test]
fn a_stop_before_the_start_ends_the_start() {
    let _case = Case::start();
    for drains in [false, true] {
        let mut builder = Reactor::builder();
        let started = Arc::new(AtomicUsize::new(0));
        let on = started.clone();
        builder.on_stop(move |_| {
            on.fetch_add(1, Ordering::AcqRel);
        });
        builder.listen(loopback(), echo);
        let reactor = builder.build().unwrap();
        let (handle, addr) = (reactor.handle(), reactor.local_addrs()[0]);
        let task = handle.spawn(std::future::pending::<()>()).unwrap();
        if drains {
            handle.drain(SOON);
        } else {
            handle.stop();
        }
        reactor.run().unwrap();
        assert!(matches!(block_within(task, SOON), Some(Err(JoinError::Stopped))));
        assert_eq!(started.load(Ordering::Acquire), 1, "the stop hook runs");
        assert!(TcpStream::connect(addr).is_err() && handle.spawn(async {}).is_err());
        let again = builder.build().expect_err("what was built is gone");
        assert_eq!(again.kind(), io::ErrorKind::InvalidInput);
    }
}

/// G11: after the stop every late use of a connection, wherever it is held, is an error and touches nothing.
#[test]
fn late_uses_are_errors() {
    let case = Case::start();
    let (server, accepted) = handing_over(&case, |_| {});
    let mut peer = Peer::connect(server.addr());
    let mut connection = accepted.recv_timeout(SOON).expect("handed over");
    let (handle, reactor) = (connection.close_handle(), server.reactor());
    server.stop(Duration::ZERO).unwrap();
    assert_eq!(peer.ending(SOON), Ending::Reset);
    let reason = |error: io::Error| CloseReason::of(&error);
    assert_eq!(
        block_within(connection.read(), SOON).unwrap().map(drop).map_err(reason),
        Err(Some(CloseReason::Aborted))
    );
    stage(&mut connection, b"late").unwrap();
    assert_eq!(block_within(connection.flush(), SOON).unwrap().map_err(reason), Err(Some(CloseReason::Aborted)));
    handle.close();
    handle.reset();
    let sends = reactor.stats().sends;
    assert!(reactor.run_here(|| ()).is_err() && reactor.spawn(async {}).is_err());
    assert!(block_within(reactor.connect(loopback()), SOON).unwrap().is_err());
    assert_eq!(reactor.stats().sends, sends);
    let (socket, _other) = epoxide_tests_e2e::tcp_pair(SOON);
    assert!(Connection::from_std_on(&reactor, socket).is_err());
    drop(connection);
}

/// Handlers on workers that know no idle moment are cut at the deadline like those on reactors.
#[test]
fn a_busy_handler_on_a_worker_is_cut_at_the_deadline() {
    let case = Case::start();
    let mut server = moved_to_workers(&case, echo);
    server.abandon_connections();
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    assert_eq!(peer.read_exactly(1, SOON), Ok(b"x".to_vec()));
    let stopping = thread::spawn(move || server.stop(Duration::from_millis(500)).unwrap());
    peer.send(b"y").unwrap();
    assert_eq!(peer.read_exactly(1, SOON), Ok(b"y".to_vec()));
    let report = stopping.join().unwrap();
    assert!(!report.graceful && report.cut == 1 && report.took >= Duration::from_millis(500), "{report:?}");
    assert_eq!(peer.read_to_end(SOON), (Vec::new(), Ending::Reset));
    assert!(peer.stream().shutdown(Shutdown::Both).is_err() || peer.ending(SOON).is_closed());
}
