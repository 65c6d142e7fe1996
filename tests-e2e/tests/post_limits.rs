//! The limit on posts (law 16): what is refused comes back whole, what was taken runs, and wakes are never refused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use epoxide::{Connection, PostError, ReactorConfig};
use epoxide_tests_e2e::{Case, Ending, Gate, Peer, Server, block_within, hold_reactor, http_ok, loopback, wait_until};

const SOON: Duration = Duration::from_secs(10);

/// A server that takes so many posts.
fn with_max_posts(case: &Case, max_posts: usize) -> Server {
    Server::start(case, |b| {
        b.config(ReactorConfig { max_posts, ..ReactorConfig::default() });
        b.listen(loopback(), http_ok);
    })
}

/// `max_posts`: a post too many comes back with its payload; those that were taken all run, in order, and afterwards
/// there is room again.
#[test]
fn a_post_too_many_comes_back_and_the_rest_runs() {
    const MAX: usize = 16;
    let case = Case::start();
    let server = with_max_posts(&case, MAX);
    let reactor = server.reactor();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let held = hold_reactor(&reactor);
    let mut refused = Vec::new();
    for n in 0..MAX + 5 {
        let (ran, token) = (Arc::clone(&ran), vec![n]);
        let post = move || ran.lock().expect("no holder panics").extend(token);
        match reactor.run_here(post) {
            Ok(_) => {}
            Err(PostError::Full(payload)) => refused.push((n, payload)),
            Err(other) => panic!("{other:?}"),
        }
    }
    // Futures are refused in the same way, and come back whole.
    let future = async { 41 + 1 };
    let future = match reactor.spawn(future) {
        Err(PostError::Full(future)) => future,
        other => panic!("past the limit: {:?}", other.map(|_| ())),
    };
    assert!(matches!(reactor.spawn_with(|| async {}), Err(PostError::Full(_))));
    let numbers: Vec<usize> = refused.iter().map(|(n, _)| *n).collect();
    assert_eq!(numbers, (MAX..MAX + 5).collect::<Vec<_>>(), "exactly max_posts wait");
    assert_eq!(server.stats().posts_refused, 5 + 2);
    held.release();
    assert!(wait_until(SOON, || ran.lock().unwrap().len() == MAX));
    assert_eq!(*ran.lock().unwrap(), (0..MAX).collect::<Vec<_>>(), "out of order");
    // What came back still works, here or there.
    assert_eq!(block_within(future, SOON), Some(42));
    for (_, payload) in refused {
        let again = reactor.run_here(payload);
        let joined = block_within(again.expect("there is room again"), SOON).expect("it runs");
        assert!(joined.is_ok());
    }
    assert_eq!(ran.lock().unwrap().len(), MAX + 5);
}

/// Wakes, owed flushes and let-go connections are never refused: a reactor whose posts are full still serves.
#[test]
fn a_full_post_queue_does_not_refuse_wakes() {
    let case = Case::start();
    let (gate, (arrived, arrivals)) = (Gate::new(), channel());
    let handler_gate = gate.clone();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { max_posts: 1, ..ReactorConfig::default() });
        b.listen(loopback(), move |mut connection: Connection| {
            let (gate, arrived) = (handler_gate.clone(), arrived.clone());
            async move {
                let _ = arrived.send(());
                gate.wait().await;
                connection.send_all(b"ok").await
            }
        });
    });
    let mut peers: Vec<Peer> = (0..8).map(|_| Peer::connect(server.addr())).collect();
    for _ in &peers {
        arrivals.recv_timeout(SOON).unwrap();
    }
    let held = hold_reactor(&server.reactor());
    // The one place is taken (or the holder's own is still: both are full).
    while server.reactor().run_here(|| ()).is_ok() {}
    gate.open();
    held.release();
    for peer in &mut peers {
        assert_eq!(peer.read_to_end(SOON), (b"ok".to_vec(), Ending::Eof));
    }
}

/// What was taken runs and what was refused is counted, whoever posts at the same time.
#[test]
fn posts_of_many_threads_never_exceed_the_limit() {
    const MAX: usize = 8;
    let case = Case::start();
    let server = with_max_posts(&case, MAX);
    let reactor = server.reactor();
    let ran = Arc::new(AtomicUsize::new(0));
    let (mut taken, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut taken, mut refused) = (0_usize, 0_usize);
                    for _ in 0..5000 {
                        let ran = Arc::clone(&ran);
                        match reactor.run_here(move || ran.fetch_add(1, Ordering::Relaxed)) {
                            Ok(_) => taken += 1,
                            Err(PostError::Full(_)) => refused += 1,
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                    (taken, refused)
                })
            })
            .collect();
        for thread in threads {
            let (t, r) = thread.join().unwrap();
            (taken, refused) = (taken + t, refused + r);
        }
    });
    assert!(wait_until(SOON, || ran.load(Ordering::Relaxed) == taken), "a post that was taken did not run");
    assert_eq!(server.stats().posts_refused, refused as u64);
    assert_eq!(taken + refused, 20_000);
}
