//! Limits (law 16): each is refused or paused as stated, counted, and leaves the rest unharmed.

use std::io;
use std::time::Duration;

use epoxide::{Connection, ListenAddr, ListenOptions, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Http, Peer, Server, echo, http_ok, loopback, pattern, stage, telling, wait_until,
};

const SOON: Duration = Duration::from_secs(10);

/// Greets, and holds its place until the peer leaves.
async fn greet(mut connection: Connection) -> io::Result<()> {
    stage(&mut connection, b"hi")?;
    connection.flush().await?;
    while connection.read().await?.is_some() {}
    Ok(())
}

/// With `max` places and `max + waiting` clients: the first are greeted, the others wait in the kernel's queue at no
/// cost, and each that leaves lets one in. In the end everybody was served and counted once.
fn pause_and_resume(max: usize, waiting: usize, set_up: impl FnOnce(&mut epoxide::Builder)) {
    let case = Case::start();
    let server = Server::start(&case, set_up);
    let addr = server.addr();
    let mut inside: Vec<Peer> = (0..max).map(|_| Peer::connect(addr)).collect();
    for peer in &mut inside {
        assert_eq!(peer.read_exactly(2, SOON).as_deref(), Ok(&b"hi"[..]));
    }
    let mut outside: Vec<Peer> = (0..waiting).map(|_| Peer::connect(addr)).collect();
    assert!(wait_until(SOON, || server.stats().accept_limited > 0), "vacuity: accepting never paused");
    let (mut cpu, before) = (server.reactor_cpu(), server.stats());
    let share = cpu.share_over(Duration::from_secs(1)).unwrap();
    let after = server.stats();
    assert!(share < 0.20, "a paused listener used {share:.2} of a core");
    assert!(after.passes - before.passes < 100, "{} passes in a second of waiting", after.passes - before.passes);
    assert_eq!((after.accepted, after.open), (max as u64, max as u64), "more were let in than there are places");
    for peer in &mut outside {
        assert_eq!(peer.read(&mut [0; 8], Duration::from_millis(20)), Err(Ending::Timeout), "greeted past the limit");
    }
    // Each that leaves makes room for one.
    for mut next in outside {
        drop(inside.remove(0));
        assert_eq!(next.read_exactly(2, SOON).as_deref(), Ok(&b"hi"[..]), "nobody was let in for the one that left");
        inside.push(next);
        assert!(server.stats().open <= max as u64);
    }
    drop(inside);
    assert!(server.wait_quiet());
    let stats = server.stats();
    assert_eq!(stats.accepted, (max + waiting) as u64);
    assert_eq!((stats.accepted, stats.accept_starved), (stats.closed, 0));
}

#[test]
fn max_connections_of_the_runtime_pauses_accept_and_resumes() {
    pause_and_resume(3, 4, |b| {
        b.max_connections(3);
        b.listen(loopback(), greet);
    });
}

#[test]
fn max_connections_of_a_listener_pauses_accept_and_resumes() {
    let options = ListenOptions { max_connections: Some(3), ..ListenOptions::default() };
    pause_and_resume(3, 4, move |b| {
        b.listen(ListenAddr::new(loopback()).options(options), greet);
    });
}

/// One listener at its limit does not stop another; at the runtime's limit both wait, and both resume.
#[test]
fn a_listener_at_its_limit_leaves_the_others_alone() {
    let case = Case::start();
    let options = ListenOptions { max_connections: Some(1), ..ListenOptions::default() };
    let server = Server::start(&case, |b| {
        b.max_connections(3);
        b.listen(ListenAddr::new(loopback()).options(options), greet);
        b.listen(loopback(), greet);
    });
    let hi = |peer: &mut Peer| peer.read_exactly(2, SOON).map(|_| ());
    let mut first = Peer::connect(server.addrs()[0]);
    assert_eq!(hi(&mut first), Ok(()));
    let mut second = Peer::connect(server.addrs()[0]);
    assert!(wait_until(SOON, || server.stats().accept_limited > 0), "vacuity: accepting never paused");
    let mut others: Vec<Peer> = (0..2).map(|_| Peer::connect(server.addrs()[1])).collect();
    for other in &mut others {
        assert_eq!(hi(other), Ok(()), "the other listener was held up");
    }
    let mut third = Peer::connect(server.addrs()[1]);
    assert_eq!(third.read(&mut [0; 2], Duration::from_millis(50)), Err(Ending::Timeout), "past the runtime's limit");
    // Both wait for a place of the runtime's, the first listener's for one of its own as well.
    drop(first);
    drop(others);
    assert_eq!((hi(&mut second), hi(&mut third)), (Ok(()), Ok(())), "a listener did not resume");
    drop(second);
    drop(third);
    assert!(server.wait_quiet());
    assert_eq!(server.stats().accepted, 5);
}

