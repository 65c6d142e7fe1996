//! What is no TLS, or broken TLS: each ends in its own clear error and harms nobody else.

use crate::client::{self, GET, HANG, ask, assert_served};
use crate::servers::{World, answer_requests, ktls_of_run, serve};
use epoxide_tests_e2e::{Case, Ending, Peer, Rng};
use epoxide_tls::{Ktls, TlsError};
use std::io::{ErrorKind, Write};

/// A ClientHello's first record, as BoringSSL sends it.
pub(crate) fn client_hello(world: &World) -> Vec<u8> {
    struct Tape(Vec<u8>);
    impl std::io::Read for Tape {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(ErrorKind::WouldBlock.into())
        }
    }
    impl Write for Tape {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let ssl = boring::ssl::Ssl::new(&client::context(&world.authority, |_| {})).unwrap();
    let mut client = boring::ssl::SslStream::new(ssl, Tape(Vec::new())).unwrap();
    assert!(client.connect().unwrap_err().would_block());
    client.get_ref().0.clone()
}

fn record(kind: u8, version: u16, length: u16, body: &[u8]) -> Vec<u8> {
    let [major, minor] = version.to_be_bytes();
    let [high, low] = length.to_be_bytes();
    [&[kind, major, minor, high, low], body].concat()
}

#[test]
fn first_flights_that_are_no_handshake_end_in_their_own_errors() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    let context = client::context(&world.authority, |_| {});
    let hello = client_hello(&world);
    let mut wrong_length = hello.clone();
    // The handshake message says that it is 16 MiB long.
    wrong_length[6..9].fill(0xff);
    let garbage = Rng::new(7).bytes(8192);
    let flood = |one: Vec<u8>| one.repeat(100);
    let cases: [(&str, Vec<u8>, &str); 12] = [
        ("an HTTP request", GET.into(), "HTTP_REQUEST"),
        ("an HTTP proxy request", b"CONNECT a:1 HTTP/1.1\r\n\r\n".to_vec(), "HTTPS_PROXY_REQUEST"),
        ("garbage", garbage, "WRONG_VERSION_NUMBER"),
        ("a record of version 9.9", record(22, 0x0909, 5, b"xxxxx"), "WRONG_VERSION_NUMBER"),
        ("an oversize record", record(22, 0x0301, 0xffff, &[0; 4096]), "ENCRYPTED_LENGTH_TOO_LONG"),
        ("application data first", record(23, 0x0303, 5, b"xxxxx"), "UNEXPECTED_RECORD"),
        ("an unknown record type", record(99, 0x0303, 5, b"xxxxx"), "UNEXPECTED_RECORD"),
        ("a fatal alert", record(21, 0x0303, 2, &[2, 40]), "SSLV3_ALERT_HANDSHAKE_FAILURE"),
        ("a flood of warnings", flood(record(21, 0x0303, 2, &[1, 90])), "TOO_MANY_WARNING_ALERTS"),
        ("a flood of empty records", flood(record(22, 0x0303, 0, &[])), "TOO_MANY_EMPTY_FRAGMENTS"),
        ("a hello of 16 MiB", wrong_length, "EXCESSIVE_MESSAGE_SIZE"),
        ("a ServerHello", record(22, 0x0303, 6, &[2, 0, 0, 2, 3, 3]), "UNEXPECTED_MESSAGE"),
    ];
    for (what, bytes, reason) in cases {
        let mut peer = Peer::connect(server.addr());
        // The server may have ended it in the middle: that is what is tested.
        let _ = peer.send(&bytes);
        let (_, ending) = peer.read_to_end(HANG);
        assert!(ending.is_closed(), "{what}: {ending:?}");
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(matches!(TlsError::of(&error), Some(TlsError::Handshake { .. })), "{what}: {error}");
        assert!(error.to_string().contains(reason), "{what}: {error}");
        assert_served(server.addr(), &context);
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
    // The hello itself, cut at every byte, and then the FIN: nobody waits for the rest.
    for cut in (0..hello.len()).step_by(7).chain([hello.len() - 1]) {
        let mut peer = Peer::connect(server.addr());
        peer.send(&hello[..cut]).unwrap();
        peer.half_close().unwrap();
        assert!(peer.ending(HANG).is_closed());
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert_eq!(TlsError::of(&error), Some(&TlsError::HandshakeClosed), "cut at {cut}: {error}");
    }
    // Control: the whole of it is answered.
    let mut peer = Peer::connect(server.addr());
    peer.send(&hello).unwrap();
    assert_eq!(peer.read_exactly(1, HANG).unwrap(), [22]);
    drop(peer);
    ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert_served(server.addr(), &context);
}

