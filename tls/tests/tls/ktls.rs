//! Kernel TLS. On a kernel without it every session falls back, and behaves in the same way; `ci/ktls` runs the tests again
//! in a virtual machine whose kernel has it.
//!
//! What only the kernel can show is skipped, loudly, where it has no TLS; with `EPOXIDE_REQUIRE_KTLS` set it fails instead.

use crate::client::{self, Client, GET, HANG, ask, connect};
use crate::interop::{Files, Program, has};
use crate::ours::ask_once;
use crate::servers::{World, answer_requests, echo, serve};
use boring::sha::sha256;
use boring::ssl::{ShutdownState, SslVersion};
use epoxide::Connection;
use epoxide_tests_e2e::{Case, moved_to_workers, rounds, wait_until};
use epoxide_tls::{ClientAuth, Ktls, TlsConfig, TlsConnection, TlsError, TlsVersion};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Has the kernel TLS? Decides what a test expects.
fn kernel_has_tls() -> bool {
    let known = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_ulp").unwrap_or_default();
    let there = known.split_whitespace().any(|name| name == "tls");
    assert!(there || std::env::var_os("EPOXIDE_REQUIRE_KTLS").is_none(), "no tls ULP among {known:?}");
    there
}

/// Says that a test shows nothing here.
fn skipped() -> bool {
    let skipped = !kernel_has_tls();
    if skipped {
        eprintln!("skipped: no tls ULP");
    }
    skipped
}

/// A counter of the kernel's.
fn tls_stat(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tls_stat").unwrap_or_default();
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?).unwrap_or(0)
}

/// As many sessions as `n` asked for the kernel's keys: all got them, or all fell back.
#[track_caller]
fn assert_asked(config: &TlsConfig, n: u64) {
    let expected = if kernel_has_tls() { (n, 0) } else { (0, n) };
    assert_eq!((config.ktls_sessions(), config.ktls_fallbacks()), expected, "(by the kernel, by this process)");
}

/// What the kernel may be asked for.
const BOTH: [Ktls; 2] = [Ktls::Tx, Ktls::TxRx];

fn context(world: &World) -> boring::ssl::SslContext {
    client::context(&world.authority, |_| {})
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 251) as u8).collect()
}

/// Sends and receives at once, in pieces that fit neither records nor blocks.
fn echo_through(client: &mut Client, all: &[u8]) {
    for piece in all.chunks(50_021) {
        client.write_all(piece).unwrap();
        let mut back = vec![0; piece.len()];
        client.read_exact(&mut back).unwrap();
        assert!(back == piece, "the echo differs");
    }
}

