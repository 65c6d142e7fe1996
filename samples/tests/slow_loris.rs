//! Clients that send half a head and stall, beside one that is served throughout: the head's deadline ends them, and
//! nothing else suffers. `EPOXIDE_LORIS` sets how many there are; 2000 when unset. What the healthy client loses is measured by
//! `ci/bench/run B15`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use epoxide::{ListenAddr, ListenOptions};
use epoxide_samples::http;
use epoxide_tests_e2e::{Case, Ending, Http, Peer, Server, loopback, wait_until};

const SOON: Duration = Duration::from_secs(20);
/// The samples give a head 30 s; a test has less time.
const DEADLINE: Duration = Duration::from_secs(3);

fn fleet() -> usize {
    std::env::var("EPOXIDE_LORIS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000)
}

fn server(case: &Case) -> Server {
    let answer: &'static [u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    Server::start(case, |b| {
        let options = ListenOptions { backlog: 4096, ..ListenOptions::default() };
        b.listen(ListenAddr::new(loopback()).options(options), move |conn| http::answer_all(conn, answer, DEADLINE));
    })
}

#[test]
fn a_fleet_that_stalls_in_its_heads_is_gone_by_the_deadline() {
    let case = Case::start();
    let server = server(&case);
    let addr = server.addr();
    let stop = Arc::new(AtomicBool::new(false));
    let healthy = std::thread::spawn({
        let (stop, mut client) = (Arc::clone(&stop), Http::connect(addr));
        move || {
            let (mut served, mut slowest) = (0, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                assert_eq!(client.get().map(|r| r.status), Ok(200), "after {served} answers");
                (served, slowest) = (served + 1, slowest.max(begun.elapsed()));
            }
            (served, slowest)
        }
    });
    let begun = Instant::now();
    let mut fleet: Vec<Peer> = (0..fleet())
        .map(|i| {
            let mut peer = Peer::connect(addr);
            // Some have an answer behind them: their second head is the one that stalls.
            let start: &[u8] = if i % 3 == 0 { b"GET / HTTP/1.1\r\n\r\nGET / HT" } else { b"GET / HTTP/1.1\r\nHost: " };
            peer.send(start).unwrap();
            peer
        })
        .collect();
    let all = fleet.len() as u64 + 1;
    assert!(wait_until(SOON, || server.stats().accepted == all), "vacuity: they are not all in");
    let all_in = Instant::now();
    // Dripping does not help: a deadline is not moved by bytes.
    for peer in fleet.iter_mut().take(20) {
        let _ = peer.send(b"x");
    }
    for (i, peer) in fleet.iter_mut().enumerate() {
        let (answer, ending) = peer.read_to_end(SOON);
        assert_eq!(answer.is_empty(), i % 3 != 0, "stalled client {i} got {} bytes", answer.len());
        assert_eq!(ending, Ending::Eof, "stalled client {i}");
    }
    assert!(begun.elapsed() >= DEADLINE, "cut before the deadline");
    // Generous: what counts is that each went by its own deadline, not one after the other.
    assert!(all_in.elapsed() < DEADLINE + SOON, "the last was gone {:?} after it came", all_in.elapsed());
    drop(fleet);
    assert!(wait_until(SOON, || server.stats().open == 1), "{} are left", server.stats().open);
    stop.store(true, Ordering::Relaxed);
    let (served, slowest) = healthy.join().expect("the healthy client was served throughout");
    println!("{served} answers to the healthy client, the slowest took {slowest:?}");
    assert!(served > 100, "vacuity: {served} answers");
    assert_eq!(server.stats().timeouts, all - 1);
}

/// The control: a head that comes in two parts in time is answered, and its deadline goes with it.
#[test]
fn a_head_that_completes_in_time_is_not_cut() {
    let case = Case::start();
    let server = server(&case);
    let mut client = Http::connect(server.addr());
    client.peer().drip(Http::GET, 8, Duration::from_millis(20)).unwrap();
    assert_eq!(client.response(SOON).map(|r| r.status), Ok(200));
    // sleep: the deadline would have passed.
    std::thread::sleep(DEADLINE + Duration::from_secs(1));
    assert_eq!(client.get().map(|r| r.status), Ok(200), "a deadline outlived its head");
    // Pipelined, cut inside the second head, then completed.
    let two = [Http::GET, Http::GET].concat();
    client.send(&two[..two.len() - 5]).unwrap();
    assert_eq!(client.response(SOON).map(|r| r.status), Ok(200));
    client.send(&two[two.len() - 5..]).unwrap();
    assert_eq!(client.response(SOON).map(|r| r.status), Ok(200));
    assert_eq!(server.stats().timeouts, 0);
}
