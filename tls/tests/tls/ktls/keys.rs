//! New keys in the middle of a session: by the kernel where it takes them, else its end.

use super::{BOTH, SUITES, assert_asked, kernel_has_tls, kernel_renews, pattern, skipped_as_keys_stay, tls_stat};
use crate::client::HANG;
use crate::servers::{World, echo, serve, serve_prepared};
use epoxide::Connection;
use epoxide_tests_e2e::{Case, Server, loopback};
use epoxide_tls::{Ktls, TlsConnection, TlsError, TlsVersion};
use std::io::{self, ErrorKind};
use std::sync::mpsc::channel;

/// What the peer sends is there before it is asked for.
async fn read_exactly(conn: &mut TlsConnection, mut n: usize) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while n > 0 {
        let mut space = vec![0; n];
        let got = conn.read_slice(&mut space).await?;
        if got == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        all.extend_from_slice(&space[..got]);
        n -= got;
    }
    Ok(all)
}

/// Both sides renew their keys over and over, each asks the other to, and every byte arrives.
#[test]
fn keys_are_renewed_by_both_sides_under_traffic() {
    const ROUNDS: usize = 8;
    const PIECE: usize = 20_000;
    let case = Case::start();
    let world = World::new();
    let off = !kernel_has_tls();
    if skipped_as_keys_stay() {
        return;
    }
    let before = (tls_stat("TlsTxRekeyOk"), tls_stat("TlsRxRekeyOk"), tls_stat("TlsDecryptError"));
    let suites = SUITES.iter().filter(|(version, _)| *version == TlsVersion::V1_3).map(|(_, suite)| *suite);
    for (suite, ktls) in suites.flat_map(|suite| BOTH.map(|ktls| (suite, ktls))) {
        for client in [Ktls::Off, ktls] {
            let config = world.options().suites([suite]).ktls(ktls).build().unwrap();
            let (server, ends) = serve(&case, &config, |mut conn: TlsConnection| async move {
                for round in 0..ROUNDS {
                    let data = read_exactly(&mut conn, PIECE).await?;
                    conn.stage(&data[..PIECE / 2])?;
                    conn.flush().await?;
                    conn.update_keys(round % 3 == 0)?;
                    if round % 2 == 0 {
                        conn.flush().await?;
                    }
                    conn.stage(&data[PIECE / 2..])?;
                    conn.flush().await?;
                }
                assert!(conn.read().await?.is_none());
                conn.shutdown().await
            });
            let client = world.client().ktls(client).build().unwrap();
            epoxide::block_on(async {
                let mut conn = client.connect(server.addr(), "localhost").await.unwrap();
                let piece = pattern(PIECE);
                for round in 0..ROUNDS {
                    conn.update_keys(round % 2 == 0).unwrap();
                    conn.send_all(&piece).await.unwrap();
                    assert!(read_exactly(&mut conn, PIECE).await.unwrap() == piece, "round {round} of {suite}");
                }
                conn.shutdown().await.unwrap();
                assert!(conn.read().await.unwrap().is_none());
            });
            ends.recv_timeout(HANG).unwrap().unwrap();
            assert_asked(&config, 1);
        }
    }
    assert_eq!(tls_stat("TlsDecryptError"), before.2);
    if !off {
        assert!(tls_stat("TlsTxRekeyOk") >= before.0 + 12 * ROUNDS as u64, "the kernel renewed what it sends with");
        assert!(tls_stat("TlsRxRekeyOk") >= before.1 + 6 * ROUNDS as u64, "and what it receives with");
    }
}