#[test]
fn two_refusals_in_one_turn_each_report_their_own_reason() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    for _ in 0..20 {
        let held = epoxide_tests_e2e::hold_reactor(&server.reactor());
        let mut first = Peer::connect(server.addr());
        let mut second = Peer::connect(server.addr());
        first.send(GET.as_bytes()).unwrap();
        second.send(&record(23, 0x0303, 5, b"xxxxx")).unwrap();
        held.release();
        let mut errors: Vec<_> = (0..2).map(|_| ends.recv_timeout(HANG).unwrap().unwrap_err().to_string()).collect();
        errors.sort();
        assert_eq!(errors, ["TLS handshake failed: HTTP_REQUEST", "TLS handshake failed: UNEXPECTED_RECORD"]);
    }
}

#[test]
fn garbage_after_the_handshake_is_a_fault_and_not_an_end() {
    let case = Case::start();
    let world = World::new();
    // A kernel that decrypts has words of its own and sends no alert: see `ktls`.
    let ktls = if ktls_of_run() == Ktls::TxRx { Ktls::Tx } else { ktls_of_run() };
    let (server, ends) = serve(&case, &world.options().ktls(ktls).build().unwrap(), answer_requests);
    let context = client::context(&world.authority, |_| {});
    for (what, bytes, reason) in [
        ("garbage", b"this is no record at all".to_vec(), "WRONG_VERSION_NUMBER"),
        ("an unauthentic record", record(23, 0x0303, 40, &[7; 40]), "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"),
        ("an oversize record", record(23, 0x0303, 0x4800, &[7; 300]), "ENCRYPTED_LENGTH_TOO_LONG"),
        ("a clear alert", record(21, 0x0303, 2, &[1, 0]), "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"),
        ("a clear handshake", record(22, 0x0303, 4, &[0, 0, 0, 0]), "DECRYPTION_FAILED_OR_BAD_RECORD_MAC"),
    ] {
        let mut client = client::connect(server.addr(), &context);
        ask(&mut client, GET).unwrap();
        client.get_mut().write_all(&bytes).unwrap();
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{what}: {error}");
        assert!(error.to_string().starts_with("TLS decrypt failed"), "{what}: {error}");
        assert!(error.to_string().contains(reason), "{what}: {error}");
        // The alert went out before the end: the client reads it, and it is no clean end.
        let alert = std::io::Read::read(&mut client, &mut [0; 16]).unwrap_err();
        assert!(alert.to_string().contains("ALERT"), "{what}: {alert}");
        assert_served(server.addr(), &context);
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
}

#[test]
fn a_fault_is_told_again_and_again_and_what_came_before_it_is_delivered() {
    let case = Case::start();
    let world = World::new();
    let (tell, told) = std::sync::mpsc::channel();
    let held = epoxide_tests_e2e::Gate::new();
    let gate = held.clone();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        let (tell, gate) = (tell.clone(), gate.clone());
        async move {
            gate.wait().await;
            let good = conn.read().await?.map(|data| data.to_vec());
            let first = conn.read().await.map(drop).unwrap_err().to_string();
            let second = conn.read().await.map(drop).unwrap_err().to_string();
            conn.stage(b"more")?;
            let written = conn.flush().await.unwrap_err().to_string();
            tell.send((good, first, second, written)).unwrap();
            Ok(())
        }
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    client.write_all(b"good").unwrap();
    client.get_mut().write_all(b"bad bytes").unwrap();
    held.open();
    let (good, first, second, written) = told.recv_timeout(HANG).unwrap();
    assert_eq!(good.as_deref(), Some(&b"good"[..]));
    assert!(first.contains("TLS decrypt failed"), "{first}");
    assert_eq!((&second, &written), (&first, &first));
    ends.recv_timeout(HANG).unwrap().unwrap();
    assert_eq!(Peer::connect(server.addr()).read(&mut [0], std::time::Duration::from_millis(1)), Err(Ending::Timeout));
}
