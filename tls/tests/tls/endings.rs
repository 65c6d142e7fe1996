//! How sessions end: close_notify, its absence, and what each side learns of it.

use crate::client::{self, GET, HANG, ask, connect};
use crate::servers::{World, answer_requests, serve};
use boring::ssl::ShutdownState;
use epoxide_tests_e2e::{Case, Gate, provoke_panic};
use epoxide_tls::{TlsConnection, TlsError};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::mpsc::channel;

fn context(world: &World) -> boring::ssl::SslContext {
    client::context(&world.authority, |_| {})
}

/// Reads to the end: what came, and whether the end was a close_notify.
fn read_out(client: &mut client::Client) -> (Vec<u8>, io::Result<bool>) {
    let mut all = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match client.read(&mut chunk) {
            Ok(0) => return (all, Ok(client.get_shutdown().contains(ShutdownState::RECEIVED))),
            Ok(n) => all.extend_from_slice(&chunk[..n]),
            Err(error) => return (all, Err(error)),
        }
    }
}

/// The whole of what the peer sends, as a body that its end delimits.
async fn read_all(conn: &mut TlsConnection) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(data) = conn.read().await? {
        all.extend_from_slice(&data);
    }
    Ok(all)
}

#[test]
fn a_close_notify_is_an_end_and_a_bare_fin_is_a_cut() {
    let case = Case::start();
    let world = World::new();
    let (tell, told) = channel();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        let tell = tell.clone();
        async move {
            let result = read_all(&mut conn).await;
            let again = conn.read().await.map(|data| data.is_none());
            tell.send((result, again.is_ok(), conn.is_closed_by_peer())).unwrap();
            conn.send_all(b"bye").await?;
            conn.shutdown().await
        }
    });
    for clean in [true, false] {
        let mut client = connect(server.addr(), &context(&world));
        client.write_all(b"a body that its end delimits").unwrap();
        if clean {
            client.shutdown().unwrap();
        }
        client.get_ref().shutdown(Shutdown::Write).unwrap();
        let (result, again, closed) = told.recv_timeout(HANG).unwrap();
        assert_eq!((again, closed), (clean, clean), "every later read says the same");
        match result {
            Ok(all) => assert!(clean && all == b"a body that its end delimits"),
            Err(error) => {
                assert!(!clean, "{error}");
                assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
                assert_eq!(TlsError::of(&error), Some(&TlsError::Truncated));
            }
        }
        // The other direction works on, and ends with the server's own close_notify.
        let (all, end) = read_out(&mut client);
        assert_eq!((&all[..], end.unwrap()), (&b"bye"[..], true));
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
}

#[test]
fn an_idle_connection_may_end_without_a_close_notify() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), answer_requests);
    let mut client = connect(server.addr(), &context(&world));
    ask(&mut client, GET).unwrap();
    client.get_ref().shutdown(Shutdown::Write).unwrap();
    ends.recv_timeout(HANG).unwrap().unwrap();
    assert!(matches!(read_out(&mut client), (rest, Ok(true)) if rest.is_empty()));
}

