//! Peers that drip: many heads, each in segments of one byte, all held at once. What that costs in buffers.
//!
//! `EPOXIDE_DRIP=full` is the whole size: 1000 connections, 8 KiB each, in buffers of 16 KiB, at most 32 MiB, of the
//! process too. Unset, heads and buffers are a 32nd of it, and so is the bound.

mod common;

use common::{SOON, small};
use epoxide::{Connection, ReactorConfig};
use epoxide_pipes::Duplex;
use epoxide_tests_e2e::{Case, Peer, Server, loopback, wait_until};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const CONNECTIONS: usize = 1000;

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_thousand_dripping_heads_are_held_in_little_memory() {
    let case = Case::start_rounds();
    let full = std::env::var("EPOXIDE_DRIP").is_ok_and(|size| size == "full");
    let shrink = if full { 1 } else { 32 };
    let (head, buffer, bound) = (8192 / shrink, 16_384 / shrink, (32 << 20) / shrink);
    // Both ends are in this process.
    let (_, limit) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).unwrap();
    let connections = CONNECTIONS.min(usize::try_from(limit).unwrap().saturating_sub(200) / 2);
    let [receives, memory] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let server = Server::start(&case, |b| {
        b.config(ReactorConfig { read_timeout: Duration::ZERO, ..small(buffer) });
        let (receives, memory) = (Arc::clone(&receives), Arc::clone(&memory));
        b.listen(loopback(), move |connection: Connection| {
            let (receives, memory) = (Arc::clone(&receives), Arc::clone(&memory));
            async move {
                let (mut input, mut output) = Duplex::new(connection).into_parts();
                loop {
                    let before = input.held_memory();
                    let result = input.read().await?;
                    let (n, found) = (result.buffer.len(), result.buffer.find(b"\r\n\r\n"));
                    let (held, now) = (input.held_len(), input.held_memory());
                    assert!(now <= 2 * held + buffer, "{now} bytes of memory hold {held}");
                    memory.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
                    receives.fetch_add(1, Ordering::Relaxed);
                    if result_is_whole(found, n) {
                        output.stage(b"k")?;
                        output.flush().await?;
                        memory.fetch_sub(now, Ordering::Relaxed);
                        return io::Result::Ok(());
                    }
                    input.advance_to(0, n);
                }
            }
        });
    });
    let outstanding = server.stats().buffers_outstanding;
    let before = resident();
    let mut peers: Vec<Peer> = (0..connections).map(|_| Peer::connect(server.addr())).collect();
    // Many heads at a time, byte by byte: the server receives in between.
    for at in 0..head - 4 {
        for peer in &mut peers {
            peer.send(if at % 64 == 63 { b"\n" } else { b"h" }).unwrap();
        }
    }
    let all = connections * (head - 4);
    let bytes = |text: &str| format!("{text}: {} bytes in {} receives", all, receives.load(Ordering::Relaxed));
    // Everything is held now: by the pipes' own account, by the pool's, and by the kernel's account of the process.
    let held = || memory.load(Ordering::Relaxed);
    assert!(wait_until(SOON, || held() >= all), "{}", bytes("not all is held"));
    let buffers = usize::try_from(server.stats().buffers_outstanding - outstanding).unwrap();
    let grown = resident().saturating_sub(before);
    println!("{}, {} bytes of memory, {buffers} buffers, {grown} bytes resident", bytes("held"), held());
    assert!(receives.load(Ordering::Relaxed) > 2 * connections, "{}", bytes("it did not drip"));
    assert!(held() <= bound && buffers * buffer <= bound, "{} bytes, {buffers} buffers", held());
    // Sockets' own memory is the kernel's; what else a connection costs us is small beside its buffer.
    assert!(!full || grown <= bound, "{grown} bytes resident");
    for peer in &mut peers {
        peer.send(b"\r\n\r\n").unwrap();
        assert_eq!(peer.read_exactly(1, SOON).unwrap(), b"k");
    }
}

/// A head of several buffers is whole when its end is there.
fn result_is_whole(found: Option<usize>, held: usize) -> bool {
    found.is_some_and(|at| at + 4 == held)
}
