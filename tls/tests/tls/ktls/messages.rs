//! Messages of the handshake behind the handshake (RFC 8446, 4.6), cut over records and in floods, to a kernel that decrypts.
//! Without the kernel it is BoringSSL that reads them.

use super::maker::Maker;
use super::{kernel_has_tls, kernel_renews};
use crate::client::{self, HANG, try_connect};
use crate::servers::{World, echo, serve};
use boring::ssl::{Ssl, SslContext, SslContextBuilder, SslMethod, SslStream};
use epoxide_tests_e2e::Case;
use epoxide_tls::{Ktls, TlsConfig, TlsError};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const DATA: u8 = 23;
const HANDSHAKE: u8 = 22;
const SUITE: &str = "TLS_AES_128_GCM_SHA256";

/// Where a line of the key log is kept.
fn log_into(context: &mut SslContextBuilder, label: &'static str) -> Arc<Mutex<String>> {
    let secret = Arc::new(Mutex::new(String::new()));
    let log = secret.clone();
    context.set_keylog_callback(move |_, line| {
        if line.starts_with(label) {
            line.clone_into(&mut log.lock().unwrap());
        }
    });
    secret
}

/// A server of its own making, for one session: behind its handshake it sends what `script` makes, and waits for the
/// client's end: how that was.
fn scripted_server(
    world: &World,
    script: impl FnOnce(&mut Maker) -> Vec<u8> + Send + 'static,
) -> (SocketAddr, JoinHandle<io::Result<usize>>) {
    scripted_server_then(world, script, |server, _| server.read(&mut [0; 1]))
}

/// The same; `then` says what it does afterwards.
pub(super) fn scripted_server_then(
    world: &World,
    script: impl FnOnce(&mut Maker) -> Vec<u8> + Send + 'static,
    then: impl FnOnce(&mut SslStream<TcpStream>, &mut Maker) -> io::Result<usize> + Send + 'static,
) -> (SocketAddr, JoinHandle<io::Result<usize>>) {
    let mut context = SslContext::builder(SslMethod::tls()).unwrap();
    context.set_certificate(&world.server.certificate).unwrap();
    context.set_private_key(&world.server.key).unwrap();
    let secret = log_into(&mut context, "SERVER_TRAFFIC_SECRET_0 ");
    let context = context.build();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let serving = std::thread::spawn(move || {
        let socket = listener.accept().unwrap().0;
        socket.set_read_timeout(Some(HANG)).unwrap();
        let mut server = SslStream::new(Ssl::new(&context).unwrap(), socket).unwrap();
        server.accept().unwrap();
        // A byte that says that the client's kernel has its keys. Its own tickets BoringSSL keeps for its first data.
        server.read_exact(&mut [0; 1]).unwrap();
        let mut maker = Maker::new(&secret.lock().unwrap());
        let records = script(&mut maker);
        // A client that has seen enough may be gone already.
        let _ = server.get_ref().write_all(&records);
        then(&mut server, &mut maker)
    });
    (addr, serving)
}

/// A client that the kernel decrypts for.
pub(super) fn client_of(world: &World) -> TlsConfig {
    world.client().suites([SUITE]).ktls(Ktls::TxRx).build().unwrap()
}

/// All that such a client reads until an end, and what that is.
fn read_all(config: &TlsConfig, addr: SocketAddr) -> (Vec<u8>, io::Result<()>) {
    epoxide::block_on(async {
        let mut conn = config.connect(addr, "localhost").await.unwrap();
        assert_eq!(conn.facts().kernel_rx(), kernel_has_tls());
        conn.send_all(b"x").await.unwrap();
        let mut all = Vec::new();
        loop {
            match conn.read().await {
                Ok(Some(data)) => all.extend_from_slice(&data),
                Ok(None) => break (all, Ok(())),
                Err(error) => break (all, Err(error)),
            }
        }
    })
}

/// A NewSessionTicket (RFC 8446, 4.6.1) whose body has `len` bytes; its ticket is `byte` over and over.
pub(super) fn ticket(len: usize, byte: u8) -> Vec<u8> {
    // Lifetime, age, a nonce of one byte, the ticket's length; behind it no extensions.
    let ticket = len - 4 - 4 - 2 - 2 - 2;
    let [high, low] = u16::try_from(ticket).unwrap().to_be_bytes();
    let [_, a, b, c] = u32::try_from(len).unwrap().to_be_bytes();
    let begin = [4, a, b, c, 0, 0, 28, 32, 1, 2, 3, 4, 1, byte, high, low];
    [&begin[..], &vec![byte; ticket], &[0, 0]].concat()
}

