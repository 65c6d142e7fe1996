//! Bounds of handshakes: their deadline, their number, their share of a pass, and the end of the server.

use crate::client::{self, GET, HANG, ask, assert_served, connect};
use crate::servers::{World, answer_requests, serve, serve_prepared};
use epoxide::{CloseReason, layer};
use epoxide_tests_e2e::{Case, Peer, PeerOptions, Unconnected, wait_until};
use epoxide_tls::TlsError;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

#[test]
fn a_silent_client_is_dropped_at_the_deadline_and_a_served_one_is_not() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().handshake_timeout(Duration::from_millis(400)).build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |_| {});
    let mut served = connect(server.addr(), &context);
    ask(&mut served, GET).unwrap();
    let mut silent = Peer::connect(server.addr());
    let mut stalled = Peer::connect(server.addr());
    stalled.send(&[22, 3, 1]).unwrap();
    for peer in [&mut silent, &mut stalled] {
        assert!(peer.ending(HANG).is_closed());
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(CloseReason::of(&error).is_some_and(|why| why.to_string().contains("TLS handshake")), "{error}");
    }
    // Idle for longer than the deadline, and still there.
    assert!(ask(&mut served, GET).unwrap().ends_with("tls-ok"));
    assert_eq!(config.handshakes(), 0);
}

/// The user's own deadline, set before: the earlier of the two ends the handshake, and the user's goes on after it.
#[test]
fn a_deadline_from_before_the_handshake_stays() {
    const OWN: &str = "the user's own";
    let case = Case::start();
    let world = World::new();
    let start = |handshake: u64, own: u64| {
        let config = world.options().handshake_timeout(Duration::from_millis(handshake)).build().unwrap();
        let own = Duration::from_millis(own);
        serve_prepared(&case, &config, move |conn| conn.set_deadline(Some(Instant::now() + own), OWN), answer_requests)
    };
    let hour = 3_600_000;
    for (handshake, own, which) in [(hour, 300, OWN), (0, 300, OWN), (300, hour, "TLS handshake")] {
        let (server, ends) = start(handshake, own);
        let mut silent = Peer::connect(server.addr());
        assert!(silent.ending(HANG).is_closed());
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(
            CloseReason::of(&error).is_some_and(|why| why.to_string().contains(which)),
            "{handshake} {own}: {error}"
        );
    }
    // Later than the handshake's own: put back when that is done.
    let (server, ends) = start(4_000, 6_000);
    let context = client::context(&world.authority, |_| {});
    let begun = Instant::now();
    let mut served = connect(server.addr(), &context);
    ask(&mut served, GET).unwrap();
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(CloseReason::of(&error).is_some_and(|why| why.to_string().contains(OWN)), "{error}");
    assert!(begun.elapsed() >= Duration::from_secs(5), "early");
}

#[test]
fn no_deadline_holds_a_silent_client() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().handshake_timeout(Duration::ZERO).build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let mut silent = Peer::connect(server.addr());
    assert_eq!(silent.ending(Duration::from_millis(700)), epoxide_tests_e2e::Ending::Timeout);
    assert!(wait_until(HANG, || config.handshakes() == 1));
    drop(silent);
    assert!(wait_until(HANG, || config.handshakes() == 0));
}

/// A thousand clients that connect and say nothing: gone by the deadline, and a served client notices nothing.
#[test]
fn a_thousand_silent_handshakes_are_gone_by_the_deadline() {
    let case = Case::start();
    let world = World::new();
    let timeout = Duration::from_secs(2);
    let config = world.options().handshake_timeout(timeout).build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |_| {});
    let mut served = connect(server.addr(), &context);
    let over = Arc::new(AtomicBool::new(false));
    let stop = over.clone();
    let asking = std::thread::spawn(move || {
        let mut answers = 0;
        while !stop.load(Ordering::Relaxed) {
            assert!(ask(&mut served, GET).unwrap().ends_with("tls-ok"));
            answers += 1;
        }
        (served, answers)
    });
    let begun = Instant::now();
    let silent: Vec<_> = (0..1000).map(|_| Peer::connect(server.addr())).collect();
    assert!(wait_until(HANG, || config.handshakes() > 900 || begun.elapsed() > timeout), "they are under way at once");
    assert_served(server.addr(), &context);
    assert!(wait_until(HANG, || config.handshakes() == 0), "{} are left", config.handshakes());
    assert!(begun.elapsed() >= timeout, "not before the deadline");
    over.store(true, Ordering::Relaxed);
    let (served, answers) = asking.join().unwrap();
    assert!(answers > 0);
    let timed_out = ends.try_iter().filter(|end| matches!(end, Err(e) if e.kind() == ErrorKind::TimedOut)).count();
    assert_eq!(timed_out, 1000);
    drop((served, silent));
}

#[test]
fn one_handshake_too_many_is_reset_and_counted() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().max_handshakes(2).build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |_| {});
    // Done handshakes do not count.
    let mut served: Vec<_> = (0..4).map(|_| connect(server.addr(), &context)).collect();
    assert!(wait_until(HANG, || config.handshakes() == 0));
    let silent = [Peer::connect(server.addr()), Peer::connect(server.addr())];
    assert!(wait_until(HANG, || config.handshakes() == 2));
    // The reset may come before the client has done anything.
    match Unconnected::new(server.addr(), PeerOptions::default()).connect() {
        Ok(mut third) => assert!(third.ending(HANG).is_closed()),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert_eq!(TlsError::of(&error), Some(&TlsError::TooManyHandshakes { limit: 2 }));
    assert_eq!((error.kind(), config.refused_handshakes()), (ErrorKind::QuotaExceeded, 1));
    for client in &mut served {
        assert!(ask(client, GET).unwrap().ends_with("tls-ok"));
    }
    drop(silent);
    assert!(wait_until(HANG, || config.handshakes() == 0));
    assert_served(server.addr(), &context);
}

