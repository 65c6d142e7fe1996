//! Kernel TLS. On a kernel without it every session falls back, and behaves in the same way; `ci/ktls` runs the tests again
//! in a virtual machine whose kernel has it.
//!
//! What only the kernel can show is skipped, loudly, where it has no TLS; with `EPOXIDE_REQUIRE_KTLS` set it fails instead.

mod endings;
mod files;
mod held;
mod keys;
mod maker;
mod messages;
mod openssl;
mod records;
mod rows;

use crate::client::{self, Client, GET, HANG, ask, connect};
use crate::interop::Program;
use crate::ours::ask_once;
use crate::servers::{World, answer_requests, echo, serve};
use boring::ssl::ShutdownState;
use epoxide::Connection;
use epoxide_tests_e2e::{Case, moved_to_workers};
use epoxide_tls::{Ktls, TlsConfig, TlsVersion};
use std::io::{Read, Write};
use std::sync::mpsc::channel;

/// Has the kernel TLS? Decides what a test expects.
fn kernel_has_tls() -> bool {
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    let there = known.split_whitespace().any(|name| name == "tls");
    assert!(there || std::env::var_os("EPOXIDE_REQUIRE_KTLS").is_none(), "no tls ULP among {known:?}");
    there
}

/// Does the kernel take new keys in the middle of a session? Linux 6.14 and later.
fn kernel_renews() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-', '+', '\n']).map_while(|number| number.parse::<u32>().ok());
    kernel_has_tls() && (numbers.next(), numbers.next()) >= (Some(6), Some(14))
}

/// Says that a test of new keys shows nothing here: the kernel does TLS and keeps the keys it has.
fn skipped_as_keys_stay() -> bool {
    let skipped = kernel_has_tls() && !kernel_renews();
    if skipped {
        eprintln!("skipped: this kernel keeps its keys");
    }
    skipped
}

/// Says that a test shows nothing here.
fn skipped() -> bool {
    let skipped = !kernel_has_tls();
    if skipped {
        eprintln!("skipped: no tls ULP");
    }
    skipped
}

/// A counter of the kernel's.
fn tls_stat(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tls_stat").unwrap_or_default();
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?).unwrap_or(0)
}

/// As many sessions as `n` asked for the kernel's keys: all got them, or all fell back.
#[track_caller]
fn assert_asked(config: &TlsConfig, n: u64) {
    let expected = if kernel_has_tls() { (n, 0) } else { (0, n) };
    assert_eq!((config.ktls_sessions(), config.ktls_fallbacks()), expected, "(by the kernel, by this process)");
}

/// What the kernel may be asked for.
const BOTH: [Ktls; 2] = [Ktls::Tx, Ktls::TxRx];

fn context(world: &World) -> boring::ssl::SslContext {
    client::context(&world.authority, |_| {})
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8).collect()
}

/// Sends and receives at once, in pieces that fit neither records nor blocks.
fn echo_through(client: &mut Client, all: &[u8]) {
    for piece in all.chunks(50_021) {
        client.write_all(piece).unwrap();
        let mut back = vec![0; piece.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == piece, "the echo differs");
    }
}

