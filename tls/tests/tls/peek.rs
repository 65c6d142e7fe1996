//! A peek shows plaintext and takes none of it.

use crate::client::{self, HANG};
use crate::servers::{World, ktls_of_run, serve};
use epoxide::workers;
use epoxide_tests_e2e::{Case, Gate, pattern, wait_until};
use epoxide_tls::{Ktls, TlsConnection, TlsError};
use std::io::{self, Read, Write};
use std::sync::mpsc::{Sender, channel};

/// Looks, in ever larger spaces, then takes by every kind of read; tells what it saw.
async fn look_and_take(mut conn: TlsConnection, more: Gate, tell: Sender<usize>) -> io::Result<()> {
    assert_eq!(conn.peek(&mut []).await?, 0, "an empty space");
    let mut space = [0; 300];
    for size in [1, 3, 3, 100] {
        let n = conn.peek(&mut space[..size]).await?;
        assert_eq!(&space[..n], &b"first"[..size.min(5)]);
        tell.send(n).unwrap();
    }
    // More has come, in records of its own: one look shows all of it.
    more.wait().await;
    let mut n = 0;
    while n < 205 {
        n = conn.peek(&mut space).await?;
        assert_eq!(&space[..5], b"first");
        epoxide::yield_now().await;
    }
    assert_eq!(space[5..205], pattern(200));

    let mut two = [0; 2];
    assert_eq!(conn.read_slice(&mut two).await?, 2);
    assert_eq!(&two, b"fi");
    assert_eq!(conn.peek(&mut two).await?, 2);
    assert_eq!(&two, b"rs");
    let mut held = conn.read_idle().await?.expect("what was shown");
    assert_eq!((&held[..3], held.len()), (&b"rst"[..], 203));
    tell.send(n).unwrap();
    // Behind it by the other read; and what follows the last look.
    while held.len() < 203 + 1000 {
        conn.peek(&mut space[..7]).await?;
        conn.read_more(&mut held).await?;
    }
    assert_eq!(held[203..], pattern(1000));
    // The end is shown, told again, and no byte comes behind it.
    assert_eq!(conn.peek(&mut space).await?, 0);
    assert_eq!(conn.peek(&mut space).await?, 0);
    assert!(conn.read().await?.is_none());
    conn.shutdown().await
}

#[test]
fn a_peek_shows_and_takes_nothing() {
    for off in [false, true] {
        let case = Case::start();
        let world = World::new();
        let (more, (tell, told)) = (Gate::new(), channel());
        let gate = more.clone();
        let (server, ends) = serve(&case, &world.options().build().unwrap(), move |conn| {
            let looks = look_and_take(conn, gate.clone(), tell.clone());
            async move { if off { workers::spawn(looks).await.expect("no panic") } else { looks.await } }
        });
        let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
        client.write_all(b"first").unwrap();
        for expected in [1, 3, 3, 5] {
            assert_eq!(told.recv_timeout(HANG).unwrap(), expected);
        }
        for part in pattern(200).chunks(50) {
            client.write_all(part).unwrap();
        }
        more.open();
        assert_eq!(told.recv_timeout(HANG).unwrap(), 205);
        for part in pattern(1000).chunks(77) {
            client.write_all(part).unwrap();
        }
        client.shutdown().unwrap();
        ends.recv_timeout(HANG).unwrap().unwrap();
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert!(rest.is_empty());
    }
}

/// What was shown comes before the fault that follows it, which then stays.
#[test]
fn a_fault_comes_behind_what_was_shown() {
    let case = Case::start();
    let world = World::new();
    let bad = Gate::new();
    let gate = bad.clone();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        let bad = gate.clone();
        async move {
            let mut space = [0; 64];
            assert_eq!(conn.peek(&mut space).await?, 4);
            bad.wait().await;
            // It is met by one of these, and told by none.
            for _ in 0..100 {
                assert_eq!(conn.peek(&mut space).await?, 4);
                epoxide::yield_now().await;
            }
            assert_eq!(&conn.read().await?.expect("what was shown")[..], b"good");
            let first = conn.peek(&mut space).await.expect_err("garbage");
            let second = conn.read().await.expect_err("garbage");
            assert_eq!(first.to_string(), second.to_string());
            Err(second)
        }
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    client.write_all(b"good").unwrap();
    client.get_mut().write_all(b"bad bytes").unwrap();
    bad.open();
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{error}");
}

/// A waiting peek holds no block; one that has shown something holds one until it is taken.
#[test]
fn what_was_shown_is_held_in_one_block() {
    if ktls_of_run() != Ktls::Off {
        // The kernel keeps it.
        return;
    }
    let case = Case::start();
    let world = World::new();
    let (shown, take, taken) = (Gate::new(), Gate::new(), Gate::new());
    let gates = (shown.clone(), take.clone(), taken.clone());
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        let (shown, take, taken) = gates.clone();
        async move {
            assert_eq!(conn.peek(&mut [0; 8]).await?, 3);
            shown.open();
            take.wait().await;
            drop(conn.read().await?);
            taken.open();
            conn.peek(&mut [0; 8]).await.map(drop)
        }
    });
    let before = server.stats().buffers_outstanding;
    let held = || server.stats().buffers_outstanding - before;
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    assert!(wait_until(HANG, || held() == 0), "a waiting peek holds a block");
    client.write_all(b"abc").unwrap();
    assert!(shown.wait_blocking(HANG));
    assert!(wait_until(HANG, || held() == 1));
    take.open();
    assert!(taken.wait_blocking(HANG));
    assert!(wait_until(HANG, || held() == 0));
}