const SUITES: [(TlsVersion, &str); 6] = [
    (TlsVersion::V1_3, "TLS_AES_128_GCM_SHA256"),
    (TlsVersion::V1_3, "TLS_AES_256_GCM_SHA384"),
    (TlsVersion::V1_3, "TLS_CHACHA20_POLY1305_SHA256"),
    (TlsVersion::V1_2, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"),
    (TlsVersion::V1_2, "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"),
    (TlsVersion::V1_2, "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256"),
];

#[test]
fn every_suite_of_both_versions_on_reactor_and_worker() {
    let case = Case::start();
    let world = World::new();
    let (before, faults) = ((tls_stat("TlsTxSw"), tls_stat("TlsRxSw")), tls_stat("TlsDecryptError"));
    for (ktls, on_workers) in [(Ktls::Tx, false), (Ktls::Tx, true), (Ktls::TxRx, false), (Ktls::TxRx, true)] {
        for (version, suite) in SUITES {
            let config = world.options().suites([suite]).ktls(ktls).build().unwrap();
            let (tell, facts) = channel();
            let accept = config.clone();
            let handler = move |conn: Connection| {
                let (accept, tell) = (accept.clone(), tell.clone());
                async move {
                    let conn = accept.accept(conn).await?;
                    tell.send(conn.facts().clone()).unwrap();
                    echo(conn).await
                }
            };
            let server = if on_workers {
                moved_to_workers(&case, handler)
            } else {
                epoxide_tests_e2e::Server::start(&case, |builder| {
                    builder.listen(epoxide_tests_e2e::loopback(), handler);
                })
            };
            let mut client = connect(server.addr(), &context(&world));
            echo_through(&mut client, &pattern(200_000));
            let facts = facts.recv_timeout(HANG).unwrap();
            assert_eq!((facts.version(), facts.suite(), facts.kernel_tx()), (version, suite, kernel_has_tls()));
            assert_eq!(facts.kernel_rx(), kernel_has_tls() && ktls == Ktls::TxRx);
            assert_asked(&config, 1);
            client.shutdown().unwrap();
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the server's end");
            assert!(client.get_shutdown().contains(ShutdownState::RECEIVED), "a close_notify: {suite}");
        }
    }
    if kernel_has_tls() {
        assert_eq!((tls_stat("TlsTxSw"), tls_stat("TlsRxSw")), (before.0 + 24, before.1 + 12));
        assert_eq!(tls_stat("TlsDecryptError"), faults);
    }
}

/// Tickets consume numbers of records: they stay on.
#[test]
fn sessions_are_resumed_at_both_ends() {
    let case = Case::start();
    let world = World::new();
    for (version, ktls) in
        [TlsVersion::V1_3, TlsVersion::V1_2].into_iter().flat_map(|version| BOTH.map(|ktls| (version, ktls)))
    {
        let config = world.options().max_version(version).ktls(ktls).build().unwrap();
        let (server, _ends) = serve(&case, &config, answer_requests);
        let client = world.client().ktls(ktls).build().unwrap();
        let asked: Vec<_> = (0..3).map(|_| ask_once(&client, server.addr(), "localhost").unwrap()).collect();
        let resumed: Vec<_> = asked.iter().map(|facts| facts.resumed()).collect();
        assert_eq!(resumed, [false, true, true], "{version}");
        assert!(asked.iter().all(|facts| facts.kernel_tx() == kernel_has_tls()));
        assert!(asked.iter().all(|facts| facts.kernel_rx() == (kernel_has_tls() && ktls == Ktls::TxRx)));
        assert_asked(&config, 3);
        assert_asked(&client, 3);
    }
    // Without tickets the first number is another one.
    let config = world.options().resumption(false).ktls(Ktls::Tx).build().unwrap();
    let (server, _ends) = serve(&case, &config, answer_requests);
    let text = ask(&mut connect(server.addr(), &context(&world)), GET).unwrap();
    assert!(text.ends_with("tls-ok"));
    assert_asked(&config, 1);
}

/// The request comes in one piece with the end of the handshake, or a byte at a time.
#[test]
fn a_request_that_comes_with_the_handshake_is_served_once() {
    let case = Case::start();
    let world = World::new();
    for (ktls, byte_by_byte) in BOTH.into_iter().flat_map(|ktls| [(ktls, false), (ktls, true)]) {
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, ends) = serve(&case, &config, answer_requests);
        let mut client = connect(server.addr(), &context(&world));
        if byte_by_byte {
            for byte in GET.as_bytes() {
                client.write_all(&[*byte]).unwrap();
            }
        } else {
            client.write_all(GET.repeat(3).as_bytes()).unwrap();
        }
        client.shutdown().unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text.matches("tls-ok").count(), if byte_by_byte { 1 } else { 3 }, "{text}");
        ends.recv_timeout(HANG).unwrap().unwrap();
        assert_asked(&config, 1);
    }
}

/// A file with a pattern, and the descriptor to send it by.
fn file(len: usize) -> (Arc<OwnedFd>, Vec<u8>) {
    let content = pattern(len);
    (memory(&content), content)
}

