//! The counters: what they say agrees with what was done, at every moment at which it can be compared.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use epoxide::{Connection, ReactorConfig, ReactorHandle, Stats, time, yield_now};
use epoxide_tests_e2e::{
    Case, Ending, Http, Peer, Server, block_within, echo, hold_reactor, http_ok, loopback, provoke_panic, wait_until,
};

const SOON: Duration = Duration::from_secs(10);

/// The names in a `Stats`, from its Debug form: every public field.
fn fields(stats: &Stats) -> Vec<String> {
    let text = format!("{stats:?}");
    let inner = text.trim_start_matches("Stats {").trim_end_matches('}');
    inner.split(',').filter_map(|field| field.split_once(':')).map(|(name, _)| name.trim().to_owned()).collect()
}

/// One line a counter: every field once, under its own name, with its own value.
#[test]
fn the_display_table_has_every_counter_once() {
    let mut stats = Stats::default();
    // Different values, so that a line with another field's value shows.
    (stats.accepted, stats.closed, stats.open, stats.staged_refused) = (101, 102, 103, 104);
    let text = stats.to_string();
    let rows: Vec<(&str, u64)> = text
        .lines()
        .map(|line| line.split_once(' ').expect("a name and a value"))
        .map(|(name, value)| (name, value.trim().parse().expect("a number")))
        .collect();
    let names: Vec<String> = rows.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name comes twice");
    assert_eq!(BTreeSet::from_iter(names), BTreeSet::from_iter(fields(&stats)));
    assert!(rows.len() > 20, "vacuity: {} rows", rows.len());
    for row in [("accepted", 101), ("closed", 102), ("open", 103), ("staged_refused", 104), ("reads", 0)] {
        assert!(rows.contains(&row), "{row:?} is not in\n{text}");
    }
}

/// A client that asks, waits and asks again costs one recv and one send a request, and nothing else.
#[test]
fn counters_agree_with_a_scripted_client() {
    const CLIENTS: u64 = 5;
    const REQUESTS: u64 = 40;
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    let mut clients: Vec<Http> = (0..CLIENTS).map(|_| Http::connect(server.addr())).collect();
    for _ in 0..REQUESTS {
        for client in &mut clients {
            assert_eq!(client.get().map(|r| r.status), Ok(200));
        }
    }
    let busy = server.stats();
    assert_eq!((busy.accepted, busy.open, busy.closed, busy.tasks), (CLIENTS, CLIENTS, 0, CLIENTS));
    drop(clients);
    assert!(server.wait_quiet() && wait_until(SOON, || server.stats().tasks == 0));
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.closed, stats.open, stats.lingering), (CLIENTS, CLIENTS, 0, 0));
    assert_eq!(stats.sends, CLIENTS * REQUESTS, "one send a request");
    // And one for each FIN, which is a recv of 0.
    assert_eq!(stats.reads, CLIENTS * (REQUESTS + 1), "one recv a request");
    assert_eq!((stats.eagain, stats.send_eagain, stats.flush_parks), (0, 0, 0));
    assert!(stats.parks >= CLIENTS, "{} parks", stats.parks);
    assert_eq!(stats.tasks_spawned, CLIENTS);
    assert!(stats.passes > 0 && stats.events >= CLIENTS * REQUESTS && stats.task_polls >= CLIENTS);
    let nothing = [stats.panics, stats.handler_errors, stats.timeouts, stats.accept_starved, stats.accept_limited];
    assert_eq!(nothing, [0; 5]);
    assert_eq!([stats.posts_refused, stats.staged_refused, stats.wakes_remote], [0; 3]);
    assert_eq!(stats.buffers_outstanding, 0, "an idle server holds no buffer");
}

/// What goes wrong is counted under its own name, once.
#[test]
fn each_mishap_is_counted_once() {
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        let read_timeout = Duration::from_millis(300);
        b.config(ReactorConfig { read_timeout, max_staged: 10, ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(data) = connection.read().await? else { return Ok(()) };
            match data[0] {
                b'p' => provoke_panic("as the client asked"),
                b'e' => return Err(io::Error::other("as the client asked")),
                b's' => connection.stage(&[0; 11]).or_else(|refused| {
                    assert_eq!(refused.limit, 10);
                    connection.stage(b"!")
                })?,
                b'r' => {
                    connection.send_all(b"1").await?;
                    drop(connection.read().await?);
                }
                _ => drop(connection.read().await?),
            }
            connection.flush().await
        });
    });
    let ask = |what: &[u8]| {
        let mut peer = Peer::connect(server.addr());
        peer.send(what).unwrap();
        peer
    };
    assert_eq!(ask(b"p").ending(SOON), Ending::Reset);
    assert_eq!(ask(b"e").ending(SOON), Ending::Eof);
    assert_eq!(ask(b"s").read_to_end(SOON), (b"!".to_vec(), Ending::Eof));
    assert_eq!(ask(b"t").ending(SOON), Ending::Eof);
    let mut resets = ask(b"r");
    assert_eq!(resets.read_exactly(1, SOON).as_deref(), Ok(&b"1"[..]), "vacuity: it would reset before it is served");
    resets.reset();
    server.claim_panics(1);
    assert!(server.wait_quiet());
    let stats = server.stats();
    // The error that was asked for, the timeout's and the reset's.
    assert_eq!((stats.panics, stats.handler_errors, stats.timeouts, stats.staged_refused), (1, 3, 1, 1));
    assert_eq!((stats.accepted, stats.closed), (5, 5));
}

