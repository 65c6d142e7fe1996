//! Our own client: it verifies by default, resumes, and asks by name.

use crate::client::{GET, HANG};
use crate::servers::{World, answer_requests, ktls_of_run, serve};
use epoxide_tests_e2e::Case;
use epoxide_tls::{ClientBuilder, Pem, TlsConfig, TlsError, TlsFacts, TlsVersion};
use std::io;
use std::net::SocketAddr;

impl World {
    /// The options of a client that trusts the authority.
    pub(crate) fn client(&self) -> ClientBuilder {
        TlsConfig::client().roots(self.authority.chain()).ktls(ktls_of_run())
    }
}

/// Connects, asks once, and ends in good order. What was agreed on.
pub(crate) fn ask_once(config: &TlsConfig, addr: SocketAddr, host: &str) -> io::Result<TlsFacts> {
    epoxide::block_on(async {
        let mut conn = config.connect(addr, host).await?;
        conn.send_all(GET.as_bytes()).await?;
        let mut text = Vec::new();
        while !text.ends_with(b"tls-ok") {
            let Some(data) = conn.read().await? else { return Err(io::ErrorKind::UnexpectedEof.into()) };
            text.extend_from_slice(&data);
        }
        let facts = conn.facts().clone();
        conn.shutdown().await?;
        assert!(conn.read().await?.is_none(), "the server's close_notify");
        Ok(facts)
    })
}

#[test]
fn a_server_is_verified_by_default() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    let good = world.client().build().unwrap();
    ask_once(&good, server.addr(), "localhost").unwrap();
    // An address is looked for in the certificate, and is there.
    let facts = ask_once(&good, server.addr(), "127.0.0.1").unwrap();
    assert_eq!(facts.server_name(), None);
    for _ in 0..2 {
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
    for (config, host, reason) in [
        (&good, "other.example", "ostname"),
        (&good, "127.0.0.2", "IP address"),
        (&World::new().client().build().unwrap(), "localhost", "unable to get local issuer"),
    ] {
        let error = ask_once(config, server.addr(), host).unwrap_err();
        assert!(matches!(TlsError::of(&error), Some(TlsError::Handshake { .. })), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        // The alert came through: the server knows why.
        let theirs = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(theirs.to_string().contains("ALERT"), "{theirs}");
    }
    // A common name is no host name (RFC 9525), also where there is no other.
    let mut nameless = World::new();
    nameless.server = nameless.authority.issue_named("localhost");
    let (by_subject, their_ends) = serve(&case, &nameless.options().build().unwrap(), answer_requests);
    let error = ask_once(&nameless.client().build().unwrap(), by_subject.addr(), "localhost").unwrap_err();
    assert!(error.to_string().contains("ostname"), "{error}");
    their_ends.recv_timeout(HANG).unwrap().unwrap_err();
    let any = TlsConfig::client().danger_accept_any_certificate().build().unwrap();
    ask_once(&any, server.addr(), "other.example").unwrap();
}

#[test]
fn sessions_are_resumed_unless_switched_off() {
    let case = Case::start();
    let world = World::new();
    for (versions, resumption) in
        [(TlsVersion::V1_3, true), (TlsVersion::V1_2, true), (TlsVersion::V1_3, false), (TlsVersion::V1_2, false)]
    {
        for server_side in [true, false] {
            let config = world.options().max_version(versions).resumption(resumption || !server_side).build().unwrap();
            let (server, _ends) = serve(&case, &config, answer_requests);
            let client = world.client().resumption(resumption || server_side).build().unwrap();
            let resumed: Vec<_> =
                (0..3).map(|_| ask_once(&client, server.addr(), "localhost").unwrap().resumed()).collect();
            assert_eq!(resumed, [false, resumption, resumption], "{versions} {server_side}");
            // By another name it is another server.
            assert!(!ask_once(&client, server.addr(), "127.0.0.1").unwrap().resumed());
        }
    }
}

#[test]
fn a_configuration_of_the_other_side_is_refused() {
    let case = Case::start();
    let world = World::new();
    let server_config = world.options().build().unwrap();
    let client_config = world.client().build().unwrap();
    let (server, ends) = serve(&case, &client_config, answer_requests);
    let error = ask_once(&server_config, server.addr(), "localhost").unwrap_err();
    assert!(error.to_string().contains("`connect`"), "{error}");
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(error.to_string().contains("`accept`"), "{error}");
    assert!(client_config.reload(&world.options()).unwrap_err().to_string().contains("reload_client"));
    assert!(server_config.reload_client(&world.client()).unwrap_err().to_string().contains("`reload_client`"));
    let bad = ask_once(&client_config, server.addr(), "a\0b").unwrap_err();
    assert!(bad.to_string().contains("no host name"), "{bad}");
    let _ = ends.recv_timeout(HANG);
    let system = TlsConfig::client().build();
    if std::path::Path::new("/etc/ssl/certs/ca-certificates.crt").exists() {
        system.expect("the system's roots");
    } else {
        assert!(system.unwrap_err().to_string().contains("`roots`"));
    }
    let missing = TlsConfig::client().roots(Pem::path("/nowhere/roots.pem")).build().unwrap_err();
    assert!(missing.to_string().contains("/nowhere/roots.pem"), "{missing}");
}