/// A nameless file.
fn memory(content: &[u8]) -> Arc<OwnedFd> {
    use std::sync::atomic::{AtomicUsize, Ordering};
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let name = format!("epoxide-ktls-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, content).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    Arc::new(OwnedFd::from(file))
}

/// Reads to the end, which must be a close_notify.
fn read_out(client: &mut Client) -> Vec<u8> {
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert!(client.get_shutdown().contains(ShutdownState::RECEIVED), "cut after {} bytes", all.len());
    all
}

#[test]
fn a_file_goes_out_behind_what_is_staged_and_before_what_follows() {
    let case = Case::start();
    let world = World::new();
    let (fd, content) = file(1 << 20);
    for ktls in [Ktls::Off, Ktls::Tx] {
        for on_workers in [false, true] {
            let config = world.options().ktls(ktls).build().unwrap();
            let (accept, fd) = (config.clone(), fd.clone());
            let handler = move |conn: Connection| {
                let (accept, fd) = (accept.clone(), fd.clone());
                async move {
                    let mut conn = accept.accept(conn).await?;
                    let size = 1 << 20;
                    for range in [0..size + 1, 5..4] {
                        let error = conn.send_file(fd.clone(), range).await.unwrap_err();
                        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
                    }
                    conn.stage(b"head:")?;
                    conn.send_file(fd.clone(), 0..0).await?;
                    conn.send_file(fd.clone(), 3..size - 10).await?;
                    conn.stage(b":tail")?;
                    // Never polled: what is staged goes out, the file does not.
                    drop(conn.send_file(fd, ..));
                    conn.shutdown().await
                }
            };
            let server = if on_workers {
                moved_to_workers(&case, handler)
            } else {
                epoxide_tests_e2e::Server::start(&case, |builder| {
                    builder.listen(epoxide_tests_e2e::loopback(), handler);
                })
            };
            let all = read_out(&mut connect(server.addr(), &context(&world)));
            let expected = [b"head:", &content[3..(1 << 20) - 10], b":tail"].concat();
            assert!(all == expected, "{ktls:?}: {} of {} bytes", all.len(), expected.len());
            let by_sendfile = server.stats().sendfiles;
            let kernel = ktls == Ktls::Tx && kernel_has_tls();
            assert_eq!(by_sendfile > 0, kernel, "{by_sendfile} calls of sendfile");
        }
    }
}

/// A drop in the middle, and a file that shrinks: what the client has is no whole.
#[test]
fn a_file_that_is_cut_does_not_look_whole() {
    let case = Case::start();
    let world = World::new();
    for ktls in [Ktls::Off, Ktls::Tx] {
        for shrink in [false, true] {
            let config = world.options().ktls(ktls).build().unwrap();
            let (fd, _) = file(4 << 20);
            let (server, ends) = serve(&case, &config, move |mut conn: TlsConnection| {
                let fd = fd.clone();
                async move {
                    if shrink {
                        let mut sending = std::pin::pin!(conn.send_file(fd.clone(), ..));
                        let once = std::future::poll_fn(|cx| std::task::Poll::Ready(sending.as_mut().poll(cx)));
                        assert!(once.await.is_pending(), "4 MiB in one poll");
                        File::from(fd.try_clone().unwrap()).set_len(100).unwrap();
                        return sending.await;
                    }
                    let mut sending = Box::pin(conn.send_file(fd, ..));
                    let once = std::future::poll_fn(|cx| std::task::Poll::Ready(sending.as_mut().poll(cx)));
                    assert!(once.await.is_pending(), "4 MiB in one poll");
                    drop(sending);
                    conn.flush().await
                }
            });
            let mut client = connect(server.addr(), &context(&world));
            let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
            let kind = if shrink { ErrorKind::UnexpectedEof } else { ErrorKind::ConnectionAborted };
            assert_eq!(error.kind(), kind, "{ktls:?}: {error}");
            let mut all = Vec::new();
            let end = client.read_to_end(&mut all);
            assert!(end.is_err() && all.len() < 4 << 20, "{end:?} after {} bytes", all.len());
        }
    }
}

/// Nothing is left behind in the kernel when the FIN goes: the client is slow, the buffers are small.
#[test]
fn a_slow_client_gets_everything_before_the_end() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::Tx).build().unwrap();
    for len in [70_000, 300_001] {
        let accept = config.clone();
        let content = pattern(len);
        let staged = content.clone();
        let server = epoxide_tests_e2e::Server::start(&case, |builder| {
            builder.listen(epoxide_tests_e2e::loopback(), move |conn: Connection| {
                let (accept, staged) = (accept.clone(), staged.clone());
                async move {
                    conn.set_send_buffer_size(8192)?;
                    let mut conn = accept.accept(conn).await?;
                    conn.stage(&staged)?;
                    // The end is asked for while nearly all is queued.
                    let _ = conn.try_flush();
                    conn.close_handle().close();
                    conn.read().await.map(drop)
                }
            });
        });
        for _ in 0..(rounds() / 100).max(5) {
            let mut client = connect(server.addr(), &context(&world));
            let mut all = Vec::new();
            let mut chunk = [0; 3000];
            loop {
                match client.read(&mut chunk).unwrap() {
                    0 => break,
                    n => all.extend_from_slice(&chunk[..n]),
                }
                if all.len() % 10 == 0 {
                    std::thread::yield_now();
                }
            }
            assert!(all == content, "{} of {len} bytes", all.len());
            assert!(client.get_shutdown().contains(ShutdownState::RECEIVED), "no close_notify");
        }
    }
}