/// `accepted - closed` is `open` at every look from the reactor's own thread, in the middle of a pass too, while
/// clients come, go and reset.
#[test]
fn accepted_less_closed_is_open_at_every_look() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let watch = server.reactor().spawn(async move {
        let reactor = ReactorHandle::current().expect("this runs on a reactor");
        let (mut looks, mut most) = (0_u64, 0);
        while !stopped.load(Ordering::Relaxed) {
            let stats = reactor.stats();
            assert_eq!(stats.accepted + stats.adopted - stats.closed, stats.open, "after {looks} looks\n{stats}");
            most = most.max(stats.open);
            looks += 1;
            yield_now().await;
        }
        (looks, most)
    });
    for round in 0..40 {
        let mut peers: Vec<Peer> = (0..20).map(|_| Peer::connect(server.addr())).collect();
        for peer in &mut peers {
            peer.send(b"x").unwrap();
            assert_eq!(peer.read_exactly(1, SOON).as_deref(), Ok(&b"x"[..]));
        }
        if round % 2 == 0 {
            peers.into_iter().for_each(Peer::reset);
        }
    }
    assert!(wait_until(SOON, || server.stats().open == 0));
    stop.store(true, Ordering::Relaxed);
    let watch = block_within(watch.expect("the reactor takes a task"), SOON).expect("the watcher ends");
    let (looks, most) = watch.expect("the numbers agreed");
    assert!(looks > 100 && most > 1, "vacuity: {looks} looks, at most {most} open");
    assert!(wait_until(SOON, || server.stats().tasks == 0));
}

/// The sum over the reactors is the runtime's, and each reactor counts its own.
#[test]
fn the_runtime_s_snapshot_is_the_sum_of_its_reactors() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.reactors(3);
        b.listen(loopback(), http_ok);
    });
    for _ in 0..60 {
        assert_eq!(Http::connect(server.addr()).get().map(|r| r.status), Ok(200));
    }
    assert!(server.wait_quiet());
    let each: Vec<Stats> = server.runtime().handles().iter().map(ReactorHandle::stats).collect();
    let sum = server.stats();
    assert_eq!(sum.accepted, 60);
    assert_eq!(sum.accepted, each.iter().map(|s| s.accepted).sum());
    assert_eq!(sum.sends, each.iter().map(|s| s.sends).sum());
    assert_eq!(sum.closed, each.iter().map(|s| s.closed).sum());
    for (reactor, stats) in each.iter().enumerate() {
        assert_eq!(stats.sends, stats.accepted, "reactor {reactor} counts what another one did");
    }
}

/// Every message from another thread either wrote the eventfd or found the reactor awake: never both, never neither.
#[test]
fn eventfd_writes_and_writes_saved_add_up_to_the_messages() {
    const POSTS: u64 = 500;
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    let before = server.stats();
    let wakes = |stats: &Stats| stats.eventfd_writes + stats.eventfd_writes_saved;
    let held = hold_reactor(&server.reactor());
    let posted: Vec<_> = (0..POSTS).map(|_| server.reactor().run_here(|| ()).expect("it is taken")).collect();
    let saved = server.stats().eventfd_writes_saved - before.eventfd_writes_saved;
    held.release();
    for post in posted {
        assert!(block_within(post, SOON).is_some_and(|ran| ran.is_ok()));
    }
    let after = server.stats();
    assert!(saved >= POSTS - 1, "vacuity: the reactor was held, yet only {saved} writes were saved");
    assert_eq!(wakes(&after) - wakes(&before), POSTS + 1, "the holding closure is one more");
}

/// A reactor with nothing to do makes no pass.
#[test]
fn an_idle_reactor_makes_no_pass() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    assert_eq!(Http::connect(server.addr()).get().map(|r| r.status), Ok(200));
    assert!(server.wait_quiet());
    let mut passes = server.stats().passes;
    assert!(wait_until(SOON, || std::mem::replace(&mut passes, server.stats().passes) == passes));
    // sleep: the span that is measured; four ticks would fall into it.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(server.stats().passes, passes, "an idle reactor works");
    assert!(block_within(server.reactor().spawn(time::sleep(Duration::from_millis(1))).unwrap(), SOON).is_some());
    assert!(server.stats().passes > passes, "control: the counter counts");
    assert!(wait_until(SOON, || server.stats().tasks == 0));
}

/// UVE-01..03: the version is the manifest's, a plain number, and the same for every crate here.
#[test]
fn the_version_is_a_plain_number_and_the_same_everywhere() {
    let ours = env!("CARGO_PKG_VERSION");
    let parts: Vec<u32> = ours.split('.').map(|part| part.parse().expect("a number")).collect();
    assert_eq!(parts.len(), 3, "{ours}");
    assert!(parts.iter().any(|part| *part > 0), "{ours} says nothing");
    assert!(!ours.contains(['+', '-']), "{ours}");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    assert!(manifest.lines().any(|line| line == format!("version = \"{ours}\"")), "the workspace's is another");
    let lock = std::fs::read_to_string(root.join("Cargo.lock")).unwrap();
    let locked: Vec<&str> = lock
        .split("[[package]]")
        .filter(|package| package.contains("name = \"epoxide"))
        .filter_map(|package| package.lines().find_map(|line| line.strip_prefix("version = ")))
        .collect();
    assert!(locked.len() > 3 && locked.iter().all(|version| version.trim_matches('"') == ours), "{locked:?}");
}
