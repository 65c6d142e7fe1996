//! What is spoken and what is refused: versions, suites, protocol names; and bad options at construction.

use crate::certs::{Identity, authority, rsa_key};
use crate::client::{self, GET, ask, assert_served, try_connect};
use crate::servers::{World, answer_requests, serve};
use boring::ssl::{SslContext, SslVersion};
use boring::symm::Cipher;
use epoxide_tests_e2e::Case;
use epoxide_tls::{ClientAuth, Host, Pem, ServerBuilder, TlsConfig, TlsError, TlsVersion};
use std::io::ErrorKind;

fn only(world: &World, version: SslVersion) -> SslContext {
    client::context(&world.authority, |context| {
        context.set_min_proto_version(Some(version)).unwrap();
        context.set_max_proto_version(Some(version)).unwrap();
    })
}

/// Is a client with this context served? A hang is a panic.
fn is_served(addr: std::net::SocketAddr, context: &SslContext) -> bool {
    try_connect(addr, context, Some("localhost")).and_then(|mut client| ask(&mut client, GET)).is_ok()
}

#[test]
fn a_floor_and_a_ceiling_hold() {
    let case = Case::start();
    let world = World::new();
    let build = |options: ServerBuilder| serve(&case, &options.build().unwrap(), answer_requests);
    let (floor, ends) = build(world.options().min_version(TlsVersion::V1_3));
    assert!(!is_served(floor.addr(), &only(&world, SslVersion::TLS1_2)));
    let error = ends.recv().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert!(error.to_string().contains("UNSUPPORTED_PROTOCOL"), "{error}");
    assert!(is_served(floor.addr(), &only(&world, SslVersion::TLS1_3)));
    let (ceiling, _ends) = build(world.options().max_version(TlsVersion::V1_2));
    assert!(!is_served(ceiling.addr(), &only(&world, SslVersion::TLS1_3)));
    assert!(is_served(ceiling.addr(), &only(&world, SslVersion::TLS1_2)));
    // The floor of all: nothing older than 1.2.
    let (defaults, _ends) = build(world.options());
    assert!(!is_served(defaults.addr(), &only(&world, SslVersion::TLS1_1)));
    assert_served(defaults.addr(), &client::context(&world.authority, |_| {}));
}

#[test]
fn listed_suites_are_the_only_ones_and_the_servers_order_decides() {
    let case = Case::start();
    let world = World::new();
    let list = ["TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_256_GCM_SHA384"];
    let (server, _ends) = serve(&case, &world.options().suites(list).build().unwrap(), answer_requests);
    let client = try_connect(server.addr(), &only(&world, SslVersion::TLS1_3), None).unwrap();
    assert_eq!(client.ssl().current_cipher().unwrap().standard_name(), Some(list[0]));
    drop(client);
    // A list without a TLS 1.2 suite switches TLS 1.2 off.
    assert!(!is_served(server.addr(), &only(&world, SslVersion::TLS1_2)));

    let (server, _ends) =
        serve(&case, &world.options().suites(["ECDHE-ECDSA-AES256-GCM-SHA384"]).build().unwrap(), answer_requests);
    let with = |list| {
        client::context(&world.authority, move |context| {
            context.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
            context.set_strict_cipher_list(list).unwrap();
        })
    };
    assert!(is_served(server.addr(), &with("ECDHE-ECDSA-AES256-GCM-SHA384")));
    assert!(!is_served(server.addr(), &with("ECDHE-ECDSA-CHACHA20-POLY1305")), "control: a suite that is not listed");
    assert!(!is_served(server.addr(), &only(&world, SslVersion::TLS1_3)));
}

#[test]
fn old_suites_are_not_spoken() {
    let case = Case::start();
    let mut world = World::new();
    world.server = world.authority.issue_for("localhost", rsa_key());
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    let with = |list| {
        client::context(&world.authority, move |context| {
            context.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
            context.set_cipher_list(list).unwrap();
        })
    };
    for old in ["AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA", "AES128-SHA"] {
        assert!(!is_served(server.addr(), &with(old)), "{old}");
    }
    assert!(is_served(server.addr(), &with("ECDHE-RSA-AES128-GCM-SHA256")), "control");
}

