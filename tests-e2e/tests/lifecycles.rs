//! Lifecycles: panics in Drop, wakers and hooks, thread teardown, races of every ending, halves on two threads.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use epoxide::{Connection, Reactor, ReactorConfig, time};
use epoxide_tests_e2e::*;

const SOON: Duration = Duration::from_secs(20);

struct Bomb;
impl Drop for Bomb {
    fn drop(&mut self) {
        provoke_panic("a drop");
    }
}
struct BadWaker;
impl Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        provoke_panic("a waker");
    }
}

fn child(name: &str) -> bool {
    std::env::var("EPOXIDE_TEST_CHILD").is_ok_and(|v| v == name)
}
fn in_child(name: &str) -> std::process::Output {
    Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env("EPOXIDE_TEST_CHILD", name)
        .output()
        .unwrap()
}

/// A future whose Drop panics, joined by a waker that panics: two caught panics, not an abort of the process.
#[test]
fn a_panicking_drop_and_a_panicking_waker_do_not_abort() {
    // Before the child begins: its pipes are in no other test's baseline.
    let case = Case::start();
    let name = "a_panicking_drop_and_a_panicking_waker_do_not_abort";
    if !child(name) {
        let out = in_child(name);
        assert!(
            out.status.success(),
            "{:?}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr).lines().rev().take(12).collect::<Vec<_>>().join("\n")
        );
        return;
    }
    let mut server = Server::start(&case, |_| {});
    let gate = Gate::new();
    let g = gate.clone();
    let mut handle = Box::pin(
        server
            .reactor()
            .spawn(async move {
                let _bomb = Bomb;
                g.wait().await;
            })
            .unwrap(),
    );
    assert!(gate.wait_waiting(1, SOON));
    let waker = Waker::from(Arc::new(BadWaker));
    assert!(handle.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    handle.abort();
    assert!(wait_until(SOON, || handle.is_finished()));
    server.claim_panics(2);
}

/// What an on_stop hook spawns is dropped, and its panic goes no further.
#[test]
fn a_panicking_drop_of_what_on_stop_spawned_stays_inside() {
    let _case = Case::start();
    let result = thread::spawn(|| {
        let mut builder = Reactor::builder();
        builder.on_stop(|_| {
            let bomb = Bomb;
            epoxide::spawn_local(async move {
                let _b = bomb;
            })
            .detach();
        });
        let reactor = builder.build().unwrap();
        reactor.handle().stop();
        reactor.run().is_ok()
    })
    .join();
    assert!(matches!(result, Ok(true)), "the panic came out of Reactor::run");
}

/// Connections, sleeps and joins dropped by thread-locals of a reactor thread, a worker and a plain thread.
#[test]
fn thread_locals_that_hold_everything_may_die_with_their_threads() {
    thread_local! { static KEPT: RefCell<Vec<Box<dyn std::any::Any>>> = const { RefCell::new(Vec::new()) } }
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        b.reactors(2);
    });
    server.abandon_connections();
    let handles = server.runtime().handles();
    let mut clients = Vec::new();
    for home in [0, 1] {
        let fill = |h: epoxide::ReactorHandle, c: Connection| {
            move || {
                let mut sleep = Box::pin(time::sleep(Duration::from_secs(1000)));
                let _ = sleep.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop()));
                let join = h.spawn(std::future::pending::<()>()).unwrap();
                KEPT.with_borrow_mut(|k| {
                    k.push(Box::new(c));
                    k.push(Box::new(sleep));
                    k.push(Box::new(join));
                });
            }
        };
        for place in 0..3 {
            let (tcp, client) = tcp_pair(SOON);
            clients.push(client);
            let c = Connection::from_std_on(&handles[home], tcp).unwrap();
            let f = fill(handles[home].clone(), c);
            match place {
                0 => block_within(handles[0].run_here(f).unwrap(), SOON).unwrap().unwrap(),
                1 => block_within(handles[0].workers().spawn(async move { f() }).unwrap(), SOON).unwrap().unwrap(),
                _ => thread::spawn(f).join().unwrap(),
            }
        }
    }
    drop(server);
    for mut c in clients {
        let _ = c.read(&mut [0]);
    }
}