/// A handshake that is dropped, wherever it is, gives its place back at both ends and harms nobody.
#[test]
fn a_dropped_handshake_gives_its_place_back() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().max_handshakes(2).build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let client = world.client().build().unwrap();
    let (mut cut, mut done) = (0, 0);
    for polls in (0..8).cycle().take(40) {
        epoxide::block_on(async {
            let conn = epoxide::connect(server.addr()).await.unwrap();
            let mut shaking = client.connect_over(conn, "localhost");
            let mut left = polls;
            std::future::poll_fn(|cx| {
                if left == 0 {
                    cut += 1;
                    return Poll::Ready(());
                }
                left -= 1;
                Pin::new(&mut shaking).poll(cx).map(|made| {
                    done += 1;
                    drop(made.unwrap());
                })
            })
            .await;
        });
        assert_eq!(client.handshakes(), 0);
        assert!(wait_until(HANG, || config.handshakes() == 0));
    }
    assert!(cut > 0 && done > 0, "vacuity: {cut} were cut, {done} were done");
    assert_served(server.addr(), &client::context(&world.authority, |_| {}));
    assert_eq!(config.refused_handshakes(), 0);
}

#[test]
fn a_reactor_makes_a_limited_number_of_steps_in_a_pass() {
    let case = Case::start();
    let steps = |n: u32| (0..n).filter(|_| layer::take_step(3)).count();
    let counted = epoxide::block_on(async move {
        let mut counted = Vec::new();
        for _ in 0..3 {
            counted.push(steps(10));
            // Longer than the steps take, or it would be over within the same pass.
            epoxide::time::sleep(Duration::from_millis(50)).await;
        }
        counted
    });
    assert_eq!(counted, [3, 3, 3], "each pass has its own");
    assert_eq!(steps(10), 10, "off the reactors there is no limit");
    drop(case);
}

/// More clients at once than a pass has steps for: all are served.
#[test]
fn a_burst_of_handshakes_is_served_over_several_passes() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |_| {});
    let done = Arc::new(AtomicUsize::new(0));
    let held = epoxide_tests_e2e::hold_reactor(&server.reactor());
    let clients: Vec<_> = (0..80)
        .map(|_| {
            let (addr, context, done) = (server.addr(), context.clone(), done.clone());
            std::thread::spawn(move || {
                assert_served(addr, &context);
                done.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    // sleep: the hellos are on their way; no signal says that they have arrived.
    std::thread::sleep(Duration::from_millis(200));
    held.release();
    clients.into_iter().for_each(|client| client.join().unwrap());
    assert_eq!(done.load(Ordering::Relaxed), 80);
}

#[test]
fn a_drain_ends_silent_handshakes_at_once_and_serves_the_others() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().handshake_timeout(Duration::from_secs(60)).build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |_| {});
    let mut idle = connect(server.addr(), &context);
    ask(&mut idle, GET).unwrap();
    let mut silent = Peer::connect(server.addr());
    assert!(wait_until(HANG, || config.handshakes() == 1));
    let begun = Instant::now();
    server.stop(Duration::from_secs(40)).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(30), "the drain waited for a silent client");
    assert!(silent.ending(HANG).is_closed());
    let mut rest = Vec::new();
    std::io::Read::read_to_end(&mut idle, &mut rest).unwrap();
    assert!(idle.get_shutdown().contains(boring::ssl::ShutdownState::RECEIVED), "an idle session ends clean");
    let mut ends: Vec<_> = ends.try_iter().collect();
    ends.sort_by_key(Result::is_ok);
    assert_eq!(ends.len(), 2);
    let draining = ends[0].as_ref().unwrap_err();
    assert_eq!(CloseReason::of(draining), Some(CloseReason::Draining), "{draining}");
}

#[test]
fn the_read_clock_ends_a_client_that_never_asks_and_not_a_busy_handler() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let server = epoxide_tests_e2e::Server::start(&case, |builder| {
        builder.config(epoxide::ReactorConfig { read_timeout: Duration::from_millis(500), ..Default::default() });
        builder.listen(epoxide_tests_e2e::loopback(), move |conn| {
            let (config, tell) = (config.clone(), tell.clone());
            async move {
                let mut conn = config.accept(conn).await.unwrap();
                let first = conn.read().await.map(|data| data.map(|data| data.to_vec()));
                if first.is_ok() {
                    epoxide::time::sleep(Duration::from_millis(1500)).await;
                    conn.send_all(b"slow-but-here").await.unwrap();
                }
                tell.send(first).unwrap();
            }
        });
    });
    let context = client::context(&world.authority, |_| {});
    let _silent = connect(server.addr(), &context);
    let error = told.recv_timeout(HANG).unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
    let mut slow = connect(server.addr(), &context);
    std::io::Write::write_all(&mut slow, b"hello").unwrap();
    let mut answer = [0; 13];
    std::io::Read::read_exact(&mut slow, &mut answer).unwrap();
    assert_eq!(&answer, b"slow-but-here");
    assert_eq!(told.recv_timeout(HANG).unwrap().unwrap().as_deref(), Some(&b"hello"[..]));
}