/// The alert of a failed read goes out through the kernel, with the right number.
#[test]
fn a_bad_record_is_answered_with_an_alert() {
    let case = Case::start();
    let world = World::new();
    let versions = [SslVersion::TLS1_2, SslVersion::TLS1_3];
    for (ktls, version) in BOTH.into_iter().flat_map(|ktls| versions.map(|version| (ktls, version))) {
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, ends) = serve(&case, &config, answer_requests);
        let context = client::context(&world.authority, |context| {
            context.set_max_proto_version(Some(version)).unwrap();
        });
        let mut client = connect(server.addr(), &context);
        ask(&mut client, GET).unwrap();
        let mut record = vec![23, 3, 3, 0, 40];
        record.extend_from_slice(&[7; 40]);
        client.get_ref().write_all(&record).unwrap();
        let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
        assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{error}");
        if kernel_has_tls() && ktls == Ktls::TxRx {
            // The kernel then sends nothing more, either: the connection ends without a word.
            assert!(error.to_string().contains("a bad record"), "{error}");
            let end = client.read(&mut [0; 16]);
            assert!(!client.get_shutdown().contains(ShutdownState::RECEIVED), "{end:?}");
        } else {
            let error = client.read(&mut [0; 16]).unwrap_err();
            assert!(error.to_string().contains("ALERT_BAD_RECORD_MAC"), "{error}");
        }
        assert_asked(&config, 1);
    }
}

/// What is no record at all: an error of its own, for the reader and for whoever writes afterwards.
#[test]
fn what_is_no_record_ends_the_session_both_ways() {
    let case = Case::start();
    let world = World::new();
    for ktls in BOTH {
        let (server, ends) = serve(&case, &world.options().ktls(ktls).build().unwrap(), |mut conn| async move {
            let first = conn.read().await.map(drop).unwrap_err();
            conn.stage(b"more")?;
            let written = conn.flush().await.unwrap_err();
            assert_eq!(TlsError::of(&written), TlsError::of(&first), "{written}");
            Err(first)
        });
        for bytes in [&GET.as_bytes()[..], &[23, 3, 3, 0x48, 0, 1, 2, 3], &[99, 3, 3, 0, 1, 0]] {
            let client = connect(server.addr(), &context(&world));
            let mut socket = client.get_ref();
            socket.write_all(bytes).unwrap();
            // A kernel waits for a whole record where the length is one that may be.
            socket.shutdown(std::net::Shutdown::Write).unwrap();
            let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
            assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{ktls:?} {bytes:?}: {error}");
        }
    }
}

