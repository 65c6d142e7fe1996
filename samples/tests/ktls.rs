//! The samples of kernel TLS as programs, to OpenSSL's client: the right answers, and the kernel's own counters. A kernel
//! without TLS serves them all the same; `ci/ktls` runs these tests where it has it, with `EPOXIDE_REQUIRE_KTLS`.

#[allow(dead_code, reason = "other samples need more of it")]
mod common;
#[allow(dead_code, reason = "other samples need more of it")]
mod secure;

use common::Sample;
use secure::{CERTS, start};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A counter of the kernel's TLS; 0 where it has none.
fn tls_stat(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tls_stat").unwrap_or_default();
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?).unwrap_or(0)
}

fn kernel_has_tls() -> bool {
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    let there = known.split_whitespace().any(|name| name == "tls");
    assert!(there || std::env::var_os("EPOXIDE_REQUIRE_KTLS").is_none(), "no tls ULP among {known:?}");
    there
}

/// OpenSSL's client, which is ended with the test.
struct Client(Child);

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Client {
    fn start(sample: &Sample, arguments: &[&str]) -> Self {
        let addr = sample.addr.to_string();
        let ca = format!("{}/ca.pem", *CERTS);
        let common =
            ["s_client", "-connect", &addr, "-CAfile", &ca, "-verify_return_error", "-servername", "localhost"];
        let child = Command::new("openssl")
            .args(common)
            .arg("-quiet")
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("openssl starts"))
    }

    /// Sends a request, and reads until the answer ends so.
    fn ask(&mut self, end: &str) -> String {
        self.0.stdin.as_mut().unwrap().write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let stdout = self.0.stdout.as_mut().unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(end.as_bytes()) {
            let mut chunk = [0; 4096];
            let n = stdout.read(&mut chunk).unwrap();
            assert!(n > 0, "it ends before {end:?}: {:?}", String::from_utf8_lossy(&answer));
            answer.extend_from_slice(&chunk[..n]);
        }
        String::from_utf8(answer).unwrap()
    }
}

/// What the kernel has counted: sessions that it encrypts, that it decrypts, and records that it could not.
fn counted() -> [u64; 3] {
    ["TlsTxSw", "TlsRxSw", "TlsDecryptError"].map(tls_stat)
}

/// The counters are everybody's.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Asks three times in one session, with further arguments for the client, in both versions.
fn assert_served(program: &str, decrypts: bool, options: &[&str], client: &[&str], status: &str, end: &str) {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let sample = start(program, options);
    for version in ["-tls1_2", "-tls1_3"] {
        let before = counted();
        let mut client = Client::start(&sample, &[&[version], client].concat());
        for _ in 0..3 {
            let answer = client.ask(end);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{program} {version}: {answer}");
        }
        let more = u64::from(kernel_has_tls());
        let expected = [before[0] + more, before[1] + if decrypts { more } else { 0 }, before[2]];
        assert_eq!(counted(), expected, "{program} {version}: (encrypts, decrypts, cannot)");
    }
    // What is no TLS harms nobody.
    let mut clear = TcpStream::connect(sample.addr).unwrap();
    clear.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let _ = clear.read(&mut [0; 16]);
    Client::start(&sample, client).ask(end);
    assert!(sample.stop().contains(" 0 connections cut"), "{program}");
}

#[test]
fn ktls_answers() {
    assert_served(env!("CARGO_BIN_EXE_ktls"), true, &[], &[], "200 OK", "\r\n\r\nok");
}

#[test]
fn ktls_tx_answers_with_a_long_body() {
    assert_served(env!("CARGO_BIN_EXE_ktls_tx"), false, &["--body", "100000"], &[], "200 OK", "xxx\n");
}

#[test]
fn ktls_pipes_answers() {
    assert_served(env!("CARGO_BIN_EXE_ktls_pipes"), true, &[], &[], "200 OK", "\r\n\r\nok");
}

#[test]
fn ktls_mtls_greets_who_shows_a_certificate() {
    let program = env!("CARGO_BIN_EXE_ktls_mtls");
    let (cert, key) = (format!("{}/alice.pem", *CERTS), format!("{}/alice.key", *CERTS));
    let alice = ["-cert", &cert, "-key", &key];
    assert_served(program, true, &[], &alice, "200 OK", "hello alice\n");
    assert_served(program, true, &["--require"], &alice, "200 OK", "hello alice\n");
    assert_served(program, true, &[], &[], "403 Forbidden", "show a certificate\n");
}
