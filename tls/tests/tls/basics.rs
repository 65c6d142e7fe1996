//! Requests, records and fragments: what a client sends is what a handler reads, however it is cut.

use crate::client::{self, GET, HANG, answer, ask, assert_served, connect};
use crate::servers::{World, answer_requests, echo, serve};
use boring::ssl::SslVersion;
use epoxide_tests_e2e::{Case, pattern};
use epoxide_tls::{Pem, TlsVersion};
use std::io::{Read, Write};

#[test]
fn a_request_is_answered_in_both_versions() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let context = client::context(&world.authority, |context| {
            context.set_max_proto_version(Some(version)).unwrap();
        });
        let mut client = connect(server.addr(), &context);
        assert_eq!(client.ssl().version2(), Some(version));
        for _ in 0..3 {
            assert!(ask(&mut client, GET).unwrap().ends_with("tls-ok"));
        }
    }
}

#[test]
fn certificates_come_from_files_too() {
    let case = Case::start();
    let world = World::new();
    let dir = std::env::temp_dir().join(format!("epoxide-tls-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (chain, key) = (dir.join("chain.pem"), dir.join("key.pem"));
    std::fs::write(&chain, world.server.chain_text()).unwrap();
    std::fs::write(&key, world.server.key_text()).unwrap();
    let config = epoxide_tls::TlsConfig::server(Pem::path(&chain), Pem::path(&key)).build().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    assert_served(server.addr(), &client::context(&world.authority, |_| {}));
}

#[test]
fn a_request_over_several_records_gets_one_answer() {
    let case = Case::start();
    let world = World::new();
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    let context = client::context(&world.authority, |_| {});
    let mut client = connect(server.addr(), &context);
    for cut in [1, 3, 5] {
        for piece in GET.as_bytes().chunks(GET.len().div_ceil(cut)) {
            client.write_all(piece).unwrap();
        }
        assert!(answer(&mut client).unwrap().ends_with("tls-ok"));
    }
    // One byte a record, and several requests in one.
    for byte in GET.as_bytes() {
        client.write_all(&[*byte]).unwrap();
    }
    assert!(answer(&mut client).unwrap().ends_with("tls-ok"));
    client.write_all(GET.repeat(20).as_bytes()).unwrap();
    let mut text = String::new();
    while text.matches("tls-ok").count() < 20 {
        let mut chunk = [0; 4096];
        let n = client.read(&mut chunk).unwrap();
        assert!(n > 0);
        text.push_str(std::str::from_utf8(&chunk[..n]).unwrap());
    }
    assert_eq!(text.matches("tls-ok").count(), 20);
}

#[test]
fn a_large_body_comes_back_exactly_and_ends_clean() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), echo);
    let mut client = connect(server.addr(), &client::context(&world.authority, |_| {}));
    let sent = pattern(3 << 20);
    let mut socket = client.get_ref().try_clone().unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    // A blocking client must read while it writes: in portions that fit any socket buffer.
    let mut back = Vec::new();
    for portion in sent.chunks(100_000) {
        client.write_all(portion).unwrap();
        let mut chunk = vec![0; portion.len()];
        client.read_exact(&mut chunk).unwrap();
        back.extend_from_slice(&chunk);
    }
    assert!(back == sent, "the bytes differ");
    client.shutdown().unwrap();
    socket.flush().unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert!(rest.is_empty());
    // The server's close_notify, not only its FIN.
    assert!(client.get_shutdown().contains(boring::ssl::ShutdownState::RECEIVED));
    ends.recv_timeout(HANG).unwrap().unwrap();
}

#[test]
fn what_was_agreed_on_can_be_asked() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().alpn(["h2", "http/1.1"]).build().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (server, _ends) = serve(&case, &config, move |conn| {
        tell.send(conn.facts().clone()).unwrap();
        answer_requests(conn)
    });
    let context = client::context(&world.authority, |context| {
        context.set_alpn_protos(b"\x08http/1.1").unwrap();
        context.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
    });
    let mut client = client::try_connect(server.addr(), &context, Some("LocalHost")).unwrap();
    ask(&mut client, GET).unwrap();
    let facts = told.recv_timeout(HANG).unwrap();
    assert_eq!(facts.version(), TlsVersion::V1_2);
    assert_eq!(facts.suite(), "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256");
    assert_eq!(facts.suite_id(), 0xc02b);
    assert_eq!(facts.alpn(), Some(&b"http/1.1"[..]));
    assert_eq!(facts.server_name(), Some("localhost"));
    assert!(!facts.resumed());
    assert_eq!(facts.peer_certificate(), None);
}
