//! OpenSSL's client and server against ends by the kernel.

use super::files::file;
use super::{BOTH, assert_asked, kernel_has_tls, kernel_renews, tls_stat};
use crate::client::HANG;
use crate::interop::{Files, Program, assert_reverses, has};
use crate::servers::{World, echo, serve};
use boring::sha::sha256;
use epoxide_tests_e2e::{Case, wait_until};
use epoxide_tls::{Ktls, TlsConnection, TlsError};
use std::fs::File;
use std::io::Write;

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
                    assert_reverses(&mut conn).await;
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

/// OpenSSL's client renews its keys (`k`), and asks for new ones (`K`): a kernel that keeps its own ends with a close_notify.
#[test]
fn openssl_s_client_renews_its_keys() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "ktls_keys");
    let keeps = kernel_has_tls() && !kernel_renews();
    for (ktls, command) in BOTH.into_iter().flat_map(|ktls| [(ktls, "k\n"), (ktls, "K\n")]) {
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, ends) = serve(&case, &config, echo);
        let (addr, ca) = (server.addr().to_string(), files.path("ca.pem"));
        let common = ["s_client", "-connect", &addr, "-CAfile", &ca, "-msg", "-servername", "localhost", "-tls1_3"];
        let ended = keeps && (ktls == Ktls::TxRx || command == "K\n");
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
        match ends.recv_timeout(HANG).unwrap() {
            Ok(()) => assert!(!(keeps && ktls == Ktls::TxRx)),
            Err(error) => {
                assert!(keeps && ktls == Ktls::TxRx, "{ktls:?}: {error}");
                assert_eq!(TlsError::of(&error), Some(&TlsError::KeyUpdate));
            }
        }
        assert_asked(&config, 1);
    }
}

/// OpenSSL's client ends in good order (`Q`: a close_notify), or is killed.
#[test]
fn openssl_s_client_ends_or_is_cut() {
    let case = Case::start();
    if !has("openssl", "version") {
        return;
    }
    let world = World::new();
    let files = Files::of(&world, "ktls_ends");
    for (ktls, version) in BOTH.into_iter().flat_map(|ktls| [(ktls, "-tls1_2"), (ktls, "-tls1_3")]) {
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, ends) = serve(&case, &config, echo);
        let (addr, ca) = (server.addr().to_string(), files.path("ca.pem"));
        let common = ["s_client", "-connect", &addr, "-CAfile", &ca, "-servername", "localhost", version];
        for cut in [false, true] {
            let mut client = Program::start("openssl", &common);
            client.type_in("one\n");
            client.expect("\none");
            if cut {
                drop(client);
                let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
                assert_eq!(TlsError::of(&error), Some(&TlsError::Truncated), "{ktls:?} {version}");
            } else {
                // sleep: as above.
                std::thread::sleep(std::time::Duration::from_millis(150));
                client.type_in("Q\n");
                client.end();
                ends.recv_timeout(HANG).unwrap().unwrap();
            }
        }
        assert_asked(&config, 2);
    }
}
