//! Reloads: new connections get the new, live ones keep the old, and a ticket opens no door that has been shut.

use crate::client::{self, GET, HANG, ask, connect};
use crate::ours::ask_once;
use crate::servers::{World, answer_requests, serve};
use epoxide_tests_e2e::Case;
use epoxide_tls::{ClientAuth, Host, Pem, TlsVersion};
use std::sync::atomic::{AtomicBool, Ordering};

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

/// Handshakes of both versions, resumed and not, while what they are made with is replaced: none fails.
#[test]
fn handshakes_go_on_while_the_configuration_is_reloaded() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (server, ends) = serve(&case, &config, answer_requests);
    let over = AtomicBool::new(false);
    let (mut reloads, mut resumed) = (0, 0);
    std::thread::scope(|scope| {
        let clients = [TlsVersion::V1_2, TlsVersion::V1_3].map(|version| {
            let (world, over, server) = (&world, &over, &server);
            scope.spawn(move || {
                let client = world.client().max_version(version).build().unwrap();
                let mut resumed = 0;
                while !over.load(Ordering::Relaxed) {
                    let facts = ask_once(&client, server.addr(), "localhost").unwrap();
                    assert_eq!(facts.version(), version);
                    resumed += usize::from(facts.resumed());
                }
                resumed
            })
        });
        let host = || Host::new(world.server.chain(), world.server.key());
        let mut served = 0;
        while served < 100 {
            let options = world.options();
            let options = match reloads % 4 {
                0 => options.client_auth(ClientAuth::Optional, world.authority.chain()),
                1 => options.resumption(false),
                2 => options.host("other.example", host()),
                _ => options,
            };
            config.reload(&options).unwrap();
            reloads += 1;
            ends.recv_timeout(HANG).unwrap().unwrap();
            served += 1 + ends.try_iter().map(Result::unwrap).count();
        }
        over.store(true, Ordering::Relaxed);
        resumed += clients.map(|client| client.join().unwrap()).iter().sum::<usize>();
    });
    assert!(reloads > 3, "vacuity: {reloads} reloads, {resumed} resumed");
    assert_eq!(config.handshakes(), 0);
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