fn close_notify(maker: &mut Maker) -> Vec<u8> {
    maker.record(21, &[1, 0])
}

/// The messages in pieces of `size` bytes, each a record.
fn in_pieces(maker: &mut Maker, messages: &[u8], size: usize) -> Vec<u8> {
    messages.chunks(size).flat_map(|piece| maker.record(HANDSHAKE, piece)).collect()
}

/// The first bytes of the next client: it offers the tickets that it has.
fn hello_of(config: &TlsConfig) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let taking = std::thread::spawn(move || {
        let mut socket: TcpStream = listener.accept().unwrap().0;
        socket.set_read_timeout(Some(HANG)).unwrap();
        let mut header = [0; 5];
        socket.read_exact(&mut header).unwrap();
        let mut hello = vec![0; usize::from(u16::from_be_bytes([header[3], header[4]]))];
        socket.read_exact(&mut hello).unwrap();
        hello
    });
    epoxide::block_on(config.connect(addr, "localhost")).unwrap_err();
    taking.join().unwrap()
}

#[test]
fn tickets_are_taken_wherever_they_are_cut() {
    let case = Case::start();
    let world = World::new();
    let tickets = || [ticket(300, 1), ticket(2000, 2), ticket(50, 3)].concat();
    // Whole, one byte into the next, in headers, a byte at a time at the end, longer than a record.
    type Cut = fn(&mut Maker, &[u8]) -> Vec<u8>;
    let cuts: [Cut; 5] = [
        |maker, all| in_pieces(maker, all, 16_384),
        |maker, all| in_pieces(maker, all, 305),
        |maker, all| in_pieces(maker, all, 101),
        |maker, all| {
            let (most, last) = all.split_at(all.len() - 20);
            [in_pieces(maker, most, 3000), in_pieces(maker, last, 1)].concat()
        },
        |maker, all| in_pieces(maker, &[all, &ticket(16_384, 4)].concat(), 16_384),
    ];
    for (at, cut) in cuts.into_iter().enumerate() {
        let config = client_of(&world);
        let (addr, serving) = scripted_server(&world, move |maker| {
            [maker.record(DATA, b"one"), cut(maker, &tickets()), maker.record(DATA, b"two"), close_notify(maker)]
                .concat()
        });
        let (all, end) = read_all(&config, addr);
        assert!(end.is_ok() && all == b"onetwo", "cut {at}: {:?}, {end:?}", String::from_utf8_lossy(&all));
        drop(serving.join().unwrap());
        // The newest is kept and offered: it was taken, and whole.
        let newest: &[u8] = if at == 4 { &[4; 8000] } else { &[3; 36] };
        let hello = hello_of(&config);
        assert!(hello.windows(newest.len()).any(|part| part == newest), "cut {at}: the ticket is not offered");
    }
    drop(case);
}

