//! What a hostile HTTP client costs a server at most, in bytes of memory: stated in SECURITY.md, asserted here.
//!
//! The ceilings are generous (the allocator keeps pages of its own) and far below what would be a leak or a bound that does
//! not bind.

mod web;

use epoxide::ReactorConfig;
use epoxide_pipes::HttpOptions;
use epoxide_tests_e2e::{Case, Peer, Server, resident_bytes, wait_until};
use std::sync::atomic::Ordering;
use std::time::Duration;
use web::{Desk, LONG, Place, frame};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// The head of an HTTP/2 request, from the static table (RFC 7541, appendix A).
fn head(method: u8, path: &str) -> Vec<u8> {
    [&[method, 0x86, 0x04, u8::try_from(path.len()).unwrap()][..], path.as_bytes(), b"\x41\x04test"].concat()
}

/// Preface and settings: windows of 2 GiB for what the server sends, so that nothing but its own bounds hold it back.
fn begin() -> Vec<u8> {
    let settings = frame(4, 0, 0, &[0, 4, 0x7f, 0xff, 0xff, 0xff]);
    let window = frame(8, 0, 0, &[0x7f, 0x00, 0x00, 0x00]);
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &window].concat()
}

/// Bytes a client that the process grew by once they `did` what they came for and it stands still, after one that
/// was not counted.
fn cost(server: &Server, count: usize, hostile: impl Fn(&mut Peer), did: impl Fn(usize) -> bool) -> (u64, Vec<Peer>) {
    let mut peers = Vec::new();
    let mut add = |count: usize| {
        for _ in 0..count {
            let mut peer = Peer::connect_stalling(server.addr());
            hostile(&mut peer);
            peers.push(peer);
        }
        assert!(wait_until(LONG, || did(peers.len())), "vacuity: the server did not get so far");
        let mut last = u64::MAX;
        // What it costs has been reached when it stays so.
        assert!(wait_until(LONG, || {
            std::thread::sleep(Duration::from_millis(200)); // sleep: nothing says that the memory no longer grows
            let now = resident_bytes().unwrap();
            now.abs_diff(std::mem::replace(&mut last, now)) < 64 * KIB
        }));
        last
    };
    let before = add(1);
    let grown = add(count).saturating_sub(before);
    (grown / count as u64, peers)
}

/// Asserts that each of `count` clients cost at most `most`. For vacuity `did` says what the service must have seen of so
/// many of them: what the allocator has kept of an earlier case costs nothing here, so memory alone proves nothing.
fn assert_costs(what: &str, count: usize, most: u64, did: impl Fn(&Desk, usize) -> bool, hostile: impl Fn(&mut Peer)) {
    let case = Case::start();
    let desk = Desk::default();
    // The default sizes; without the clocks, which would end the first of them before the last has come.
    let options = HttpOptions::builder().min_send_rate(0).head_timeout(Duration::ZERO);
    let server = desk.start_with(&case, Place::Reactor, options, ReactorConfig::default());
    let (each, peers) = cost(&server, count, hostile, |n| did(&desk, n));
    assert!(each <= most, "{what}: {} KiB, the table says {}", each / KIB, most / KIB);
    assert!(desk.error_kinds().is_empty(), "vacuity: {what}: {desk:?}");
    assert_eq!(server.stats().open, count as u64 + 1, "vacuity: {what}");
    desk.go.open();
    peers.into_iter().for_each(Peer::reset);
    assert!(wait_until(LONG, || server.stats().open == 0), "{what}: {:?}", server.stats());
}

fn asked(desk: &Desk, at_least: usize) -> bool {
    desk.asked.load(Ordering::Acquire) >= at_least
}

fn made(desk: &Desk, at_least: u64) -> bool {
    desk.made.load(Ordering::Acquire) as u64 >= at_least
}

#[test]
fn http1() {
    // What the scripts send is made beforehand: it is the same process.
    let half = [&b"GET / HTTP/1.1\r\nx: "[..], &[b'x'; 15_000]].concat();
    let received = |_: &Desk, _| true;
    assert_costs("half a head", 50, 64 * KIB, received, |peer| peer.send(&half).unwrap());
    let buffered = |desk: &Desk, n| made(desk, n as u64 * 64 * KIB);
    assert_costs("a body that is not read", 50, 192 * KIB, buffered, |peer| {
        peer.send(b"GET /big/1000000000 HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    });
    let pipeline = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(400_000);
    let many = |desk: &Desk, n| asked(desk, n * 1000);
    assert_costs("a pipeline whose answers are not read", 20, 256 * KIB, many, |peer| {
        let sent = peer.send_until_blocked(&pipeline, Duration::from_millis(100)).unwrap();
        assert!(sent < pipeline.len(), "vacuity: the server took everything");
    });
    let upload = vec![7; 8 << 20];
    assert_costs("a body that no handler takes", 20, 256 * KIB, asked, |peer| {
        peer.send(b"POST /hold HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000000\r\n\r\n").unwrap();
        let _ = peer.send_until_blocked(&upload, Duration::from_millis(100));
    });
}

#[test]
fn http2() {
    let streams = || (0..128).map(|i| 2 * i + 1);
    let asks: Vec<u8> = streams().flat_map(|stream| frame(1, 5, stream, &head(0x82, "/big/1000000000"))).collect();
    let buffered = |desk: &Desk, n| made(desk, n as u64 * 128 * 64 * KIB);
    assert_costs("bodies that are not read", 3, 128 * 128 * KIB, buffered, |peer| {
        peer.send(&[&begin()[..], &asks].concat()).unwrap();
    });
    // One field of 14 000 bytes (an integer of RFC 7541: 127, then the rest in sevens), which no table keeps.
    let field = [&[0, 1, b'x', 0x7f, 0xb1, 0x6c][..], &[b'v'; 14_000]].concat();
    let heads = streams().flat_map(|stream| frame(1, 5, stream, &[head(0x82, "/wait"), field.clone()].concat()));
    let all = [begin(), heads.collect()].concat();
    let every_stream = |desk: &Desk, n| asked(desk, n * 128);
    assert_costs("heads whose handlers wait", 8, 128 * 4 * 16 * KIB, every_stream, |peer| peer.send(&all).unwrap());
    let heads = streams().flat_map(|stream| frame(1, 4, stream, &head(0x83, "/hold")));
    let bodies = streams().flat_map(|stream| frame(0, 0, stream, &[7; 8000]));
    let all: Vec<u8> = heads.chain(bodies).collect();
    assert_costs("bodies that no handler takes", 8, 2 * MIB, every_stream, |peer| {
        peer.send(&begin()).unwrap();
        // The server's window is 1 MiB once it has said so.
        let mut told = Vec::new();
        while !told.windows(4).any(|frame| frame == [0, 4, 8, 0]) {
            told.extend(peer.read_exactly(1, LONG).unwrap());
        }
        peer.send(&all).unwrap();
    });
}
