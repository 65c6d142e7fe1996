//! Hostile peers that take or give little: slow heads, one-byte windows, one-byte segments, urgent data without end.
//! No fault seam here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{
    Case, Ending, Http, Peer, PeerOptions, Server, echo, http_ok, http_reply, loopback, pattern, read_to_end,
    serve_requests, wait_until,
};

const SOON: Duration = Duration::from_secs(20);

/// A fleet of slow heads under a deadline: all are cut, by it and not by the read clock that every byte restarts, and
/// well-behaved clients are answered meanwhile.
#[test]
fn a_slow_loris_fleet_is_cut_by_the_deadline() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { read_timeout: Duration::from_secs(30), ..ReactorConfig::default() });
        b.listen(loopback(), |connection: Connection| async move {
            connection.set_deadline(Some(std::time::Instant::now() + Duration::from_millis(600)), "head");
            serve_requests(connection, 64 * 1024, |_| http_reply(200, b"ok")).await
        });
    });
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let fleet = scope.spawn(|| {
            let mut fleet: Vec<Peer> = (0..200).map(|_| Peer::connect(server.addr())).collect();
            let mut at = 0;
            while !over.load(Ordering::Relaxed) {
                for peer in &mut fleet {
                    let _ = peer.send(&Http::GET[at % 20..=at % 20]);
                }
                at += 1;
                // sleep: the trickle is the stimulus.
                std::thread::sleep(Duration::from_millis(20));
            }
            fleet.iter_mut().map(|peer| peer.ending(SOON)).collect::<Vec<_>>()
        });
        let mut served = 0;
        while server.stats().timeouts < 200 && served < 10_000 {
            assert_eq!(Http::connect(server.addr()).get().map(|r| r.status), Ok(200));
            served += 1;
        }
        over.store(true, Ordering::Relaxed);
        let endings = fleet.join().unwrap();
        assert!(endings.iter().all(|ending| ending.is_closed()), "{endings:?}");
        assert!(served > 5, "vacuity: nobody was served beside the fleet");
        assert_eq!(server.stats().timeouts, 200);
    });
}

/// Clients with the smallest window there is, which read one byte at a time for a while: every byte arrives, in order.
#[test]
fn one_byte_windows_get_every_byte() {
    let case = Case::start();
    let body = pattern(60_000);
    let answer = body.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let answer = answer.clone();
            async move {
                connection.set_send_buffer_size(4096)?;
                connection.send_all(&answer).await?;
                connection.shutdown().await
            }
        });
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut peer = Peer::connect_with(server.addr(), PeerOptions { receive_buffer: Some(1) });
                let mut got = Vec::new();
                for _ in 0..2000 {
                    let mut one = [0];
                    assert_eq!(peer.read(&mut one, SOON), Ok(1));
                    got.push(one[0]);
                }
                let (rest, ending) = peer.read_to_end(SOON);
                got.extend_from_slice(&rest);
                assert!(got == body && ending == Ending::Eof, "{} bytes, {ending:?}", got.len());
            });
        }
    });
    assert!(server.stats().flush_parks > 0, "vacuity: no flush ever waited: {:?}", server.stats());
}

/// Small segments in both directions at once, from many.
#[test]
fn one_byte_segments_come_back_in_order() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen(loopback(), echo);
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut peer = Peer::connect(server.addr());
                let sent = pattern(3000);
                for byte in &sent {
                    peer.send(&[*byte]).unwrap();
                }
                peer.half_close().unwrap();
                let (got, ending) = peer.read_to_end(SOON);
                assert!(got == sent && ending == Ending::Eof, "{} bytes, {ending:?}", got.len());
            });
        }
    });
}

/// Field bug 10: urgent bytes without end are neither data nor a spin, and what is between them arrives.
#[test]
fn an_urgent_flood_costs_no_data_and_no_other_client() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let all = read_to_end(&mut connection).await?;
            connection.send_all(&(all.len() as u64).to_le_bytes()).await?;
            connection.shutdown().await
        });
        b.listen(loopback(), http_ok);
    });
    let mut client = Http::connect(server.addrs()[1]);
    let mut flooding = Peer::connect(server.addrs()[0]);
    let mut sent = 0;
    for i in 0..2000 {
        flooding.send(b"abc").unwrap();
        sent += 3;
        flooding.send_urgent(b'!').unwrap();
        if i % 100 == 0 {
            assert_eq!(client.get().map(|r| r.status), Ok(200), "beside the flood");
        }
    }
    flooding.half_close().unwrap();
    let answer = flooding.read_exactly(8, SOON).expect("the flooded handler ends");
    let mut number = [0; 8];
    number.copy_from_slice(&answer);
    let got = u64::from_le_bytes(number);
    // An urgent byte that the next one overtakes becomes ordinary data (tcp(7)): the rest is exact.
    assert!(got >= sent && got <= sent + 2000, "{got} of {sent}");
    assert!(wait_until(SOON, || server.stats().open == 1), "{:?}", server.stats());
    drop(client);
}

/// Idle CPU after all of it: a trickler that stops leaves a reactor that sleeps.
#[test]
fn a_reactor_sleeps_beside_peers_that_went_silent() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    let mut peers: Vec<Peer> = (0..50).map(|_| Peer::connect_stalling(server.addr())).collect();
    for peer in &mut peers {
        peer.send(b"GET / HT").unwrap();
        peer.send_urgent(b'!').unwrap();
    }
    assert!(wait_until(SOON, || server.stats().accepted == 50));
    let mut cpu = server.reactor_cpu();
    let share = cpu.share_over(Duration::from_secs(1)).unwrap();
    assert!(share < 0.2, "a reactor with nothing to do used {share:.2} of a core");
}