/// An error whose Display panics is a panic of its handler, nobody else's.
#[test]
fn an_error_that_cannot_be_shown() {
    struct Bad;
    impl std::fmt::Display for Bad {
        fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            provoke_panic("display");
            Ok(())
        }
    }
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        b.listen(loopback(), |c: Connection| async move {
            drop(c);
            Err::<(), Bad>(Bad)
        });
        b.on_stop(|_| provoke_panic("on_stop"));
    });
    for _ in 0..3 {
        assert!(Peer::connect(server.addr()).ending(SOON).is_closed());
    }
    server.claim_panics(4);
}

/// Every ending races every other on connections whose halves are on two threads: everything settles, nothing leaks.
#[test]
fn endings_race_on_two_threads() {
    let case = Case::start_rounds();
    let mut server = Server::start(&case, |b| {
        b.reactors(2).config(ReactorConfig { flush_budget: 3000, ..ReactorConfig::default() });
    });
    let handles = server.runtime().handles();
    for round in 0..rounds() as u64 {
        let (tcp, mut client) = tcp_pair(SOON);
        let mut rng = Rng::new(round);
        let c = Connection::from_std_on(&handles[(round % 2) as usize], tcp).unwrap();
        c.set_send_buffer_size(4096).unwrap();
        let close = c.close_handle();
        let (mut r, mut w) = c.into_split();
        let body = pattern(100_000);
        let reader = async move {
            loop {
                match r.read().await {
                    Ok(Some(_)) => {}
                    other => return (r, other.map(drop)),
                }
            }
        };
        let writer = async move {
            for _ in 0..50 {
                if w.send_all(&body).await.is_err() {
                    break;
                }
            }
            w
        };
        let (reader, writer) = match rng.below(3) {
            0 => (handles[0].spawn(reader).unwrap(), handles[1].workers().spawn(writer).unwrap()),
            1 => (handles[1].workers().spawn(reader).unwrap(), handles[0].spawn(writer).unwrap()),
            _ => (handles[1].spawn(reader).unwrap(), handles[0].spawn(writer).unwrap()),
        };
        let (abort_r, abort_w) = (reader.abort_handle(), writer.abort_handle());
        if rng.below(2) == 0 {
            client.write_all(&pattern(rng.below(30_000) as usize + 1)).unwrap();
        }
        let mut threads = Vec::new();
        for k in 0..2 {
            let (close, abort_r, abort_w) = (close.clone(), abort_r.clone(), abort_w.clone());
            let mut rng = Rng::new(round * 13 + k);
            let mut client = client.try_clone().unwrap();
            threads.push(thread::spawn(move || {
                rng.skew(30_000);
                match rng.below(7) {
                    0 => close.close(),
                    1 => close.reset(),
                    2 => abort_w.abort(),
                    3 => {
                        abort_r.abort();
                        abort_w.abort();
                    }
                    4 => {
                        let _ = client.shutdown(std::net::Shutdown::Both);
                    }
                    5 => {
                        let _ = io::copy(&mut (&mut client).take(200_000), &mut io::sink());
                    }
                    _ => {
                        close.close();
                        close.reset();
                    }
                }
            }));
        }
        for t in threads {
            t.join().unwrap();
        }
        // Whatever happened, this ends it.
        close.reset();
        let r = block_within(reader, SOON).expect("the reader settles");
        let w = block_within(writer, SOON).expect("the writer settles");
        if let (Ok((r, _)), Ok(w)) = (r, w) {
            let mut c = Connection::reunite(r, w).unwrap();
            assert!(c.close_reason().is_some() && c.try_flush().is_err(), "round {round}: {c:?}");
            assert!(block_within(c.send_all(b"late"), SOON).unwrap().is_err());
        }
    }
    server.claim_panics(0);
}