/// Lingering connections hold their places: their descriptors exist.
#[test]
fn a_lingering_connection_holds_its_place() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.max_connections(1);
        b.listen(loopback(), |mut connection: Connection| async move { connection.send_all(b"hi").await });
    });
    let mut first = Peer::connect(server.addr());
    assert_eq!(first.read_to_end(SOON), (b"hi".to_vec(), Ending::Eof));
    assert!(wait_until(SOON, || server.stats().lingering == 1), "vacuity: it does not linger");
    let mut second = Peer::connect(server.addr());
    assert!(wait_until(SOON, || server.stats().accept_limited > 0), "accepted beside a lingering one");
    assert_eq!(second.read(&mut [0; 2], Duration::from_millis(50)), Err(Ending::Timeout));
    drop(first);
    assert_eq!(second.read_to_end(SOON), (b"hi".to_vec(), Ending::Eof));
}

fn with_max_staged(max_staged: usize) -> ReactorConfig {
    ReactorConfig { max_staged, ..ReactorConfig::default() }
}

/// `max_staged`: a staging too many is refused with its numbers, takes nothing, is counted, and the connection lives.
#[test]
fn a_staging_too_many_is_refused_and_the_connection_lives() {
    const MAX: usize = 64 * 1024;
    let case = Case::start();
    let (server, told) = telling(&case, with_max_staged(MAX), |mut connection, tell| async move {
        let body = pattern(MAX);
        let before = connection.stage(&body[..MAX - 10]);
        let refused = connection.stage(&[0; 11]);
        let fits = connection.stage(&body[MAX - 10..]);
        let full = connection.stage(&[0]);
        let _ = tell.send((before, refused, fits, full, connection.staged_len()));
        connection.flush().await?;
        // There is room again; and send_all goes in portions, whatever the limit.
        connection.send_all(&pattern(5 * MAX)).await
    });
    let mut peer = Peer::connect(server.addr());
    let (before, refused, fits, full, staged) = told.recv_timeout(SOON).unwrap();
    assert_eq!((before, fits, staged), (Ok(()), Ok(()), MAX));
    let refused = refused.expect_err("past the limit");
    assert_eq!((refused.asked, refused.staged, refused.limit), (11, MAX - 10, MAX));
    assert!(full.is_err());
    let text = io::Error::from(refused).to_string();
    assert!(text.contains("max_staged"), "it does not name the limit: {text}");
    let mut expected = pattern(MAX);
    expected.extend(pattern(5 * MAX));
    let (got, ending) = peer.read_to_end(SOON);
    assert_eq!((got.len(), ending), (expected.len(), Ending::Eof));
    assert!(got == expected, "a refused staging left a trace");
    assert_eq!(server.stats().staged_refused, 2);
}

/// What a flush that waits still holds counts too: the limit is for the connection, not for one staging buffer.
#[test]
fn bytes_that_wait_for_the_peer_count_in_max_staged() {
    const MAX: usize = 8 << 20;
    let case = Case::start();
    let (server, told) = telling(&case, with_max_staged(MAX), |mut connection, tell| async move {
        stage(&mut connection, &pattern(MAX))?;
        let waits = connection.try_flush().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        let refused = connection.stage(&pattern(MAX));
        let _ = tell.send((waits, refused));
        connection.flush().await
    });
    let mut peer = Peer::connect_stalling(server.addr());
    let (waits, refused) = told.recv_timeout(SOON).unwrap();
    assert!(waits, "vacuity: the kernel took everything");
    let refused = refused.expect_err("the waiting bytes were not counted");
    assert!(refused.staged > 0 && refused.limit == MAX);
    let (got, ending) = peer.read_to_end(Duration::from_secs(30));
    assert!(got == pattern(MAX) && ending == Ending::Eof, "{} bytes, {ending:?}", got.len());
}