#[test]
fn a_fin_without_a_close_notify_is_a_cut() {
    let case = Case::start();
    let world = World::new();
    for ktls in BOTH {
        let (server, ends) = serve(&case, &world.options().ktls(ktls).build().unwrap(), echo);
        for in_a_record in [false, true] {
            let mut client = connect(server.addr(), &context(&world));
            echo_through(&mut client, b"whole");
            if in_a_record {
                client.get_ref().write_all(&[23, 3, 3, 0, 40, 1, 2, 3]).unwrap();
            }
            client.get_ref().shutdown(std::net::Shutdown::Write).unwrap();
            let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
            assert_eq!(TlsError::of(&error), Some(&TlsError::Truncated), "{ktls:?}");
        }
    }
}

/// In TLS 1.3 a client's handshake is done before the server has looked at its certificate: the alert comes as a record.
#[test]
fn an_alert_is_an_error_that_names_it() {
    let case = Case::start();
    let world = World::new();
    let auth = world.options().client_auth(ClientAuth::Required, world.authority.chain());
    let (server, ends) = serve(&case, &auth.build().unwrap(), echo);
    for ktls in BOTH {
        let config = world.client().ktls(ktls).build().unwrap();
        let error = epoxide::block_on(async {
            let mut conn = config.connect(server.addr(), "localhost").await.unwrap();
            let by_kernel = conn.facts().kernel_rx();
            assert_eq!(by_kernel, kernel_has_tls() && ktls == Ktls::TxRx);
            let first = conn.read().await.map(drop).unwrap_err();
            assert_eq!(conn.read().await.map(drop).unwrap_err().to_string(), first.to_string());
            first
        });
        assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{error}");
        assert!(error.to_string().to_lowercase().replace('_', " ").contains("certificate required"), "{error}");
        assert!(ends.recv_timeout(HANG).unwrap().is_err());
    }
}

/// The kernel that decrypts keeps its keys, too: data before the peer's KeyUpdate is read, then that is the error.
#[test]
fn a_peer_that_renews_its_keys_ends_a_session_that_the_kernel_decrypts() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::TxRx).build().unwrap();
    let (server, ends) = serve(&case, &config, echo);
    let off = world.client().ktls(Ktls::Off).build().unwrap();
    epoxide::block_on(async {
        let mut conn = off.connect(server.addr(), "localhost").await.unwrap();
        conn.send_all(b"before").await.unwrap();
        assert_eq!(&conn.read().await.unwrap().unwrap()[..], b"before");
        conn.update_keys(false).unwrap();
        conn.send_all(b"after").await.unwrap();
        let back = conn.read().await.unwrap().map(|data| data.to_vec());
        assert_eq!(back, (!kernel_has_tls()).then(|| b"after".to_vec()), "a clean end, or the echo");
        if back.is_some() {
            conn.shutdown().await.unwrap();
        }
    });
    match ends.recv_timeout(HANG).unwrap() {
        Ok(()) => assert!(!kernel_has_tls()),
        Err(error) => {
            assert!(kernel_has_tls(), "{error}");
            assert_eq!(TlsError::of(&error), Some(&TlsError::KeyUpdate));
        }
    }
}

/// What a handler that is gone leaves unread is taken before the socket closes: the last answer arrives whole.
#[test]
fn letting_go_takes_the_peers_end() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::TxRx).build().unwrap();
    let (server, ends) = serve(&case, &config, |mut conn: TlsConnection| async move {
        conn.read().await?.expect("a request");
        conn.send_all(&pattern(100_000)).await
    });
    let mut client = connect(server.addr(), &context(&world));
    client.write_all(b"request").unwrap();
    ends.recv_timeout(HANG).unwrap().unwrap();
    client.write_all(&pattern(50_000)).unwrap();
    client.shutdown().unwrap();
    assert!(read_out(&mut client) == pattern(100_000));
    drop(client);
    assert!(wait_until(HANG, || server.stats().open == 0), "it lingers");
}

