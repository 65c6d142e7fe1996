//! Certificates by server name, and hosts that ask for more than the default does.

use crate::client::{self, GET, HANG, ask, assert_served, try_connect};
use crate::servers::{World, answer_requests, serve};
use boring::nid::Nid;
use boring::ssl::{SslContext, SslVersion};
use epoxide_tests_e2e::Case;
use epoxide_tls::{ClientAuth, Host, TlsError, TlsVersion};
use std::net::SocketAddr;

/// The common name of the certificate that a client gets.
fn served_name(addr: SocketAddr, context: &SslContext, name: Option<&str>) -> String {
    let mut client = try_connect(addr, context, name).unwrap();
    assert!(ask(&mut client, GET).unwrap().ends_with("tls-ok"));
    let certificate = client.ssl().peer_certificate().unwrap();
    certificate.subject_name().entries_by_nid(Nid::COMMONNAME).next().unwrap().data().as_utf8().unwrap().to_string()
}

#[test]
fn each_name_gets_its_own_certificate() {
    let case = Case::start();
    let world = World::new();
    let host = |name: &str| {
        let identity = world.authority.issue(name);
        Host::new(identity.chain(), identity.key())
    };
    let config = world
        .options()
        .alpn(["h2", "http/1.1"])
        .host("A.example", host("a.example"))
        .host("b.example", host("b.example"))
        .host("*.example", host("any.example"))
        .build()
        .unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |context| context.set_alpn_protos(b"\x08http/1.1\x02h2").unwrap());
    for (asked, served) in [
        (Some("a.example"), "a.example"),
        (Some("B.EXAMPLE"), "b.example"),
        (Some("x.example"), "any.example"),
        (Some("a.example."), "a.example"),
        (Some("x.y.example"), "localhost"),
        (Some("unknown"), "localhost"),
        (None, "localhost"),
    ] {
        assert_eq!(served_name(server.addr(), &context, asked), served, "{asked:?}");
    }
    // The protocol is agreed on under a host's own context too.
    let client = try_connect(server.addr(), &context, Some("a.example")).unwrap();
    assert_eq!(client.ssl().selected_alpn_protocol(), Some(&b"h2"[..]));
}

#[test]
fn a_strict_host_behind_a_lax_default_refuses() {
    let case = Case::start();
    let world = World::new();
    let host = || Host::new(world.server.chain(), world.server.key());
    let strict = host().client_auth(ClientAuth::Required, world.authority.chain());
    let config = world.options().host("strict.example", strict).build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let anonymous = client::context(&world.authority, |_| {});
    for version in [SslVersion::TLS1_2, SslVersion::TLS1_3] {
        let context =
            client::context(&world.authority, |context| context.set_max_proto_version(Some(version)).unwrap());
        let refused = try_connect(server.addr(), &context, Some("strict.example")).and_then(|mut c| ask(&mut c, GET));
        assert!(refused.is_err());
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(error.to_string().contains("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "{error}");
    }
    assert_served(server.addr(), &anonymous);
    ends.recv_timeout(HANG).unwrap().unwrap();
    let known = world.authority.issue("client");
    assert_eq!(
        served_name(server.addr(), &client::identified(&world.authority, &known), Some("strict.example")),
        "localhost"
    );
    ends.recv_timeout(HANG).unwrap().unwrap();
    let stranger = World::new().authority.issue("stranger");
    let context = client::identified(&world.authority, &stranger);
    let refused = try_connect(server.addr(), &context, Some("strict.example")).and_then(|mut c| ask(&mut c, GET));
    assert!(refused.is_err());
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(error.to_string().contains("CERTIFICATE_VERIFY_FAILED (unable to get local issuer"), "{error}");
    assert!(matches!(TlsError::of(&error), Some(TlsError::Handshake { .. })));
}

#[test]
fn a_lax_host_behind_a_strict_default_is_lax() {
    let case = Case::start();
    let world = World::new();
    let host = || Host::new(world.server.chain(), world.server.key());
    let config = world
        .options()
        .client_auth(ClientAuth::Required, world.authority.chain())
        .host("lax.example", host().no_client_auth())
        .host("same.example", host())
        .build()
        .unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let anonymous = client::context(&world.authority, |_| {});
    let served = |name| try_connect(server.addr(), &anonymous, name).and_then(|mut c| ask(&mut c, GET)).is_ok();
    assert!(served(Some("lax.example")));
    assert!(!served(Some("same.example")), "a host without rules of its own has the default's");
    assert!(!served(None));
    assert!(!served(Some("unknown")));
}

#[test]
fn a_hosts_own_versions_hold() {
    let case = Case::start();
    let world = World::new();
    let host = || Host::new(world.server.chain(), world.server.key());
    let config = world
        .options()
        .min_version(TlsVersion::V1_3)
        .host("old.example", host().min_version(TlsVersion::V1_2))
        .host("older.example", host().min_version(TlsVersion::V1_2).max_version(TlsVersion::V1_2))
        .build()
        .unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let old = client::context(&world.authority, |context| {
        context.set_max_proto_version(Some(SslVersion::TLS1_2)).unwrap();
    });
    let new = client::context(&world.authority, |_| {});
    let version = |context, name| try_connect(server.addr(), context, Some(name)).ok().and_then(|c| c.ssl().version2());
    assert_eq!(version(&old, "localhost"), None);
    assert_eq!(version(&old, "old.example"), Some(SslVersion::TLS1_2));
    assert_eq!(version(&new, "old.example"), Some(SslVersion::TLS1_3));
    assert_eq!(version(&new, "older.example"), Some(SslVersion::TLS1_2));
}
