//! Handshakes that break one rule each, made with tlslite-ng (`tlslite_cases.py`): every one ends in its own error at the
//! server and in an alert at the client, and the next client is served.
//!
//! Skipped, loudly, where Python has no tlslite (`ci/setup` puts it into target/tlslite); with `EPOXIDE_REQUIRE_TLSLITE` set
//! it fails instead.

use crate::client::{self, HANG, assert_served};
use crate::interop::{Program, has};
use crate::servers::{World, answer_requests, serve};
use epoxide_tests_e2e::Case;
use epoxide_tls::TlsError;
use std::path::Path;
use std::process::Command;

/// What the server says of each, and the alert that its client gets; controls are served.
const CASES: [(&str, &str, &str); 33] = [
    ("two extensions of a kind", "CLIENTHELLO_PARSE_FAILED", "decode_error"),
    ("an extension that is cut", "ERROR_PARSING_EXTENSION", "decode_error"),
    ("no cipher suite in common", "NO_SHARED_CIPHER", "handshake_failure"),
    ("no cipher suite at all", "CLIENTHELLO_PARSE_FAILED", "decode_error"),
    ("no group in common", "NO_SHARED_GROUP", "handshake_failure"),
    ("no key share", "MISSING_KEY_SHARE", "missing_extension"),
    ("no compression method", "CLIENTHELLO_PARSE_FAILED", "decode_error"),
    ("a compression method that is none", "INVALID_COMPRESSION_LIST", "illegal_parameter"),
    ("a session id of 33 bytes", "CLIENTHELLO_PARSE_FAILED", "decode_error"),
    ("a byte behind the hello", "CLIENTHELLO_PARSE_FAILED", "decode_error"),
    ("TLS 1.1", "UNSUPPORTED_PROTOCOL", "protocol_version"),
    ("a fallback from a version that is there", "INAPPROPRIATE_FALLBACK", "inappropriate_fallback"),
    ("a key share that is too short", "BAD_ECPOINT", "illegal_parameter"),
    ("a key share of a small order", "BAD_ECPOINT", "illegal_parameter"),
    ("a public key of a small order", "BAD_ECPOINT", "illegal_parameter"),
    ("an empty public key", "BAD_ECPOINT", "illegal_parameter"),
    ("a second hello", "UNEXPECTED_MESSAGE", "unexpected_message"),
    ("data before the key exchange", "UNEXPECTED_RECORD", "unexpected_message"),
    ("new keys before the key exchange", "UNEXPECTED_RECORD", "unexpected_message"),
    ("no ChangeCipherSpec", "UNEXPECTED_RECORD", "unexpected_message"),
    ("a ChangeCipherSpec of two bytes", "BAD_CHANGE_CIPHER_SPEC", "illegal_parameter"),
    ("a ChangeCipherSpec that says 2", "BAD_PACKET_LENGTH", "bad_record_mac"),
    ("an empty message of an unknown kind", "UNEXPECTED_MESSAGE", "unexpected_message"),
    ("a certificate that nobody asked for", "UNEXPECTED_MESSAGE", "unexpected_message"),
    ("data in place of the Finished", "UNEXPECTED_RECORD", "unexpected_message"),
    ("a wrong Finished, 1.2", "DIGEST_CHECK_FAILED", "decrypt_error"),
    ("a wrong Finished, 1.3", "DIGEST_CHECK_FAILED", "decrypt_error"),
    ("a Finished that is too long", "DIGEST_CHECK_FAILED", "decrypt_error"),
    ("control, 1.2", "", "served"),
    ("control, 1.3", "", "served"),
    ("control: a hello in pieces", "", "served"),
    ("control: a hello of the future", "", "served"),
    ("control: an unknown extension", "", "served"),
];

fn python_path() -> String {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tlslite");
    let more = std::env::var("PYTHONPATH").unwrap_or_default();
    format!("{}:{more}", ours.display())
}

#[test]
fn broken_handshakes_end_in_their_own_errors() {
    let case = Case::start();
    let path = python_path();
    if !has("python3", "--version") {
        return;
    }
    let there = Command::new("python3").env("PYTHONPATH", &path).args(["-c", "import tlslite"]).output().unwrap();
    if !there.status.success() {
        assert!(std::env::var_os("EPOXIDE_REQUIRE_TLSLITE").is_none(), "tlslite-ng is missing: run ci/setup");
        eprintln!("skipped: tlslite-ng is missing");
        return;
    }
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    let context = client::context(&world.authority, |_| {});
    let port = server.addr().port().to_string();
    let path = format!("PYTHONPATH={path}");
    let mut program = Program::start("env", &[&path, "python3", "-c", include_str!("tlslite_cases.py"), &port]);
    // Cryptography in Python takes its time: each case has its own.
    for (name, ..) in CASES {
        program.expect(&format!("{name}\t"));
    }
    let told = program.end();
    let lines: Vec<_> = told.lines().map(|line| line.split_once('\t').unwrap_or((line, ""))).collect();
    let expected: Vec<_> = CASES.iter().map(|(name, _, alert)| (*name, *alert)).collect();
    assert_eq!(lines, expected);
    for (name, reason, _) in CASES {
        match (ends.recv_timeout(HANG).unwrap(), reason) {
            // Some controls end without a close_notify, between two requests.
            (_, "") => {}
            (Ok(()), _) => panic!("{name}: served"),
            (Err(error), _) => {
                assert!(matches!(TlsError::of(&error), Some(TlsError::Handshake { .. })), "{name}: {error}");
                assert!(error.to_string().contains(reason), "{name}: {error}");
            }
        }
    }
    assert_served(server.addr(), &context);
}
