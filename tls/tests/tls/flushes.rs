//! What a flush says of what it left, and what goes out with one of nothing.

use crate::client::{self, HANG, connect};
use crate::servers::{World, serve};
use boring::error::ErrorStack;
use epoxide_tests_e2e::Case;
use epoxide_tls::{Ktls, TlsConnection, TlsError, TlsVersion};
use std::io::{ErrorKind, Read};

/// A flush on a reactor gives others their turn after a while; one that cannot wait must not call that a rest.
#[test]
fn a_flush_that_does_not_wait_speaks_of_a_rest_only_if_there_is_one() {
    const PIECES: usize = 1000;
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), |mut conn: TlsConnection| async move {
        for piece in 0..PIECES {
            conn.stage(&[7; 1000])?;
            match conn.try_flush() {
                Ok(()) => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    assert!(conn.unsent_len() > 0, "piece {piece} is out, and called a rest");
                    conn.flush().await?;
                }
            }
        }
        conn.shutdown().await
    });
    let mut client = connect(server.addr(), &client::context(&world.authority, |_| {}));
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), PIECES * 1000);
    ends.recv_timeout(HANG).unwrap().unwrap();
}

/// A KeyUpdate does not wait for data.
#[test]
fn new_keys_are_told_by_a_flush_of_nothing() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().ktls(Ktls::Off).build().unwrap(), |mut conn| async move {
        conn.send_all(b"x").await?;
        conn.read().await?.expect("a go-ahead");
        conn.update_keys(false)?;
        conn.flush().await?;
        conn.read().await?.expect("another");
        conn.update_keys(false)?;
        conn.try_flush()?;
        assert!(conn.read().await?.is_none());
        Ok(())
    });
    let mut client = connect(server.addr(), &client::context(&world.authority, |_| {}));
    client.read_exact(&mut [0; 1]).unwrap();
    for _ in 0..2 {
        std::io::Write::write_all(&mut client, b"go").unwrap();
        // A header and what is in it: nothing else was sent.
        let mut record = [0; 5];
        client.get_ref().read_exact(&mut record).unwrap();
        assert_eq!(record[..3], [23, 3, 3]);
        let mut body = vec![0; usize::from(u16::from_be_bytes([record[3], record[4]]))];
        client.get_ref().read_exact(&mut body).unwrap();
        assert_eq!(body.len(), 5 + 1 + 16, "a KeyUpdate has five bytes");
    }
    client.shutdown().unwrap();
    ends.recv_timeout(HANG).unwrap().unwrap();
}

/// BoringSSL's errors wait in a queue of the thread: what one call leaves there another one would be blamed for (law 14).
#[test]
fn a_refused_call_leaves_no_errors_behind() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().max_version(TlsVersion::V1_2).build().unwrap();
    let (server, ends) = serve(&case, &config, |mut conn| async move { conn.read().await.map(drop) });
    let ours = world.client().ktls(Ktls::Off).build().unwrap();
    epoxide::block_on(async {
        let mut conn = ours.connect(server.addr(), "localhost").await.unwrap();
        let error = conn.update_keys(false).unwrap_err();
        assert!(matches!(TlsError::of(&error), Some(TlsError::Encrypt { .. })), "{error}");
        let left = ErrorStack::get();
        assert!(left.errors().is_empty(), "{left}");
        conn.shutdown().await.unwrap();
    });
    ends.recv_timeout(HANG).unwrap().unwrap();
}

/// What is staged or sent may be secret, and long.
#[test]
fn futures_do_not_show_what_they_carry() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), |mut conn| async move {
        let (secret, mut space) = ([115_u8; 40], [115_u8; 40]);
        let shown = [format!("{:?}", conn.send_all(&secret)), format!("{:?}", conn.read_slice(&mut space))];
        let mut reserved = conn.try_reserve(40)?;
        bytes::BufMut::put_slice(&mut *reserved, &secret);
        let shown = shown.into_iter().chain([format!("{reserved:?}")]);
        shown.for_each(|text| assert!(!text.contains("115, 115"), "{text}"));
        Ok(())
    });
    let mut client = connect(server.addr(), &client::context(&world.authority, |_| {}));
    assert_eq!(client.read(&mut [0; 1]).unwrap(), 0);
    ends.recv_timeout(HANG).unwrap().unwrap();
}