/// What a drop, a close handle and a panic leave behind for the client.
#[test]
fn every_way_to_let_go_says_so_and_a_panic_does_not() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (give, given) = channel();
    let ways = move |mut conn: TlsConnection| {
        let give = give.clone();
        async move {
            let request = conn.read().await?.expect("a request");
            conn.stage(b"answer")?;
            conn.flush().await?;
            conn.stage(b"never flushed")?;
            match &request[..] {
                b"drop" => drop(conn),
                b"shutdown" => conn.shutdown().await?,
                b"halves" => {
                    let (read, write) = conn.into_split();
                    drop(write);
                    drop(read);
                }
                b"handle" => {
                    give.send(conn.close_handle()).unwrap();
                    // Parked: the handle ends it.
                    let error = conn.read().await.map(drop).unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
                    let error = conn.flush().await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
                }
                b"reset" => conn.reset(),
                _ => provoke_panic("a handler of a TLS session"),
            }
            Ok(())
        }
    };
    let (mut server, _ends) = serve(&case, &config, ways);
    for (way, rest, clean) in [
        ("drop", &b"answer"[..], true),
        ("shutdown", b"answernever flushed", true),
        ("halves", b"answer", true),
        ("handle", b"answer", true),
        ("reset", b"", false),
        ("panic", b"", false),
    ] {
        let mut client = connect(server.addr(), &context(&world));
        client.write_all(way.as_bytes()).unwrap();
        if way == "handle" {
            let handle = given.recv_timeout(HANG).unwrap();
            handle.close();
            handle.close();
        }
        let (all, end) = read_out(&mut client);
        if clean {
            assert_eq!(all, rest, "{way}");
            assert!(end.unwrap(), "{way}: no close_notify");
        } else {
            assert!(!end.unwrap_or(false), "{way}: a cut answer must not look whole");
        }
    }
    server.claim_panics(1);
}

#[test]
fn a_clean_end_of_the_peer_leaves_this_side_writing() {
    let case = Case::start();
    let world = World::new();
    let body = vec![5; 2 << 20];
    let sent = body.clone();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        let body = sent.clone();
        async move {
            assert!(conn.read().await?.is_some());
            assert!(conn.read().await?.is_none());
            conn.send_all(&body).await?;
            conn.shutdown().await?;
            let error = conn.send_all(b"more").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe, "{error}");
            Ok(())
        }
    });
    let mut client = connect(server.addr(), &context(&world));
    client.write_all(b"all of it").unwrap();
    client.shutdown().unwrap();
    let (all, end) = read_out(&mut client);
    assert!(all == body && end.unwrap());
    ends.recv_timeout(HANG).unwrap().unwrap();
}

#[test]
fn a_cancelled_flush_still_goes_out_whole_and_in_order() {
    let case = Case::start();
    let world = World::new();
    let body = epoxide_tests_e2e::pattern(8 << 20);
    let sent = body.clone();
    let parked = Gate::new();
    let gate = parked.clone();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), move |mut conn| {
        let (body, gate) = (sent.clone(), gate.clone());
        async move {
            conn.stage(&body)?;
            let flushed = conn.try_flush();
            assert_eq!(flushed.unwrap_err().kind(), ErrorKind::WouldBlock, "the socket cannot take it all");
            conn.stage(b"behind it")?;
            gate.open();
            drop(conn.flush());
            conn.flush().await?;
            Ok(())
        }
    });
    let mut client = connect(server.addr(), &context(&world));
    assert!(parked.wait_blocking(HANG));
    let (all, end) = read_out(&mut client);
    assert!(end.unwrap());
    assert_eq!(all.len(), body.len() + 9);
    assert!(all[..body.len()] == body && all[body.len()..] == *b"behind it");
    ends.recv_timeout(HANG).unwrap().unwrap();
}

#[test]
fn halves_come_together_again_and_strangers_do_not() {
    let case = Case::start();
    let world = World::new();
    let (give, given) = channel();
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), move |conn| {
        give.send(conn.into_split()).unwrap();
        async { Ok(()) }
    });
    let mut clients: Vec<_> = (0..2).map(|_| connect(server.addr(), &context(&world))).collect();
    let (read, write) = given.recv_timeout(HANG).unwrap();
    let (other_read, other_write) = given.recv_timeout(HANG).unwrap();
    let (read, other_write) = TlsConnection::reunite(read, other_write).unwrap_err();
    let whole = TlsConnection::reunite(read, write).unwrap();
    let other = TlsConnection::reunite(other_read, other_write).unwrap();
    for mut conn in [whole, other] {
        let sent = epoxide_tests_e2e::block_within(conn.send_all(b"from a plain thread"), HANG);
        sent.expect("not in time").unwrap();
    }
    for client in &mut clients {
        let (all, end) = read_out(client);
        assert_eq!((&all[..], end.unwrap()), (&b"from a plain thread"[..], true));
    }
}