const SUITES: [(TlsVersion, &str); 6] = [
    (TlsVersion::V1_3, "TLS_AES_128_GCM_SHA256"),
    (TlsVersion::V1_3, "TLS_AES_256_GCM_SHA384"),
    (TlsVersion::V1_3, "TLS_CHACHA20_POLY1305_SHA256"),
    (TlsVersion::V1_2, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    (TlsVersion::V1_2, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    (TlsVersion::V1_2, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
];

#[test]
fn every_suite_of_both_versions_on_reactor_and_worker() {
    let case = Case::start();
    let world = World::new();
    let (before, faults) = ((tls_stat("TlsTxSw"), tls_stat("TlsRxSw")), tls_stat("TlsDecryptError"));
    for (ktls, on_workers) in [(Ktls::Tx, false), (Ktls::Tx, true), (Ktls::TxRx, false), (Ktls::TxRx, true)] {
        for (version, suite) in SUITES {
            let config = world.options().suites([suite]).ktls(ktls).build().unwrap();
            let (tell, facts) = channel();
            let accept = config.clone();
            let handler = move |conn: Connection| {
                let (accept, tell) = (accept.clone(), tell.clone());
                async move {
                    let conn = accept.accept(conn).await?;
                    tell.send(conn.facts().clone()).unwrap();
                    echo(conn).await
                }
            };
            let server = if on_workers {
                moved_to_workers(&case, handler)
            } else {
                epoxide_tests_e2e::Server::start(&case, |builder| {
                    builder.listen(epoxide_tests_e2e::loopback(), handler);
                })
            };
            let mut client = connect(server.addr(), &context(&world));
            echo_through(&mut client, &pattern(200_000));
            let facts = facts.recv_timeout(HANG).unwrap();
            assert_eq!((facts.version(), facts.suite(), facts.kernel_tx()), (version, suite, kernel_has_tls()));
            assert_eq!(facts.kernel_rx(), kernel_has_tls() && ktls == Ktls::TxRx);
            assert_asked(&config, 1);
            client.shutdown().unwrap();
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the server's end");
            assert!(client.get_shutdown().contains(ShutdownState::RECEIVED), "a close_notify: {suite}");
        }
    }
    if kernel_has_tls() {
        assert_eq!((tls_stat("TlsTxSw"), tls_stat("TlsRxSw")), (before.0 + 24, before.1 + 12));
        assert_eq!(tls_stat("TlsDecryptError"), faults);
    }
}

/// Tickets consume numbers of records: they stay on.
#[test]
fn sessions_are_resumed_at_both_ends() {
    let case = Case::start();
    let world = World::new();
    for (version, ktls) in
        [TlsVersion::V1_3, TlsVersion::V1_2].into_iter().flat_map(|version| BOTH.map(|ktls| (version, ktls)))
    {
        let config = world.options().max_version(version).ktls(ktls).build().unwrap();
        let (server, _ends) = serve(&case, &config, answer_requests);
        let client = world.client().ktls(ktls).build().unwrap();
        let asked: Vec<_> = (0..3).map(|_| ask_once(&client, server.addr(), "localhost").unwrap()).collect();
        let resumed: Vec<_> = asked.iter().map(|facts| facts.resumed()).collect();
        assert_eq!(resumed, [false, true, true], "{version}");
        assert!(asked.iter().all(|facts| facts.kernel_tx() == kernel_has_tls()));
        assert!(asked.iter().all(|facts| facts.kernel_rx() == (kernel_has_tls() && ktls == Ktls::TxRx)));
        assert_asked(&config, 3);
        assert_asked(&client, 3);
    }
    // Without tickets the first number is another one.
    let config = world.options().resumption(false).ktls(Ktls::Tx).build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let text = ask(&mut connect(server.addr(), &context(&world)), GET).unwrap();
    assert!(text.ends_with("tls-ok"));
    assert_asked(&config, 1);
}

/// The request comes in one piece with the end of the handshake, or a byte at a time.
#[test]
fn a_request_that_comes_with_the_handshake_is_served_once() {
    let case = Case::start();
    let world = World::new();
    for (ktls, byte_by_byte) in BOTH.into_iter().flat_map(|ktls| [(ktls, false), (ktls, true)]) {
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, ends) = serve(&case, &config, answer_requests);
        let mut client = connect(server.addr(), &context(&world));
        if byte_by_byte {
            for byte in GET.as_bytes() {
                client.write_all(&[*byte]).unwrap();
            }
        } else {
            client.write_all(GET.repeat(3).as_bytes()).unwrap();
        }
        client.shutdown().unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text.matches("tls-ok").count(), if byte_by_byte { 1 } else { 3 }, "{text}");
        ends.recv_timeout(HANG).unwrap().unwrap();
        assert_asked(&config, 1);
    }
}

/// Reads to the end, which must be a close_notify.
fn read_out(client: &mut Client) -> Vec<u8> {
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert!(client.get_shutdown().contains(ShutdownState::RECEIVED), "cut after {} bytes", all.len());
    all
}

/// It is said once, however many sessions fall back. In a process of its own, whose standard error can be read.
#[test]
fn a_fallback_is_said_once() {
    let case = Case::start();
    if kernel_has_tls() {
        eprintln!("skipped: this kernel has TLS, so nothing falls back");
        return;
    }
    let me = std::env::current_exe().unwrap();
    let arguments = ["--exact", "ktls::sessions_are_resumed_at_both_ends", "--nocapture"];
    let text = Program::start(me.to_str().unwrap(), &arguments).end();
    assert!(text.contains("1 passed"), "{text}");
    // Nine configurations, 25 sessions.
    assert_eq!(text.matches("epoxide-tls: kernel TLS is not used at all: ").count(), 9, "{text}");
    assert!(text.contains("modprobe tls"), "{text}");
    drop(case);
}

/// Control for all of the above, where the kernel takes part: it does.
#[test]
fn the_kernel_counts_what_it_encrypts() {
    let case = Case::start();
    if skipped() {
        return;
    }
    let world = World::new();
    for (ktls, more) in [(Ktls::Off, (0, 0)), (Ktls::Tx, (1, 0)), (Ktls::TxRx, (1, 1))] {
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, _ends) = serve(&case, &config, answer_requests);
        let before = (tls_stat("TlsTxSw"), tls_stat("TlsRxSw"));
        ask(&mut connect(server.addr(), &context(&world)), GET).unwrap();
        let after = (tls_stat("TlsTxSw"), tls_stat("TlsRxSw"));
        assert_eq!(after, (before.0 + more.0, before.1 + more.1), "{ktls:?}");
    }
}
