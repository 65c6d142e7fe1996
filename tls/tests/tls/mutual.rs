//! Client certificates, optional and required; and what the handler learns of them.

use crate::client::{self, GET, HANG, ask, try_connect};
use crate::servers::{World, answer_requests, serve};
use epoxide_tests_e2e::Case;
use epoxide_tls::{ClientAuth, TlsFacts};
use std::sync::mpsc::{Receiver, channel};

fn serve_and_tell(case: &Case, world: &World, auth: ClientAuth) -> (epoxide_tests_e2e::Server, Receiver<TlsFacts>) {
    let (tell, told) = channel();
    let config = world.options().client_auth(auth, world.authority.chain()).build().unwrap();
    let (server, _ends) = serve(case, &config, move |conn| {
        tell.send(conn.facts().clone()).unwrap();
        answer_requests(conn)
    });
    (server, told)
}

#[test]
fn clients_are_known_by_their_certificates() {
    let case = Case::start();
    let world = World::new();
    for auth in [ClientAuth::Optional, ClientAuth::Required] {
        let (server, told) = serve_and_tell(&case, &world, auth);
        let alice = world.authority.issue("alice");
        let known = client::identified(&world.authority, &alice);
        ask(&mut try_connect(server.addr(), &known, None).unwrap(), GET).unwrap();
        let facts = told.recv_timeout(HANG).unwrap();
        assert_eq!(facts.peer_common_name(), Some("alice"));
        assert_eq!(facts.peer_certificate(), Some(&*alice.certificate.to_der().unwrap()));

        let anonymous = client::context(&world.authority, |_| {});
        let answer = try_connect(server.addr(), &anonymous, None).and_then(|mut c| ask(&mut c, GET));
        assert_eq!(answer.is_ok(), auth == ClientAuth::Optional, "{auth:?}");
        if auth == ClientAuth::Optional {
            let facts = told.recv_timeout(HANG).unwrap();
            assert_eq!((facts.peer_common_name(), facts.peer_certificate()), (None, None));
        }
        let stranger = World::new().authority.issue("alice");
        let unknown = client::identified(&world.authority, &stranger);
        let answer = try_connect(server.addr(), &unknown, None).and_then(|mut c| ask(&mut c, GET));
        assert!(answer.is_err(), "{auth:?}: of another authority");
        assert!(told.try_recv().is_err());
    }
}

#[test]
fn odd_common_names_are_not_taken_for_names() {
    let case = Case::start();
    let world = World::new();
    let (server, told) = serve_and_tell(&case, &world, ClientAuth::Required);
    for (name, seen) in [("m\u{fc}ller", Some("m\u{fc}ller")), ("admin\n", None), ("a\u{0}b", None)] {
        let identity = world.authority.issue_named(name);
        let context = client::identified(&world.authority, &identity);
        ask(&mut try_connect(server.addr(), &context, None).unwrap(), GET).unwrap();
        assert_eq!(told.recv_timeout(HANG).unwrap().peer_common_name(), seen, "{name:?}");
    }
}