/// The kernel keeps its keys: who asks for new ones gets a clean end. Without the kernel they are renewed.
#[test]
fn a_peer_that_asks_for_new_keys() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::Tx).build().unwrap();
    for ask_peer in [false, true] {
        let (server, ends) = serve(&case, &config, |mut conn: TlsConnection| async move {
            let refused = conn.update_keys(false);
            if conn.facts().kernel_tx() {
                let error = refused.unwrap_err();
                assert!(matches!(TlsError::of(&error), Some(TlsError::Encrypt { .. })), "{error}");
            }
            let mut seen = 0;
            while let Some(data) = conn.read().await? {
                seen += data.len();
                if seen == 3 {
                    // Reading goes on.
                    conn.read().await?.expect("a fourth byte");
                }
                conn.stage(&data)?;
                conn.flush().await?;
            }
            conn.shutdown().await
        });
        let off = world.client().ktls(Ktls::Off).build().unwrap();
        let ended = kernel_has_tls() && ask_peer;
        epoxide::block_on(async {
            let mut conn = off.connect(server.addr(), "localhost").await.unwrap();
            conn.send_all(b"a").await.unwrap();
            assert_eq!(&conn.read().await.unwrap().unwrap()[..], b"a");
            conn.update_keys(ask_peer).unwrap();
            conn.send_all(b"bc").await.unwrap();
            conn.send_all(b"d").await.unwrap();
            let mut back = Vec::new();
            while back.len() < 2
                && let Some(data) = conn.read().await.unwrap()
            {
                back.extend_from_slice(&data);
            }
            assert_eq!(back.is_empty(), ended, "{back:?}");
            if !ended {
                conn.shutdown().await.unwrap();
                assert!(conn.read().await.unwrap().is_none());
            }
        });
        match ends.recv_timeout(HANG).unwrap() {
            Ok(()) => assert!(!ended),
            Err(error) => {
                assert!(ended, "{error}");
                assert_eq!(TlsError::of(&error), Some(&TlsError::KeyUpdate));
                assert_eq!(error.kind(), ErrorKind::Unsupported);
            }
        }
    }
    assert_asked(&config, 2);
}

/// It is said once, however many sessions fall back. In a process of its own, whose standard error can be read.
#[test]
fn a_fallback_is_said_once() {
    let case = Case::start();
    if kernel_has_tls() {
        eprintln!("skipped: this kernel has TLS, so nothing falls back");
        return;
    }
    let me = std::env::current_exe().unwrap();
    let arguments = ["--exact", "ktls::sessions_are_resumed_at_both_ends", "--nocapture"];
    let text = Program::start(me.to_str().unwrap(), &arguments).end();
    assert!(text.contains("1 passed"), "{text}");
    // Nine configurations, 25 sessions.
    assert_eq!(text.matches("epoxide-tls: kernel TLS is not used at all: ").count(), 9, "{text}");
    assert!(text.contains("modprobe tls"), "{text}");
    drop(case);
}

/// 16 MiB to OpenSSL's client.
#[test]
fn openssl_s_client_gets_a_file_from_the_kernel() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "ktls_file");
    let len: usize = 16 << 20;
    let (fd, content) = file(len);
    let digest = sha256(&content);
    drop(content);
    let before = tls_stat("TlsTxSw");
    for version in ["-tls1_2", "-tls1_3"] {
        let config = world.options().ktls(Ktls::Tx).build().unwrap();
        let fd = fd.clone();
        let (server, ends) = serve(&case, &config, move |mut conn: TlsConnection| {
            let fd = fd.clone();
            async move {
                conn.read().await?.expect("a line");
                conn.send_file(fd, ..).await?;
                conn.shutdown().await
            }
        });
        let (addr, ca, out) = (server.addr().to_string(), files.path("ca.pem"), files.path("out"));
        let common = ["s_client", "-connect", &addr, "-CAfile", &ca, "-verify_return_error", "-quiet"];
        let got = std::process::Command::new("openssl")
            .args(common)
            .args(["-servername", "localhost", version])
            .stdin(std::process::Stdio::piped())
            .stdout(File::create(&out).unwrap())
            .stderr(std::process::Stdio::null())
            .spawn();
        let mut client = got.unwrap();
        let mut stdin = client.stdin.take().unwrap();
        stdin.write_all(b"file\n").unwrap();
        ends.recv_timeout(HANG * 4).unwrap().unwrap();
        assert!(wait_until(HANG, || client.try_wait().unwrap().is_some()), "s_client hangs");
        drop(stdin);
        let received = std::fs::read(&out).unwrap();
        assert_eq!(received.len(), len, "{version}");
        assert_eq!(sha256(&received), digest, "{version}");
        assert_asked(&config, 1);
        let calls = server.stats().sendfiles;
        assert_eq!(calls >= 64, kernel_has_tls(), "{calls} calls of sendfile");
    }
    if kernel_has_tls() {
        assert_eq!(tls_stat("TlsTxSw"), before + 2);
    }
}

