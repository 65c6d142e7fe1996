//! Hostile peers in numbers: storms of connects and resets, resets in the accept queue, half-open floods. Afterwards the
//! server answers as before and holds nothing. No fault seam here.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Http, Peer, PeerOptions, Server, Unconnected, echo, hold_reactor, http_ok, loopback, resident_bytes,
    wait_until,
};

const SOON: Duration = Duration::from_secs(10);

fn serving(case: &Case) -> Server {
    Server::start(case, |b| {
        b.listen(loopback(), http_ok);
    })
}

fn still_serves(server: &Server) {
    let response = Http::connect(server.addr()).get().expect("a fresh request is answered");
    assert_eq!((response.status, &response.body[..]), (200, &b"ok"[..]));
}

/// Leaves with a RST, so that no port stays in TIME_WAIT: ten thousand of those would starve the tests that follow.
fn leave(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    nix::sys::socket::setsockopt(stream, nix::sys::socket::sockopt::Linger, &linger).unwrap();
}

/// Engine bugs 51 and 52: after 10 000 connections the process holds what it held after the first thousand, give or take
/// 4 MiB (400 bytes a connection); the case counts descriptors and buffers.
#[test]
fn ten_thousand_connects_and_closes_leave_nothing() {
    let case = Case::start();
    let server = serving(&case);
    let churn = |count: usize| {
        for i in 0..count {
            let mut peer = Peer::connect(server.addr());
            match i % 4 {
                0 => {}
                1 => peer.send(b"GET / HT").unwrap(),
                2 => {
                    peer.send(Http::GET).unwrap();
                    let answer = peer.read_exactly(4, SOON).expect("an answer");
                    assert_eq!(&answer, b"HTTP");
                }
                _ => peer.half_close().unwrap(),
            }
            leave(peer.stream());
        }
        assert!(wait_until(SOON, || server.stats().open == 0), "{:?}", server.stats());
    };
    churn(1000);
    let before = resident_bytes().unwrap();
    churn(9000);
    let grown = resident_bytes().unwrap().saturating_sub(before);
    assert!(grown < 4 << 20, "9000 connections left {grown} bytes");
    let stats = server.stats();
    assert_eq!((stats.accepted, stats.closed), (10_000, 10_000));
    still_serves(&server);
}

/// A storm of resets from several threads beside a client that only wants its answers.
#[test]
fn a_storm_of_resets_harms_no_other_client() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen(loopback(), http_ok);
    });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..3_usize {
            let (over, addr) = (&over, server.addr());
            scope.spawn(move || {
                let mut i = thread;
                while !over.load(Ordering::Relaxed) {
                    let mut peer = Peer::connect(addr);
                    let _ = peer.send(&Http::GET[..i % Http::GET.len()]);
                    peer.reset();
                    i += 7;
                }
            });
        }
        let mut client = Http::connect(server.addr());
        for request in 0..300 {
            let response = client.get();
            if response.as_ref().map(|r| r.status) != Ok(200) {
                over.store(true, Ordering::Relaxed);
                panic!("request {request} beside the storm: {response:?}");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(server.stats().accepted > 100, "vacuity: no storm: {:?}", server.stats());
    assert!(server.wait_quiet());
    still_serves(&server);
}

/// Field bug 35 (gnet#453) and engine bug 55: clients that reset while they wait in the accept queue.
#[test]
fn resets_in_the_accept_queue_end_nothing() {
    let case = Case::start();
    let server = serving(&case);
    for _ in 0..20 {
        let held = hold_reactor(&server.reactor());
        let queued: Vec<Peer> = (0..40).map(|_| Peer::connect(server.addr())).collect();
        let mut kept = Http::connect(server.addr());
        kept.send(Http::GET).unwrap();
        for mut peer in queued {
            let _ = peer.send(b"x");
            peer.reset();
        }
        held.release();
        assert_eq!(kept.response(SOON).map(|r| r.status), Ok(200), "a client behind those that left");
    }
    assert!(server.wait_quiet());
    still_serves(&server);
}

/// Field bug 31 (tokio#6221): accepting is within the budget, so a storm of connects starves no connection: the first
/// comes to its turn before a tenth of the crowd has been taken in.
#[test]
fn a_storm_of_connects_leaves_the_others_their_turn() {
    static ENTERED: AtomicUsize = AtomicUsize::new(0);
    static BEFORE_B: AtomicUsize = AtomicUsize::new(usize::MAX);
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { accept_budget: 4, ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            ENTERED.fetch_add(1, Ordering::Relaxed);
            while let Some(got) = connection.read().await? {
                if got.contains(&b'b') {
                    BEFORE_B.store(ENTERED.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                connection.send_all(&got).await?;
            }
            io::Result::Ok(())
        });
    });
    let mut client = Peer::connect(server.addr());
    client.send(b"a").unwrap();
    assert_eq!(client.read_exactly(1, SOON), Ok(b"a".to_vec()));
    let held = hold_reactor(&server.reactor());
    let crowd: Vec<Peer> = (0..1000).map(|_| Peer::connect(server.addr())).collect();
    client.send(b"b").unwrap();
    held.release();
    assert_eq!(client.read_exactly(1, SOON), Ok(b"b".to_vec()));
    let before = BEFORE_B.load(Ordering::Relaxed);
    assert!(before < 100, "{before} of 1000 were taken in first");
    assert!(wait_until(SOON, || server.stats().accepted == 1001), "{:?}", server.stats());
    for peer in &crowd {
        leave(peer.stream());
    }
}