/// Deadlines set, moved and cleared by threads race the close: no reader is left behind, no cleared deadline fires.
#[test]
fn deadlines_race_everything() {
    let case = Case::start_rounds();
    let server = Server::start(&case, |b| {
        b.reactors(2);
    });
    let handles = server.runtime().handles();
    for round in 0..rounds() as u64 {
        let (tcp, client) = tcp_pair(SOON);
        let c = Connection::from_std_on(&handles[0], tcp).unwrap();
        let close = c.close_handle();
        let (mut r, w) = c.into_split();
        let reader = handles[(round % 2) as usize].spawn(async move { r.read().await.map(drop) }).unwrap();
        let w = Arc::new(w);
        let threads: Vec<_> = (0..2)
            .map(|k| {
                let (w, h) = (w.clone(), handles[k].clone());
                thread::spawn(move || {
                    let mut rng = Rng::new(round * 7 + k as u64);
                    let _e = (k == 1).then(|| h.enter());
                    for _ in 0..20 {
                        let at = match rng.below(3) {
                            0 => None,
                            1 => Some(Instant::now() + Duration::from_secs(100)),
                            _ => Some(Instant::now() + Duration::from_micros(rng.below(3000))),
                        };
                        w.set_deadline(at, "race");
                    }
                    if round % 3 == 0 {
                        w.set_deadline(Some(Instant::now() + Duration::from_millis(2)), "last");
                    }
                })
            })
            .collect();
        for t in threads {
            t.join().unwrap();
        }
        if round % 3 != 0 {
            close.close();
        }
        let result = block_within(reader, SOON).expect("settles").unwrap();
        assert!(result.is_err(), "round {round}: {result:?}");
        drop((w, client));
    }
}

/// A sleep goes from a reactor to another one, its first reactor stops, and it still wakes, not early.
#[test]
fn sleeps_move_between_reactors_that_stop() {
    let case = Case::start();
    for round in 0..20_u64 {
        let server = Server::start(&case, |b| {
            b.reactors(2);
        });
        let handles = server.runtime().handles();
        let until = Instant::now() + Duration::from_millis(30 + round);
        let sleep = block_within(
            handles[0]
                .spawn(async move {
                    let mut s = Box::pin(time::sleep_until(until));
                    std::future::poll_fn(|cx| {
                        let _ = s.as_mut().poll(cx);
                        std::task::Poll::Ready(())
                    })
                    .await;
                    Some(s)
                })
                .unwrap(),
            SOON,
        )
        .unwrap()
        .unwrap();
        let waits = handles[1]
            .spawn(async move {
                sleep.unwrap().await;
                Instant::now()
            })
            .unwrap();
        if round % 2 == 0 {
            handles[0].stop();
        }
        let woke = block_within(waits, SOON).unwrap().unwrap();
        assert!(woke >= until);
    }
}

/// Two listeners on one port, in every combination of families.
#[test]
fn one_port_twice_is_refused() {
    let case = Case::start();
    for (a, b) in [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "0.0.0.0"),
        ("[::]", "0.0.0.0"),
        ("[::]", "127.0.0.1"),
        ("0.0.0.0", "[::]"),
        ("[::1]", "[::]"),
        ("[::]", "[::1]"),
    ] {
        let Ok(one) = Server::try_start(&case, |x| {
            x.reactors(2).listen(format!("{a}:0").as_str(), echo);
        }) else {
            continue;
        };
        let port = one.addr().port();
        let two = Server::try_start(&case, |x| {
            x.reactors(2).listen(format!("{b}:{port}").as_str(), echo);
        });
        assert!(two.is_err(), "{a} and {b} on one port");
        drop(one);
    }
    let free = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let both = Server::try_start(&case, |x| {
        x.reactors(2).listen(free, echo);
        x.listen(free, echo);
    });
    assert!(both.is_err(), "one builder, one port, twice");
}

/// block_on inside every place that may not block says so, and harms nobody.
#[test]
fn block_on_where_it_is_forbidden() {
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let h = server.reactor();
    assert!(block_within(h.spawn(async { epoxide::block_on(async {}) }).unwrap(), SOON).unwrap().is_err());
    assert!(block_within(h.run_here(|| epoxide::block_on(async {})).unwrap(), SOON).unwrap().is_err());
    assert!(block_within(h.workers().spawn(async { epoxide::block_on(async {}) }).unwrap(), SOON).unwrap().is_err());
    assert!(
        block_within(h.workers().spawn_blocking(|| epoxide::block_on(async { 7 })).unwrap(), SOON).unwrap().is_ok()
    );
    let inner = epoxide::block_on(async { std::panic::catch_unwind(|| epoxide::block_on(async {})).is_err() });
    assert!(inner);
    let mut p = Peer::connect(server.addr());
    p.send(b"x").unwrap();
    assert_eq!(p.read_exactly(1, SOON), Ok(b"x".to_vec()));
    drop(p);
    assert!(server.wait_quiet());
    server.claim_panics(server.stats().panics);
}