/// Bad values are refused at construction, by name and with their limits.
#[test]
fn what_cannot_work_is_refused_by_name_at_construction() {
    let case = Case::start();
    let build = |set_up: &dyn Fn(&mut epoxide::Builder)| {
        let refused = Server::try_start(&case, |b| {
            b.listen(loopback(), http_ok);
            set_up(b);
        });
        let error = refused.map(|_| ()).expect_err("it was accepted");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        error.to_string()
    };
    type Set = fn(&mut ReactorConfig);
    let config: [(&str, Set); 9] = [
        ("recv_buffer_size", |c| c.recv_buffer_size = 0),
        ("recv_buffer_size", |c| c.recv_buffer_size = (1 << 30) + 1),
        ("max_read_buffer", |c| c.max_read_buffer = 0),
        ("max_staged", |c| c.max_staged = 0),
        ("max_events", |c| c.max_events = 0),
        ("max_events", |c| c.max_events = usize::MAX),
        ("task_budget", |c| c.task_budget = 0),
        ("read_budget", |c| c.read_budget = 0),
        ("max_posts", |c| c.max_posts = 0),
    ];
    for (name, set) in config {
        let mut config = ReactorConfig::default();
        set(&mut config);
        let text = build(&|b| {
            b.config(config.clone());
        });
        assert!(text.contains(name) && text.contains("must be"), "{name}: {text}");
    }
    let text = build(&|b| {
        b.max_connections(0);
    });
    assert!(text.contains("max_connections"), "{text}");
    let text = build(&|b| {
        let options = ListenOptions { max_connections: Some(0), ..ListenOptions::default() };
        b.listen(ListenAddr::new(loopback()).options(options), http_ok);
    });
    assert!(text.contains("max_connections"), "{text}");
    for reactors in [0, 1_000_000] {
        let text = build(&|b| {
            b.reactors(reactors);
        });
        assert!(text.contains("reactors"), "{text}");
    }
    let text = build(&|b| {
        b.pin(&[]);
    });
    assert!(text.contains("pin"), "{text}");
    let text = build(&|b| {
        b.listen("no-port-here", http_ok);
    });
    assert!(text.contains("no-port-here"), "{text}");
}

/// Z7: the smallest sizes, a 32 MiB buffer and epoll's own limit of events construct and serve.
#[test]
fn sizes_at_their_limits_construct_and_serve() {
    let case = Case::start();
    let default = ReactorConfig::default;
    let max_events = i32::MAX as usize / size_of::<libc::epoll_event>();
    let configs = [
        ReactorConfig { recv_buffer_size: 1, max_read_buffer: 1, ..default() },
        ReactorConfig { recv_buffer_size: 3, ..default() },
        ReactorConfig { recv_buffer_size: 32 << 20, max_read_buffer: 32 << 20, ..default() },
        ReactorConfig { max_events: 1, task_budget: 1, accept_budget: 1, read_budget: 1, flush_budget: 1, ..default() },
        ReactorConfig { max_events, ..default() },
    ];
    for config in configs {
        let text = format!("{config:?}");
        let server = Server::start(&case, |b| {
            b.config(config);
            b.listen(loopback(), http_ok);
            b.listen(loopback(), echo);
        });
        let mut clients: Vec<Http> = (0..4).map(|_| Http::connect(server.addr())).collect();
        for _ in 0..3 {
            for client in &mut clients {
                assert_eq!(client.get().map(|r| (r.status, r.body)), Ok((200, b"ok".to_vec())), "{text}");
            }
        }
        let mut peer = Peer::connect(server.addrs()[1]);
        let body = pattern(10_000);
        peer.send_with_fin(&body).unwrap();
        let (echoed, ending) = peer.read_to_end(SOON);
        assert!(echoed == body && ending == Ending::Eof, "{text}: {} bytes, {ending:?}", echoed.len());
    }
}
