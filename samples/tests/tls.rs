//! The TLS samples as programs: what their start lines suggest works as it stands.

#[allow(dead_code, reason = "other samples need more of it")]
mod common;
mod secure;

use common::Sample;
use epoxide_tests_e2e::Http;
use secure::{start, try_it};
use std::process::Command;

#[test]
fn the_servers_answer() {
    for program in [
        env!("CARGO_BIN_EXE_tls"),
        env!("CARGO_BIN_EXE_tls_pipes"),
        env!("CARGO_BIN_EXE_ktls"),
        env!("CARGO_BIN_EXE_ktls_tx"),
        env!("CARGO_BIN_EXE_ktls_pipes"),
    ] {
        let sample = start(program, &[]);
        for version in [&["--tls-max", "1.2"][..], &["--tlsv1.3"], &["--http1.1"]] {
            assert_eq!(try_it(&sample, version), ("ok".into(), "200".into()), "{program}");
        }
        // A cleartext request harms nobody.
        let mut clear = Http::connect(sample.addr);
        let _ = clear.get();
        assert_eq!(try_it(&sample, &[]).0, "ok");
        assert!(sample.stop().contains(" 0 connections cut"));
    }
}

#[test]
fn names_decide_and_certificates_open() {
    let sample = start(env!("CARGO_BIN_EXE_sni"), &[]);
    assert_eq!(try_it(&sample, &[]).0, "you asked for a.localhost\n");
    sample.stop();
    for program in [env!("CARGO_BIN_EXE_mtls"), env!("CARGO_BIN_EXE_ktls_mtls")] {
        let sample = start(program, &[]);
        assert_eq!(try_it(&sample, &[]), ("hello alice\n".into(), "200".into()));
        sample.stop();
        let sample = start(program, &["--require"]);
        assert_eq!(try_it(&sample, &[]).0, "hello alice\n");
        sample.stop();
    }
}

#[test]
fn the_terminator_relays() {
    let behind = Sample::start(env!("CARGO_BIN_EXE_raw"), &["--body", "3000"]);
    let sample = start(env!("CARGO_BIN_EXE_tls_proxy"), &["--to", &behind.addr.to_string()]);
    let (body, status) = try_it(&sample, &[]);
    assert_eq!((body.len(), &*status), (2999 + 1, "200"));
    sample.stop();
    behind.stop();
}

#[test]
fn missing_certificates_are_named() {
    let output = Command::new(env!("CARGO_BIN_EXE_tls")).args(["--certs", "/nowhere"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && text.contains("/nowhere/localhost.pem") && text.contains("ci/certs"), "{text}");
}