/// OpenSSL's server, and this side's client under kernel TLS; its answers to KeyUpdate are its own affair.
#[test]
fn openssl_s_server_and_a_client_by_the_kernel() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "ktls_server");
    for (version, ktls) in ["-tls1_2", "-tls1_3"].into_iter().flat_map(|version| BOTH.map(|ktls| (version, ktls))) {
        let (cert, key) = (files.path("server.pem"), files.path("server.key"));
        let common = ["s_server", "-accept", "127.0.0.1:0", "-cert", &cert, "-key", &key, "-rev", version];
        let mut server = Program::start("openssl", &common);
        let config = world.client().ktls(ktls).build().unwrap();
        let addr = server.accept_addr();
        let mut resumed = Vec::new();
        for _ in 0..2 {
            resumed.push(epoxide::block_on(async {
                let mut conn = config.connect(addr, "localhost").await.unwrap();
                for _ in 0..3 {
                    conn.send_all(b"stressed\n").await.unwrap();
                    let mut back = Vec::new();
                    while !back.ends_with(b"\n") {
                        back.extend_from_slice(&conn.read().await.unwrap().unwrap());
                    }
                    assert_eq!(back, b"desserts\n");
                }
                conn.shutdown().await.unwrap();
                while conn.read().await.unwrap().is_some() {}
                conn.facts().resumed()
            }));
        }
        assert_eq!(resumed, [false, true], "{version} {ktls:?}");
        assert_asked(&config, 2);
    }
    drop(case);
}

/// What OpenSSL's client sees: its own KeyUpdate (`k`) changes nothing, the end is a close_notify.
#[test]
fn openssl_s_client_renews_its_keys() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "ktls_keys");
    let config = world.options().ktls(Ktls::Tx).build().unwrap();
    let (server, ends) = serve(&case, &config, echo);
    let (addr, ca) = (server.addr().to_string(), files.path("ca.pem"));
    let common = ["s_client", "-connect", &addr, "-CAfile", &ca, "-msg", "-servername", "localhost", "-tls1_3"];
    for (command, ended) in [("k\n", false), ("K\n", kernel_has_tls())] {
        let mut client = Program::start("openssl", &common);
        client.type_in("one\n");
        client.expect("\none");
        client.type_in(command);
        client.expect("KeyUpdate");
        // sleep: s_client reads a command only at the start of what it reads at once.
        std::thread::sleep(std::time::Duration::from_millis(150));
        if !ended {
            client.type_in("two\n");
            client.expect("\ntwo");
            client.type_in("Q\n");
        }
        // A client that was told the end ends by itself.
        let text = client.end();
        assert_eq!(text.contains("<<< TLS 1.3, Alert [length 0002], warning close_notify"), ended, "{text}");
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
}

/// Control for all of the above, where the kernel takes part: it does.
#[test]
fn the_kernel_counts_what_it_encrypts() {
    let case = Case::start();
    if skipped() {
        return;
    }
    let world = World::new();
    for (ktls, more) in [(Ktls::Off, (0, 0)), (Ktls::Tx, (1, 0)), (Ktls::TxRx, (1, 1))] {
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, _ends) = serve(&case, &config, answer_requests);
        let before = (tls_stat("TlsTxSw"), tls_stat("TlsRxSw"));
        ask(&mut connect(server.addr(), &context(&world)), GET).unwrap();
        let after = (tls_stat("TlsTxSw"), tls_stat("TlsRxSw"));
        assert_eq!(after, (before.0 + more.0, before.1 + more.1), "{ktls:?}");
    }
}
