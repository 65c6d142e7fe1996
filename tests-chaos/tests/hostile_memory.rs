//! What a hostile client costs at most, in bytes of memory: stated here and asserted. No fault seam here.
//!
//! The ceilings are generous (the allocator keeps pages of its own) and far below what would be a leak or a bound that does
//! not bind. SECURITY.md names the limits behind them.

use std::io;
use std::time::Duration;

use epoxide::{Connection, ReactorConfig, SharedLimits};
use epoxide_tests_e2e::{Case, Http, Peer, Server, http_reply, loopback, resident_bytes, serve_requests, wait_until};

const SOON: Duration = Duration::from_secs(20);

/// Bytes a client that the process grew by, once `count` of them have done what `hostile` does: `settled` says so, given how
/// many there are in all.
fn cost(server: &Server, count: usize, hostile: impl Fn(&mut Peer), settled: impl Fn(u64) -> bool) -> (u64, Vec<Peer>) {
    // A few first: what is allocated once is not their fault.
    let mut peers: Vec<Peer> = Vec::new();
    let add = |peers: &mut Vec<Peer>, count| {
        for _ in 0..count {
            let mut peer = Peer::connect_stalling(server.addr());
            hostile(&mut peer);
            peers.push(peer);
        }
    };
    add(&mut peers, 50);
    let are_there = |n: usize| {
        assert!(wait_until(SOON, || server.stats().accepted as usize == n), "{:?}", server.stats());
        assert!(wait_until(SOON, || settled(n as u64)), "{:?}", server.stats());
    };
    are_there(peers.len());
    let before = resident_bytes().unwrap();
    add(&mut peers, count);
    are_there(peers.len());
    let grown = resident_bytes().unwrap().saturating_sub(before);
    (grown / count as u64, peers)
}

/// 4 KiB: a body, a slot, a task; no buffer.
#[test]
fn a_silent_client_costs_at_most_4_kib_and_no_buffer() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |c| serve_requests(c, 64 * 1024, |_| http_reply(200, b"ok")));
    });
    let (each, peers) = cost(&server, 1500, |_| {}, |_| true);
    assert!(each <= 4096, "a silent client costs {each} bytes");
    assert_eq!(server.stats().buffers_outstanding, 0, "an idle connection holds no buffer");
    drop(peers);
}

/// 8 KiB: the same and what its handler keeps of the head; the receive buffer went back.
#[test]
fn a_client_with_half_a_head_costs_at_most_8_kib_and_no_buffer() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |c| serve_requests(c, 64 * 1024, |_| http_reply(200, b"ok")));
    });
    let half = |peer: &mut Peer| peer.send(&Http::GET[..20]).unwrap();
    let (each, peers) = cost(&server, 1500, half, |n| server.stats().reads >= n);
    assert!(each <= 8192, "a client with half a head costs {each} bytes");
    assert_eq!(server.stats().buffers_outstanding, 0);
    drop(peers);
}

/// `max_staged` and 16 KiB: a client that asks and never reads, of a handler that stages as much as it may.
#[test]
fn a_client_that_never_reads_costs_at_most_max_staged() {
    const STAGED: usize = 128 * 1024;
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { max_staged: STAGED, ..ReactorConfig::default() });
        b.listen(loopback(), |mut connection: Connection| async move {
            connection.set_send_buffer_size(4096)?;
            while connection.stage(&[7; 1024]).is_ok() {}
            // For ever, or until the peer has gone.
            connection.flush().await
        });
    });
    let (each, peers) = cost(&server, 200, |_| {}, |n| server.stats().flush_parks >= n);
    assert!(each <= STAGED as u64 + 16_384, "a client that never reads costs {each} bytes");
    assert!(each > STAGED as u64 / 2, "vacuity: little was staged: {each} bytes a client");
    drop(peers);
}

/// `SharedLimits::bytes` and 16 KiB: a member of a broadcast that stopped reading.
#[test]
fn a_subscriber_that_never_reads_costs_at_most_its_shared_limit() {
    const BYTES: usize = 64 * 1024;
    let limits = SharedLimits { bytes: BYTES, ..SharedLimits::default() };
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |connection: Connection| async move {
            connection.set_send_buffer_size(4096)?;
            let (mut reader, writer) = connection.into_shared(limits);
            // Frames of its own: nothing is shared with other members.
            while !matches!(writer.send(vec![7; 2000]), epoxide::SendOutcome::Refused(..)) {}
            while reader.read().await?.is_some() {}
            io::Result::Ok(())
        });
    });
    let (each, peers) = cost(&server, 300, |_| {}, |n| server.stats().frames_refused >= n);
    assert!(each <= BYTES as u64 + 16_384, "a subscriber that never reads costs {each} bytes");
    assert!(each > BYTES as u64 / 2, "vacuity: little was queued: {each} bytes a client");
    drop(peers);
}

/// 512 bytes, which is noise: what a client that is gone still costs.
#[test]
fn a_client_that_has_gone_costs_nothing() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |c| serve_requests(c, 64 * 1024, |_| http_reply(200, b"ok")));
    });
    let mut rounds = (0..6).map(|_| {
        let peers: Vec<Peer> = (0..500)
            .map(|_| {
                let mut peer = Peer::connect(server.addr());
                peer.send(&Http::GET[..20]).unwrap();
                peer
            })
            .collect();
        peers.into_iter().for_each(Peer::reset);
        assert!(wait_until(SOON, || server.stats().open == 0), "{:?}", server.stats());
        resident_bytes().unwrap()
    });
    let first = rounds.nth(1).unwrap();
    let last = rounds.next_back().unwrap();
    let each = last.saturating_sub(first) / 2000;
    assert!(each <= 512, "a client that has gone costs {each} bytes");
}

/// One pooled buffer each while a handler holds what it received, and none afterwards.
#[test]
fn a_held_read_costs_one_buffer_and_gives_it_back() {
    let case = Case::start();
    let gate = epoxide_tests_e2e::Gate::new();
    let opened = gate.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let gate = gate.clone();
            async move {
                let held = connection.read().await?;
                gate.wait().await;
                drop(held);
                while connection.read().await?.is_some() {}
                io::Result::Ok(())
            }
        });
    });
    let size = ReactorConfig::default().recv_buffer_size as u64;
    let one = |peer: &mut Peer| peer.send(b"x").unwrap();
    let (each, peers) = cost(&server, 300, one, |n| server.stats().buffers_outstanding == n);
    assert!(each <= size + 8192, "a held read costs {each} bytes");
    opened.open();
    assert!(wait_until(SOON, || server.stats().buffers_outstanding == 0), "{:?}", server.stats());
    drop(peers);
}
