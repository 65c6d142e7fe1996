//! Reloads: new connections get the new, live ones keep the old, and a ticket opens no door that has been shut.

use crate::client::{self, GET, HANG, ask, connect};
use crate::ours::ask_once;
use crate::servers::{World, answer_requests, serve};
use epoxide_tests_e2e::Case;
use epoxide_tls::{ClientAuth, Host, Pem, TlsVersion};

#[test]
fn a_new_certificate_serves_new_connections_and_tickets_stay_good() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let context = client::context(&world.authority, |_| {});
    let mut live = connect(server.addr(), &context);
    let serial = |client: &client::Client| {
        client.ssl().peer_certificate().unwrap().serial_number().to_bn().unwrap().to_hex_str().unwrap().to_string()
    };
    let old = serial(&live);
    let resuming = world.client().build().unwrap();
    ask_once(&resuming, server.addr(), "localhost").unwrap();

    let renewed = World { server: world.authority.issue("localhost"), authority: world.authority };
    config.reload(&renewed.options()).unwrap();
    assert_ne!(serial(&connect(server.addr(), &context)), old);
    assert!(ask(&mut live, GET).unwrap().ends_with("tls-ok"), "a live connection goes on");
    assert!(ask_once(&resuming, server.addr(), "localhost").unwrap().resumed(), "nobody is let in who was not before");

    // A reload that fails changes nothing.
    let bad = renewed.options().host("x", Host::new(Pem::text(""), renewed.server.key()));
    config.reload(&bad).unwrap_err();
    assert!(ask_once(&resuming, server.addr(), "localhost").unwrap().resumed());
    // The same options again, as often as one likes.
    for _ in 0..20 {
        config.reload(&renewed.options()).unwrap();
        assert!(ask_once(&resuming, server.addr(), "localhost").unwrap().resumed());
    }
}

#[test]
fn a_client_of_a_removed_authority_is_refused_in_spite_of_its_ticket() {
    let case = Case::start();
    let world = World::new();
    let (other, alice) = (World::new(), world.authority.issue("alice"));
    let both = format!("{}{}", world.authority.chain_text(), other.authority.chain_text());
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let options = || world.options().max_version(version);
        let config = options().client_auth(ClientAuth::Required, Pem::text(&*both)).build().unwrap();
        let (server, ends) = serve(&case, &config, answer_requests);
        let client = world.client().client_certificate(alice.chain(), alice.key()).build().unwrap();
        let resumed = || ask_once(&client, server.addr(), "localhost").map(|facts| facts.resumed());
        assert!(!resumed().unwrap());
        assert!(resumed().unwrap(), "control: the ticket is good");
        config.reload(&options().client_auth(ClientAuth::Required, Pem::text(&*both))).unwrap();
        assert!(resumed().unwrap(), "control: it survives a reload that changes nothing");
        for _ in 0..3 {
            ends.recv_timeout(HANG).unwrap().unwrap();
        }
        config.reload(&options().client_auth(ClientAuth::Required, other.authority.chain())).unwrap();
        resumed().unwrap_err();
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(error.to_string().contains("CERTIFICATE_VERIFY_FAILED"), "{error}");
    }
}

#[test]
fn a_ticket_without_a_certificate_does_not_open_a_door_that_asks_for_one() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let client = world.client().build().unwrap();
    ask_once(&client, server.addr(), "localhost").unwrap();
    ends.recv_timeout(HANG).unwrap().unwrap();
    config.reload(&world.options().client_auth(ClientAuth::Required, world.authority.chain())).unwrap();
    ask_once(&client, server.addr(), "localhost").unwrap_err();
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(error.to_string().contains("PEER_DID_NOT_RETURN_A_CERTIFICATE"), "{error}");
    // And a new host in the table is a new rule, too.
    config.reload(&world.options()).unwrap();
    assert!(!ask_once(&client, server.addr(), "localhost").unwrap().resumed());
}

#[test]
fn a_connection_keeps_what_it_was_let_in_with() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().client_auth(ClientAuth::Required, world.authority.chain()).build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let alice = world.authority.issue("alice");
    let context = client::identified(&world.authority, &alice);
    let mut live = connect(server.addr(), &context);
    ask(&mut live, GET).unwrap();
    config.reload(&world.options().client_auth(ClientAuth::Required, World::new().authority.chain())).unwrap();
    assert!(ask(&mut live, GET).unwrap().ends_with("tls-ok"));
    let refused = client::try_connect(server.addr(), &context, None).and_then(|mut c| ask(&mut c, GET));
    assert!(refused.is_err(), "control: a new one is refused");
}