/// What ends a session, with the error's words where the kernel decrypts, and the alert.
#[test]
fn what_is_no_message_ends_the_session() {
    let case = Case::start();
    let world = World::new();
    let cut_by = |maker: &mut Maker, kind, body: &[u8]| {
        [maker.record(HANDSHAKE, &ticket(300, 1)[..100]), maker.record(kind, body)].concat()
    };
    type Script = Box<dyn FnOnce(&mut Maker) -> Vec<u8> + Send>;
    let cases: [(&str, &str, &str, Script); 5] = [
        (
            "a ticket that is too long",
            "16385 bytes, where 16384 are the most",
            "ILLEGAL_PARAMETER",
            Box::new(|maker| in_pieces(maker, &ticket(16_385, 1), 16_384)),
        ),
        (
            "data between the parts of a ticket",
            "cut by another record",
            "UNEXPECTED_MESSAGE",
            Box::new(move |maker| cut_by(maker, DATA, b"data")),
        ),
        (
            "an alert between the parts of a ticket",
            "cut by another record",
            "UNEXPECTED_MESSAGE",
            Box::new(move |maker| cut_by(maker, 21, &[1, 90])),
        ),
        (
            "an unknown message",
            "does not belong here",
            "UNEXPECTED_MESSAGE",
            Box::new(|maker| maker.record(HANDSHAKE, &[99, 0, 0, 0])),
        ),
        (
            "something behind a KeyUpdate",
            "does not belong here",
            "UNEXPECTED_MESSAGE",
            Box::new(|maker| maker.record(HANDSHAKE, &[24, 0, 0, 1, 0, 4])),
        ),
    ];
    for (what, words, alert, script) in cases {
        // BoringSSL takes a longer ticket, and an alert that ends nothing.
        let ours_only = alert == "ILLEGAL_PARAMETER" || what.starts_with("an alert");
        if ours_only && !kernel_has_tls() {
            continue;
        }
        let (addr, serving) = scripted_server(&world, script);
        let (all, end) = read_all(&client_of(&world), addr);
        let error = end.expect_err(what);
        assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{what}: {error}");
        assert!(!kernel_has_tls() || error.to_string().contains(words), "{what}: {error}");
        assert!(all.is_empty(), "{what}: {all:?}");
        let told = serving.join().unwrap().expect_err(what);
        assert!(told.to_string().contains(alert), "{what}: {told}");
    }
    // The FIN comes within a message.
    let (addr, serving) = scripted_server(&world, |maker| maker.record(HANDSHAKE, &ticket(300, 1)[..100]));
    let config = client_of(&world);
    epoxide::block_on(async {
        let mut conn = config.connect(addr, "localhost").await.unwrap();
        conn.send_all(b"x").await.unwrap();
        conn.shutdown().await.unwrap();
        assert_eq!(TlsError::of(&conn.read().await.unwrap_err()), Some(&TlsError::Truncated));
    });
    serving.join().unwrap().unwrap();
    drop(case);
}

/// Tickets without an end would keep one read, and its reactor, busy for ever. Some are nothing.
#[test]
fn a_flood_of_tickets_is_bounded() {
    let case = Case::start();
    let world = World::new();
    for (n, floods) in [(32, false), (33, true), (2000, true)] {
        let (addr, serving) = scripted_server(&world, move |maker| {
            let few: Vec<u8> = (0..3).flat_map(|n| maker.record(HANDSHAKE, &ticket(200, n))).collect();
            let begin = [few, maker.record(DATA, b"one")].concat();
            let many: Vec<u8> = (0..n).flat_map(|n| maker.record(HANDSHAKE, &ticket(200, n as u8))).collect();
            [begin, many, maker.record(DATA, b"two"), close_notify(maker)].concat()
        });
        let config = client_of(&world);
        let (all, end) = read_all(&config, addr);
        if kernel_has_tls() && floods {
            let error = end.unwrap_err();
            assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{error}");
            assert!(error.to_string().contains("too many records without data"), "{n}: {error}");
            assert_eq!(all, b"one");
        } else {
            assert!(end.is_ok() && all == b"onetwo", "{n}: {end:?}");
        }
        // An alert, or the reset of what was not read.
        let told = serving.join().unwrap();
        assert_eq!(told.is_err(), kernel_has_tls() && floods, "{n}: {told:?}");
    }
    drop(case);
}

/// What a client of its own making sends to an echo that the kernel decrypts for, and its end there.
fn echoed(world: &World, case: &Case, script: impl FnOnce(&mut Maker) -> Vec<u8>) -> (Vec<u8>, io::Result<()>) {
    let config = world.options().suites([SUITE]).ktls(Ktls::TxRx).build().unwrap();
    let (server, ends) = serve(case, &config, |mut conn| async move {
        conn.send_all(b"!").await?;
        echo(conn).await
    });
    let mut secret = Arc::default();
    let context = client::context(&world.authority, |context| {
        secret = log_into(context, "CLIENT_TRAFFIC_SECRET_0 ");
    });
    let mut client = try_connect(server.addr(), &context, Some("localhost")).unwrap();
    // The kernel has its keys now.
    client.read_exact(&mut [0; 1]).unwrap();
    let mut maker = Maker::new(&secret.lock().unwrap());
    let records = script(&mut maker);
    let _ = client.get_ref().write_all(&records);
    let mut back = Vec::new();
    let _ = client.read_to_end(&mut back);
    (back, ends.recv_timeout(HANG).unwrap())
}

