//! How sessions of kernel TLS end: close_notify, cuts, faults.

use super::{BOTH, assert_asked, context, echo_through, kernel_has_tls, pattern, read_out};
use crate::client::{self, GET, HANG, ask, connect};
use crate::servers::{World, answer_requests, echo, serve};
use boring::ssl::{ShutdownState, SslVersion};
use epoxide::Connection;
use epoxide_tests_e2e::{Case, rounds, wait_until};
use epoxide_tls::{ClientAuth, Ktls, TlsConnection, TlsError};
use std::io::{Read, Write};

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
            conn.send_all(b"hello").await?;
            let first = conn.read().await.map(drop).unwrap_err();
            conn.stage(b"more")?;
            let written = conn.flush().await.unwrap_err();
            assert_eq!(TlsError::of(&written), TlsError::of(&first), "{written}");
            Err(first)
        });
        for bytes in [GET.as_bytes(), &[23, 3, 3, 0x48, 0, 1, 2, 3], &[99, 3, 3, 0, 1, 0]] {
            let mut client = connect(server.addr(), &context(&world));
            // The kernel has its keys now: after a FIN it would not take them.
            client.read_exact(&mut [0; 5]).unwrap();
            let mut socket = client.get_ref();
            socket.write_all(bytes).unwrap();
            // Where the length is one that may be a kernel waits for a whole record. Else the server may be gone already.
            let _ = socket.shutdown(std::net::Shutdown::Write);
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
        let wanted = kernel_has_tls() && ktls == Ktls::TxRx;
        // A server whose FIN is there before the keys are in the kernel leaves the session to this process.
        let by_kernel = (0..50).any(|_| {
            let (error, by_kernel) = epoxide::block_on(async {
                let mut conn = config.connect(server.addr(), "localhost").await.unwrap();
                let by_kernel = conn.facts().kernel_rx();
                let first = conn.read().await.map(drop).unwrap_err();
                assert_eq!(conn.read().await.map(drop).unwrap_err().to_string(), first.to_string());
                (first, by_kernel)
            });
            assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{error}");
            assert!(error.to_string().to_lowercase().replace('_', " ").contains("certificate required"), "{error}");
            assert!(ends.recv_timeout(HANG).unwrap().is_err());
            by_kernel == wanted
        });
        assert!(by_kernel, "vacuity: never by whom it was to be, {ktls:?}");
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
    // The server's socket closes without the client's.
    assert!(wait_until(HANG, || server.stats().open == 0), "it lingers");
    let error = client.get_ref().take_error().unwrap();
    assert!(error.is_none(), "a reset over what was not read: {error:?}");
}