#[test]
fn protocol_names_are_agreed_on_in_the_servers_order() {
    let case = Case::start();
    let world = World::new();
    let long = "x".repeat(255);
    for (ours, theirs, agreed) in [
        (vec!["h2", "http/1.1"], &b"\x08http/1.1\x02h2"[..], Some(&b"h2"[..])),
        (vec!["http/1.1", "h2"], b"\x02h2\x08http/1.1", Some(b"http/1.1")),
        (vec!["h2", "http/1.1"], b"\x08http/1.1", Some(b"http/1.1")),
        // Nothing in common, and nothing offered: it goes on without.
        (vec!["h2"], b"\x03foo", None),
        (vec!["h2"], b"", None),
        (vec![&*long], &[&[255], long.as_bytes()].concat(), Some(long.as_bytes())),
    ] {
        let (tell, told) = std::sync::mpsc::channel();
        let config = world.options().alpn(ours.clone()).build().unwrap();
        let (server, _ends) = serve(&case, &config, move |conn| {
            tell.send(conn.facts().alpn().map(<[u8]>::to_vec)).unwrap();
            answer_requests(conn)
        });
        let context = client::context(&world.authority, |context| {
            if !theirs.is_empty() {
                context.set_alpn_protos(theirs).unwrap();
            }
        });
        let mut client = try_connect(server.addr(), &context, None).unwrap();
        ask(&mut client, GET).unwrap();
        assert_eq!(client.ssl().selected_alpn_protocol(), agreed, "{ours:?}");
        assert_eq!(told.recv().unwrap().as_deref(), agreed, "both sides say the same");
    }
}