/// A KeyUpdate in two records: legal, and nobody does it. A kernel that takes new keys reads nothing behind its first bytes.
#[test]
fn a_key_update_in_pieces_has_its_own_error() {
    let case = Case::start();
    let world = World::new();
    for at in [1, 2, 4] {
        let (back, end) = echoed(&world, &case, |maker| {
            let (begin, rest) = [24, 0, 0, 1, 0].split_at(at);
            let before =
                [maker.record(DATA, b"one"), maker.record(HANDSHAKE, begin), maker.record(HANDSHAKE, rest)].concat();
            maker.renew();
            [before, maker.record(DATA, b"two"), close_notify(maker)].concat()
        });
        match (kernel_has_tls(), kernel_renews()) {
            (false, _) => assert!(end.is_ok() && back == b"onetwo", "{end:?}"),
            (true, renews) => {
                let error = end.unwrap_err();
                let expected = if renews { TlsError::KeysExpired } else { TlsError::KeyUpdate };
                assert_eq!(TlsError::of(&error), Some(&expected), "cut at {at}: {error}");
                assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            }
        }
    }
}

/// A KeyUpdate behind a ticket, in one record: the kernel looks at the first message only, and gets its keys all the same.
#[test]
fn a_key_update_behind_a_ticket() {
    let case = Case::start();
    let world = World::new();
    let (addr, serving) = scripted_server(&world, |maker| {
        let both = [&ticket(200, 1)[..], &[24, 0, 0, 1, 0]].concat();
        let before = [maker.record(DATA, b"one"), maker.record(HANDSHAKE, &both)].concat();
        maker.renew();
        [before, maker.record(DATA, b"two"), close_notify(maker)].concat()
    });
    let (all, end) = read_all(&client_of(&world), addr);
    drop(serving.join().unwrap());
    if kernel_has_tls() && !kernel_renews() {
        assert_eq!(TlsError::of(&end.unwrap_err()), Some(&TlsError::KeyUpdate));
        assert_eq!(all, b"one");
    } else {
        assert!(end.is_ok() && all == b"onetwo", "{:?}, {end:?}", String::from_utf8_lossy(&all));
    }
    drop(case);
}

/// A client's messages that are none of a client's.
#[test]
fn a_server_takes_nothing_but_key_updates() {
    let case = Case::start();
    let world = World::new();
    for message in [&ticket(200, 1)[..], &[24, 0, 0, 2, 0, 0], &[24, 0, 0, 1, 7], &[1, 0, 0, 0]] {
        let (back, end) = echoed(&world, &case, |maker| {
            [maker.record(DATA, b"one"), maker.record(HANDSHAKE, message), maker.record(DATA, b"two")].concat()
        });
        let error = end.unwrap_err();
        assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{message:?}: {error}");
        // BoringSSL meets both in one look, and then sends nothing more.
        assert_eq!(back, if kernel_has_tls() { &b"one"[..] } else { b"" }, "{message:?}");
    }
}

/// Data of no bytes are legal (RFC 8446, 5.1). A kernel that decrypts reads past them, and says 0 at a record of another kind
/// behind them, as it does at a FIN.
#[test]
fn records_of_no_bytes_are_no_end() {
    let case = Case::start();
    let world = World::new();
    type Script = fn(&mut Maker) -> Vec<u8>;
    let scripts: [Script; 4] = [
        |maker| maker.record(DATA, b"one"),
        |maker| [maker.record(DATA, b""), maker.record(DATA, b"one"), maker.record(DATA, b"")].concat(),
        // user_canceled, which ends nothing.
        |maker| [maker.record(DATA, b""), maker.record(21, &[1, 90]), maker.record(DATA, b"one")].concat(),
        |maker| {
            let before = [maker.record(DATA, b""), maker.record(HANDSHAKE, &[24, 0, 0, 1, 0])].concat();
            maker.renew();
            [before, maker.record(DATA, b""), maker.record(DATA, b"one")].concat()
        },
    ];
    for (at, script) in scripts.into_iter().enumerate() {
        let (back, end) =
            echoed(&world, &case, |maker| [script(maker), maker.record(DATA, b""), close_notify(maker)].concat());
        if at == 3 && kernel_has_tls() && !kernel_renews() {
            assert_eq!(TlsError::of(&end.unwrap_err()), Some(&TlsError::KeyUpdate));
        } else {
            assert!(end.is_ok() && back == b"one", "{at}: {:?}, {end:?}", String::from_utf8_lossy(&back));
        }
    }
}
