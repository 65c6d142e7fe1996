//! rustls at the other end, as client and as server: versions, resumption, protocol names, certificates of clients.

use crate::certs::Identity;
use crate::client::{GET, HANG};
use crate::ours::ask_once;
use crate::servers::{World, answer_requests, echo, ktls_of_run, serve};
use epoxide_tests_e2e::{Case, http_reply, pattern};
use epoxide_tls::{ClientAuth, Ktls, TlsError, TlsVersion};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection, StreamOwned,
    SupportedProtocolVersion, crypto,
};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

const VERSIONS: [(&SupportedProtocolVersion, TlsVersion); 2] = [(&TLS12, TlsVersion::V1_2), (&TLS13, TlsVersion::V1_3)];

fn provider() -> Arc<crypto::CryptoProvider> {
    Arc::new(crypto::ring::default_provider())
}

fn certificate(identity: &Identity) -> CertificateDer<'static> {
    identity.certificate.to_der().unwrap().into()
}

fn key(identity: &Identity) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(identity.key.private_key_to_der_pkcs8().unwrap()).into()
}

fn roots(world: &World) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certificate(&world.authority)).unwrap();
    roots
}

/// A client of rustls. It keeps sessions to resume, as rustls does by itself.
fn rustls_client(
    world: &World,
    version: &'static SupportedProtocolVersion,
    who: Option<&Identity>,
) -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(provider()).with_protocol_versions(&[version]).unwrap();
    let config = config.with_root_certificates(roots(world));
    let mut config = match who {
        Some(who) => config.with_client_auth_cert(vec![certificate(who)], key(who)).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"h2".to_vec()];
    Arc::new(config)
}

fn connect(addr: SocketAddr, config: &Arc<ClientConfig>) -> StreamOwned<ClientConnection, TcpStream> {
    let socket = TcpStream::connect(addr).unwrap();
    socket.set_read_timeout(Some(HANG)).unwrap();
    socket.set_write_timeout(Some(HANG)).unwrap();
    StreamOwned::new(ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap(), socket)
}

/// Our end, then everything until the server's close_notify: without one rustls reports an error.
fn end(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> io::Result<Vec<u8>> {
    stream.conn.send_close_notify();
    stream.flush()?;
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest)?;
    Ok(rest)
}

/// One request. Was the session resumed, and which protocol was agreed on?
fn ask(addr: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<(bool, Option<Vec<u8>>)> {
    let mut stream = connect(addr, config);
    stream.write_all(GET.as_bytes())?;
    let reply = http_reply(200, b"tls-ok");
    let mut answer = vec![0; reply.len()];
    stream.read_exact(&mut answer)?;
    assert_eq!(answer, reply);
    let resumed = stream.conn.handshake_kind() == Some(HandshakeKind::Resumed);
    let alpn = stream.conn.alpn_protocol().map(<[u8]>::to_vec);
    assert!(end(&mut stream)?.is_empty());
    Ok((resumed, alpn))
}

#[test]
fn rustls_as_a_client() {
    let case = Case::start();
    let world = World::new();
    for (version, ours) in VERSIONS {
        let (tell, told) = channel();
        let config = world.options().alpn(["h2", "http/1.1"]).build().unwrap();
        let (server, ends) = serve(&case, &config, move |conn| {
            tell.send(conn.facts().clone()).unwrap();
            answer_requests(conn)
        });
        let client = rustls_client(&world, version, None);
        for resumed in [false, true, true] {
            // The server's order decides, not the client's.
            assert_eq!(ask(server.addr(), &client).unwrap(), (resumed, Some(b"h2".to_vec())), "{ours}");
            let facts = told.recv_timeout(HANG).unwrap();
            assert_eq!((facts.version(), facts.resumed(), facts.alpn()), (ours, resumed, Some(&b"h2"[..])));
            assert_eq!(facts.server_name(), Some("localhost"));
            ends.recv_timeout(HANG).unwrap().unwrap();
        }
        let stranger = rustls_client(&World::new(), version, None);
        ask(server.addr(), &stranger).unwrap_err();
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(error.to_string().contains("ALERT"), "the client's reason came through: {error}");
    }
}

#[test]
fn rustls_sends_and_receives_megabytes() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), echo);
    let body = pattern(1 << 20);
    for (version, ours) in VERSIONS {
        let mut stream = connect(server.addr(), &rustls_client(&world, version, None));
        // A blocking client reads while it writes: in portions that fit any socket buffer, and one that fits no record.
        for portion in body.chunks(50_001) {
            stream.write_all(portion).unwrap();
            let mut back = vec![0; portion.len()];
            stream.read_exact(&mut back).unwrap();
            assert!(back == portion, "{ours}");
        }
        // With keys in the kernel: `ktls::keys`.
        if version.version == TLS13.version && ktls_of_run() == Ktls::Off {
            // New keys, and the peer is asked for its own.
            stream.conn.refresh_traffic_keys().unwrap();
            stream.write_all(&body[..1000]).unwrap();
            let mut back = vec![0; 1000];
            stream.read_exact(&mut back).unwrap();
            assert!(back == body[..1000], "behind new keys");
        }
        assert!(end(&mut stream).unwrap().is_empty());
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
}