/// Everything that cannot work is refused by `build`, which names the option.
#[test]
fn bad_options_are_refused_by_name() {
    let world = World::new();
    let other = world.authority.issue("other");
    let with_password = world.server.key.private_key_to_pem_pkcs8_passphrase(Cipher::aes_128_cbc(), b"secret").unwrap();
    let torn = format!("{}{}", world.authority.chain_text(), &world.authority.chain_text()[..200]);
    let twice = |second: String| format!("{}{second}", world.authority.chain_text());
    let no_first_line = twice(world.authority.chain_text().replace("-----BEGIN", "----BEGIN"));
    let trusted = twice(world.authority.chain_text().replace("CERTIFICATE", "TRUSTED CERTIFICATE"));
    let crowd = authority(&"o".repeat(60)).chain_text().repeat(1000);
    let long = world.server.chain_text().repeat(200);
    let rsa = Identity { certificate: world.server.certificate.clone(), key: rsa_key() };
    let server = |chain: &str, key: &str| TlsConfig::server(Pem::text(chain), Pem::text(key));
    let (chain, key) = (world.server.chain_text(), world.server.key_text());
    let bundle = || Pem::text(world.authority.chain_text());
    let host = || Host::new(world.server.chain(), world.server.key());
    let cases = [
        ("certificate", "begins 0", server("", &key)),
        ("certificate", "begins 0", server(&key, &key)),
        ("certificate", "no private key", server(&chain, "")),
        ("certificate", "passphrase", server(&chain, std::str::from_utf8(&with_password).unwrap())),
        ("certificate", "KEY_VALUES_MISMATCH", server(&chain, &other.key_text())),
        ("certificate", "KEY_TYPE_MISMATCH", server(&chain, &rsa.key_text())),
        ("certificate", "at most 65536", server(&long, &key)),
        ("certificate", "No such file", TlsConfig::server(Pem::path("/nowhere/chain.pem"), Pem::text(&key))),
        ("certificate", "at most 65536", TlsConfig::server(Pem::path("/dev/zero"), Pem::text(&key))),
        ("suites", "the certificate's key", world.options().suites(["ECDHE-RSA-AES128-GCM-SHA256"])),
        ("suites", "empty", world.options().suites(Vec::<String>::new())),
        ("suites", "TLS_AES_128_GCM_SHA265", world.options().suites(["TLS_AES_128_GCM_SHA265"])),
        ("suites", "AES128-SHA", world.options().suites(["AES128-SHA"])),
        (
            "suites",
            "twice",
            world.options().suites(["ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"]),
        ),
        ("min_version", "TLS 1.2", world.options().suites(["TLS_AES_128_GCM_SHA256"]).min_version(TlsVersion::V1_2)),
        (
            "max_version",
            "TLS 1.3",
            world.options().suites(["ECDHE-RSA-AES128-GCM-SHA256"]).max_version(TlsVersion::V1_3),
        ),
        ("min_version", "above", world.options().min_version(TlsVersion::V1_3).max_version(TlsVersion::V1_2)),
        // The option that was given is named, not the other end of the range.
        ("max_version", "TLS 1.2", world.options().suites(["TLS_AES_128_GCM_SHA256"]).max_version(TlsVersion::V1_2)),
        (
            "min_version",
            "TLS 1.3",
            world.options().suites(["ECDHE-ECDSA-AES128-GCM-SHA256"]).min_version(TlsVersion::V1_3),
        ),
        ("alpn", "list is empty", world.options().alpn(Vec::<String>::new())),
        ("alpn", "name is empty", world.options().alpn([""])),
        ("alpn", "at most 255", world.options().alpn(["x".repeat(256)])),
        ("client_auth", "begins 0", world.options().client_auth(ClientAuth::Required, Pem::text(""))),
        ("client_auth", "torn", world.options().client_auth(ClientAuth::Optional, Pem::text(&torn))),
        // Left out, an authority would be missed by nobody but its clients.
        ("client_auth", "has 1 whole", world.options().client_auth(ClientAuth::Optional, Pem::text(&no_first_line))),
        ("client_auth", "has 1 whole", world.options().client_auth(ClientAuth::Optional, Pem::text(&trusted))),
        ("client_auth", "of 1000 authorities", world.options().client_auth(ClientAuth::Optional, Pem::text(&crowd))),
        ("host", "blank", world.options().host(" ", host())),
        ("host", "not an ASCII", world.options().host("\u{168}2", host())),
        ("host", "twice", world.options().host("a.example", host()).host("A.Example", host())),
        ("host", "a.example", world.options().host("a.example", Host::new(Pem::text(""), Pem::text(&key)))),
        ("host", "MISMATCH", world.options().host("a.example", Host::new(Pem::text(&chain), other.key()))),
        (
            "host",
            "above",
            world.options().max_version(TlsVersion::V1_2).host("a", host().min_version(TlsVersion::V1_3)),
        ),
        // A version without suites of the list would get BoringSSL's own, CBC and RSA key exchange among them.
        (
            "host",
            "`old`: TLS 1.2: `suites`",
            world.options().suites(["TLS_AES_128_GCM_SHA256"]).host("old", host().min_version(TlsVersion::V1_2)),
        ),
        (
            "host",
            "`new`: TLS 1.3: `suites`",
            world.options().suites(["ECDHE-ECDSA-AES128-GCM-SHA256"]).host("new", host().max_version(TlsVersion::V1_3)),
        ),
        ("host", "begins 0", world.options().host("a", host().client_auth(ClientAuth::Required, Pem::text("")))),
        ("ocsp_staple", "empty", world.options().ocsp_staple([])),
        ("max_handshakes", "at least 1", world.options().max_handshakes(0)),
        ("key_log", "No such file", world.options().key_log("/nowhere/keys")),
    ];
    for (option, reason, options) in cases {
        let Err(error) = options.build() else { panic!("{option} with {reason:?} was taken") };
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        assert!(
            matches!(TlsError::of(&error), Some(TlsError::Config { option: named, .. }) if *named == option),
            "{error}"
        );
        assert!(error.to_string().contains(reason), "{option}: {error}");
        assert!(!error.to_string().contains("PRIVATE"), "{error}");
    }
    world
        .options()
        .client_auth(ClientAuth::Required, bundle())
        .host("*.a", host())
        .build()
        .expect("control: good options");
    let conflict = TlsConfig::client().roots(bundle()).danger_accept_any_certificate().build().unwrap_err();
    assert!(conflict.to_string().contains("`roots`"), "{conflict}");
    let torn = TlsConfig::client().roots(Pem::text(torn)).build().unwrap_err();
    assert!(torn.to_string().contains("`roots`"), "{torn}");
}

#[test]
fn secrets_are_logged_only_where_asked() {
    let case = Case::start();
    let world = World::new();
    let path = std::env::temp_dir().join(format!("epoxide-tls-keys-{}", std::process::id()));
    let config = world.options().key_log(&path).build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    assert_served(server.addr(), &client::context(&world.authority, |_| {}));
    let text = std::fs::read_to_string(&path).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "others may read the secrets: {mode:o}");
    std::fs::remove_file(&path).unwrap();
    assert!(text.lines().any(|line| line.starts_with("SERVER_TRAFFIC_SECRET_0 ")), "{text}");
    drop((server, config));
}

#[test]
fn an_ocsp_response_is_stapled() {
    let case = Case::start();
    let world = World::new();
    let host = Host::new(world.server.chain(), world.server.key()).ocsp_staple(*b"for the host");
    let config = world.options().ocsp_staple(*b"for all").host("b.example", host).build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |context| context.enable_ocsp_stapling());
    for (name, staple) in [("localhost", &b"for all"[..]), ("b.example", b"for the host")] {
        let client = try_connect(server.addr(), &context, Some(name)).unwrap();
        assert_eq!(client.ssl().ocsp_status(), Some(staple));
    }
}