/// A half-open flood: clients that never close their side. Lingering is bounded, so all places are free again soon after
/// the handlers let go.
#[test]
fn a_half_open_flood_is_let_go_within_the_linger() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { linger: Duration::from_millis(300), ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            // Speaks once and lets go; the peer stays.
            connection.send_all(b"bye").await?;
            io::Result::Ok(())
        });
    });
    let mut flood: Vec<Peer> = (0..500).map(|_| Peer::connect(server.addr())).collect();
    for peer in &mut flood {
        assert_eq!(peer.read_exactly(3, SOON), Ok(b"bye".to_vec()));
        assert_eq!(peer.ending(SOON), Ending::Eof);
    }
    let begun = Instant::now();
    assert!(wait_until(SOON, || server.stats().open == 0), "{:?}", server.stats());
    assert!(begun.elapsed() < Duration::from_secs(5), "lingering took {:?}", begun.elapsed());
    for peer in &flood {
        leave(peer.stream());
    }
}

/// Clients that half-close at once and then stay: each gets its clean end, and none is kept.
#[test]
fn half_closed_clients_that_stay_get_their_end() {
    let case = Case::start();
    let server = serving(&case);
    let mut flood: Vec<Peer> = (0..500).map(|_| Peer::connect(server.addr())).collect();
    for peer in &mut flood {
        peer.half_close().unwrap();
    }
    for (i, peer) in flood.iter_mut().enumerate() {
        assert_eq!(peer.ending(SOON), Ending::Eof, "client {i}");
    }
    assert!(wait_until(SOON, || server.stats().open == 0), "{:?}", server.stats());
    still_serves(&server);
}

/// Engine bug 58: a drain ends although clients send without end, and every answer that came is whole.
#[test]
fn a_drain_ends_though_clients_never_stop_sending() {
    let case = Case::start();
    let server = serving(&case);
    let addr = server.addr();
    let over = Arc::new(AtomicBool::new(false));
    let senders: Vec<_> = (0..8)
        .map(|_| {
            let over = over.clone();
            std::thread::spawn(move || {
                let mut client = Http::connect(addr);
                let mut answers = 0;
                while !over.load(Ordering::Relaxed) {
                    if client.send(&Http::GET.repeat(3)).is_err() {
                        break;
                    }
                    match client.responses(3, SOON) {
                        Ok(_) => answers += 3,
                        Err((some, ending)) => return (answers + some.len(), ending),
                    }
                }
                (answers, Ending::Eof)
            })
        })
        .collect();
    assert!(wait_until(SOON, || server.stats().reads > 100), "vacuity: {:?}", server.stats());
    // `http_ok` reads as busy: it never says that it is idle, so the deadline cuts it.
    let report = server.stop(Duration::from_millis(300)).unwrap();
    assert!(report.took < Duration::from_secs(5), "{report:?}");
    over.store(true, Ordering::Relaxed);
    for sender in senders {
        let (answers, ending) = sender.join().unwrap();
        assert!(answers > 0 && ending.is_closed(), "{answers} answers, {ending:?}");
    }
}

/// Engine bug 14 in the large: what one client left behind is not the next one's. Half of them die in mid-request.
#[test]
fn a_successor_sees_nothing_of_its_predecessor() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    for i in 0..400_u32 {
        let mut dying = Peer::connect(server.addr());
        dying.send(&[0xEE; 3000]).unwrap();
        let next = Unconnected::new(server.addr(), PeerOptions::default());
        dying.reset();
        let mut next = next.connect().unwrap();
        next.send(&i.to_le_bytes()).unwrap();
        assert_eq!(next.read_exactly(4, SOON), Ok(i.to_le_bytes().to_vec()), "round {i}");
        next.half_close().unwrap();
        assert_eq!(next.read_to_end(SOON), (Vec::new(), Ending::Eof), "round {i}");
    }
}