#[test]
fn rustls_shows_a_certificate() {
    let case = Case::start();
    let world = World::new();
    let alice = world.authority.issue("alice");
    let stranger = World::new().authority.issue("alice");
    for (version, ours) in VERSIONS {
        for auth in [ClientAuth::Optional, ClientAuth::Required] {
            let (tell, told) = channel();
            let config = world.options().client_auth(auth, world.authority.chain()).build().unwrap();
            let (server, _ends) = serve(&case, &config, move |conn| {
                tell.send(conn.facts().clone()).unwrap();
                answer_requests(conn)
            });
            let known = rustls_client(&world, version, Some(&alice));
            for resumed in [false, true] {
                assert_eq!(ask(server.addr(), &known).unwrap().0, resumed, "{ours} {auth:?}");
                let facts = told.recv_timeout(HANG).unwrap();
                assert_eq!(facts.peer_common_name(), Some("alice"), "{ours} {auth:?}, resumed {resumed}");
            }
            let anonymous = ask(server.addr(), &rustls_client(&world, version, None));
            assert_eq!(anonymous.is_ok(), auth == ClientAuth::Optional, "{ours} {auth:?}");
            let _ = told.try_recv();
            // A certificate that does not hold is refused also where none is needed.
            ask(server.addr(), &rustls_client(&world, version, Some(&stranger))).unwrap_err();
            assert!(told.try_recv().is_err(), "{ours} {auth:?}: of another authority");
        }
    }
}

/// What a server of rustls saw of one connection.
struct Seen {
    resumed: bool,
    alpn: Option<Vec<u8>>,
    name: Option<String>,
    certificate: Option<Vec<u8>>,
}

/// A server of rustls for so many connections, each with one request; a failed handshake gives an error.
fn rustls_server(
    world: &World,
    version: &'static SupportedProtocolVersion,
    auth: bool,
    connections: usize,
) -> (SocketAddr, JoinHandle<Vec<io::Result<Seen>>>) {
    let config = ServerConfig::builder_with_provider(provider()).with_protocol_versions(&[version]).unwrap();
    let config = if auth {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots(world).into(), provider()).build().unwrap();
        config.with_client_cert_verifier(verifier)
    } else {
        config.with_no_client_auth()
    };
    let mut config = config.with_single_cert(vec![certificate(&world.server)], key(&world.server)).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config.ticketer = crypto::ring::Ticketer::new().unwrap();
    let (config, listener) = (Arc::new(config), TcpListener::bind("127.0.0.1:0").unwrap());
    let addr = listener.local_addr().unwrap();
    let answer = move |socket: TcpStream| {
        socket.set_read_timeout(Some(HANG))?;
        let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), socket);
        let mut request = vec![0; GET.len()];
        stream.read_exact(&mut request)?;
        assert_eq!(request, GET.as_bytes());
        stream.write_all(&http_reply(200, b"tls-ok"))?;
        // The client's close_notify, or an error.
        assert_eq!(stream.read(&mut [0; 1])?, 0);
        stream.conn.send_close_notify();
        stream.flush()?;
        Ok(Seen {
            resumed: stream.conn.handshake_kind() == Some(HandshakeKind::Resumed),
            alpn: stream.conn.alpn_protocol().map(<[u8]>::to_vec),
            name: stream.conn.server_name().map(str::to_owned),
            certificate: stream.conn.peer_certificates().map(|chain| chain[0].to_vec()),
        })
    };
    let thread = std::thread::spawn(move || (0..connections).map(|_| answer(listener.accept().unwrap().0)).collect());
    (addr, thread)
}

#[test]
fn rustls_as_a_server() {
    let _case = Case::start();
    let world = World::new();
    let alice = world.authority.issue("alice");
    for (version, ours) in VERSIONS {
        for auth in [false, true] {
            let (addr, server) = rustls_server(&world, version, auth, 4);
            let client =
                world.client().alpn(["http/1.1"]).client_certificate(alice.chain(), alice.key()).build().unwrap();
            for resumed in [false, true, true] {
                let facts = ask_once(&client, addr, "localhost").unwrap();
                assert_eq!((facts.version(), facts.resumed()), (ours, resumed), "auth {auth}");
                assert_eq!(facts.alpn(), Some(&b"http/1.1"[..]));
                assert_eq!(facts.peer_common_name(), Some("localhost"));
            }
            // Nobody's certificate: refused where one is asked for.
            let anonymous = ask_once(&world.client().build().unwrap(), addr, "localhost");
            assert_eq!(anonymous.is_err(), auth, "{ours}");
            let seen = server.join().unwrap();
            for (i, seen) in seen[..3].iter().enumerate() {
                let seen = seen.as_ref().unwrap();
                assert_eq!((seen.resumed, seen.name.as_deref()), (i > 0, Some("localhost")), "{ours}");
                assert_eq!(seen.alpn.as_deref(), Some(&b"http/1.1"[..]));
                let shown = auth.then(|| alice.certificate.to_der().unwrap());
                assert_eq!(seen.certificate, shown, "{ours}, connection {i}");
            }
            assert_eq!(seen[3].is_err(), auth);
        }
    }
}

#[test]
fn a_server_of_rustls_that_nobody_knows_is_refused() {
    let _case = Case::start();
    let world = World::new();
    let (addr, server) = rustls_server(&world, &TLS13, false, 2);
    for (client, host, reason) in [
        (World::new().client(), "localhost", "unable to get local issuer"),
        (world.client(), "other.example", "ostname"),
    ] {
        let error = ask_once(&client.build().unwrap(), addr, host).unwrap_err();
        assert!(matches!(TlsError::of(&error), Some(TlsError::Handshake { .. })), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    for seen in server.join().unwrap() {
        let error = seen.err().expect("refused by the client");
        assert!(error.to_string().contains("AlertReceived") || error.to_string().contains("alert"), "{error}");
    }
}