/// A peer that asks and asks, and takes none of the answers: one waits, not one for each.
#[test]
fn answers_to_a_peer_that_takes_none_do_not_pile_up() {
    const ASKS: usize = 200;
    // More than the buffers of both sockets hold.
    const LEN: usize = 2 << 20;
    let case = Case::start();
    let world = World::new();
    if skipped_as_keys_stay() {
        return;
    }
    for ktls in BOTH {
        let config = world.options().ktls(ktls).build().unwrap();
        let ((tell, told), (end, ends)) = (channel(), channel());
        let handler = move |conn: Connection| {
            let (config, tell) = (config.clone(), tell.clone());
            async move {
                conn.set_send_buffer_size(8192)?;
                let mut conn = config.accept(conn).await?;
                conn.stage(&vec![7; LEN])?;
                let parked = conn.try_flush().unwrap_err();
                assert_eq!(parked.kind(), ErrorKind::WouldBlock);
                let before = conn.unsent_len();
                assert!(before > 0);
                // One byte behind every question.
                read_exactly(&mut conn, ASKS).await?;
                tell.send(conn.unsent_len().saturating_sub(before)).unwrap();
                conn.flush().await?;
                assert!(conn.read().await?.is_none());
                conn.shutdown().await
            }
        };
        let server = Server::start(&case, |builder| {
            builder.listen(loopback(), move |conn| {
                let (handling, end) = (handler(conn), end.clone());
                async move { end.send(handling.await).unwrap() }
            });
        });
        let off = world.client().ktls(Ktls::Off).build().unwrap();
        epoxide::block_on(async {
            let mut conn = off.connect(server.addr(), "localhost").await.unwrap();
            for _ in 0..ASKS {
                conn.update_keys(true).unwrap();
                conn.send_all(b"?").await.unwrap();
            }
            let grown = told.recv_timeout(HANG).unwrap();
            assert!(grown < 100, "{ktls:?}: {grown} bytes more wait");
            let mut came = 0;
            while came < LEN {
                came += conn.read().await.unwrap().expect("all of it").len();
            }
            conn.shutdown().await.unwrap();
            assert!(conn.read().await.unwrap().is_none());
        });
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
}

/// The peer is asked for new keys, though a message that asks for none waits in the queue.
#[test]
fn a_request_for_new_keys_is_not_lost_behind_an_answer() {
    const LEN: usize = 2 << 20;
    let case = Case::start();
    let world = World::new();
    if !kernel_renews() {
        eprintln!("skipped: no kernel that renews keys");
        return;
    }
    // Whether it asks, one after the other: how often the peer renews its own.
    for (asks, renewals) in [(&[false, false][..], 0), (&[false, true], 1), (&[true, false, true, true], 1)] {
        let config = world.options().ktls(Ktls::TxRx).build().unwrap();
        let small = |conn: &Connection| conn.set_send_buffer_size(8192).unwrap();
        let (server, ends) = serve_prepared(&case, &config, small, move |mut conn: TlsConnection| async move {
            conn.stage(&vec![7; LEN])?;
            assert_eq!(conn.try_flush().unwrap_err().kind(), ErrorKind::WouldBlock);
            for ask in asks {
                conn.update_keys(*ask)?;
            }
            conn.send_all(b"!").await?;
            assert!(conn.read().await?.is_some());
            conn.shutdown().await
        });
        let before = tls_stat("TlsRxRekeyOk");
        let off = world.client().ktls(Ktls::Off).build().unwrap();
        epoxide::block_on(async {
            let mut conn = off.connect(server.addr(), "localhost").await.unwrap();
            // The last byte is behind the messages.
            assert_eq!(read_exactly(&mut conn, LEN + 1).await.unwrap().len(), LEN + 1);
            conn.send_all(b"x").await.unwrap();
            assert!(conn.read().await.unwrap().is_none());
        });
        ends.recv_timeout(HANG).unwrap().unwrap();
        assert_eq!(tls_stat("TlsRxRekeyOk") - before, renewals, "{asks:?}");
    }
}

/// A kernel that decrypts and keeps its keys: data before the peer's KeyUpdate is read, then that is the error.
#[test]
fn a_peer_that_renews_its_keys_ends_a_session_that_the_kernel_decrypts() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::TxRx).build().unwrap();
    let (server, ends) = serve(&case, &config, echo);
    let off = world.client().ktls(Ktls::Off).build().unwrap();
    let keeps = kernel_has_tls() && !kernel_renews();
    epoxide::block_on(async {
        let mut conn = off.connect(server.addr(), "localhost").await.unwrap();
        conn.send_all(b"before").await.unwrap();
        assert_eq!(&conn.read().await.unwrap().unwrap()[..], b"before");
        conn.update_keys(false).unwrap();
        conn.send_all(b"after").await.unwrap();
        let back = conn.read().await.unwrap().map(|data| data.to_vec());
        assert_eq!(back, (!keeps).then(|| b"after".to_vec()), "a clean end, or the echo");
        if back.is_some() {
            conn.shutdown().await.unwrap();
        }
    });
    match ends.recv_timeout(HANG).unwrap() {
        Ok(()) => assert!(!keeps),
        Err(error) => {
            assert!(keeps, "{error}");
            assert_eq!(TlsError::of(&error), Some(&TlsError::KeyUpdate));
        }
    }
}

/// A kernel that keeps its keys: who asks for new ones gets a clean end. Else they are renewed.
#[test]
fn a_peer_that_asks_for_new_keys() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::Tx).build().unwrap();
    for ask_peer in [false, true] {
        let (server, ends) = serve(&case, &config, |mut conn: TlsConnection| async move {
            let refused = conn.update_keys(false);
            if conn.facts().kernel_tx() && !kernel_renews() {
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
        let ended = kernel_has_tls() && !kernel_renews() && ask_peer;
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
