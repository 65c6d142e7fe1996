//! Records that are no data, to a kernel that decrypts: floods of them, and what waits behind them.

use super::maker::Maker;
use super::messages::{client_of, scripted_server_then, ticket};
use super::{kernel_has_tls, pattern};
use crate::client::{self, HANG, try_connect};
use crate::servers::{World, serve};
use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{Case, Gate, Server, block_within, echo, loopback, wait_until};
use epoxide_tls::{Ktls, TlsConnection, TlsError};
use std::io::{ErrorKind, Read, Write};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One read would be busy with them for ever, and its reactor with it.
#[test]
fn a_flood_of_records_without_data_ends_the_session() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().suites(["TLS_AES_128_GCM_SHA256"]).ktls(Ktls::TxRx).build().unwrap();
    let (server, ends) = serve(&case, &config, |mut conn: TlsConnection| async move {
        conn.send_all(b"x").await?;
        let mut seen = 0;
        while let Some(data) = conn.read().await? {
            seen += data.len();
            conn.stage(&data)?;
            conn.flush().await?;
        }
        assert_eq!(seen, 20, "the flood is no end");
        Ok(())
    });
    let secret = Arc::new(Mutex::new(String::new()));
    let log = secret.clone();
    let context = client::context(&world.authority, |context| {
        context.set_keylog_callback(move |_, line| {
            if line.starts_with("CLIENT_TRAFFIC_SECRET_0 ") {
                line.clone_into(&mut log.lock().unwrap());
            }
        });
    });
    let mut client = try_connect(server.addr(), &context, Some("localhost")).unwrap();
    client.read_exact(&mut [0; 1]).unwrap();
    let mut maker = Maker::new(&secret.lock().unwrap());
    // user_canceled, which is no error by itself. Control: a few between data are nothing.
    let alerts = |maker: &mut Maker, n| (0..n).flat_map(|_| maker.record(21, &[1, 90])).collect::<Vec<u8>>();
    for _ in 0..20 {
        let few = [alerts(&mut maker, 3), maker.record(23, b"d")].concat();
        client.get_ref().write_all(&few).unwrap();
        client.read_exact(&mut [0; 1]).unwrap();
    }
    client.get_ref().write_all(&alerts(&mut maker, 40)).unwrap();
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{error}");
    if kernel_has_tls() {
        assert!(error.to_string().contains("too many records without data"), "{error}");
    }
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert!(error.to_string().to_uppercase().contains("ALERT"), "the alert goes out first: {error}");
}

/// The clock of a read that waits, whichever way it reads.
#[test]
fn the_read_clock_ends_every_kind_of_read() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::TxRx).build().unwrap();
    let (tell, told) = channel();
    let server = Server::start(&case, |builder| {
        builder.config(ReactorConfig { read_timeout: Duration::from_millis(500), ..ReactorConfig::default() });
        builder.listen(loopback(), move |conn: Connection| {
            let (config, tell) = (config.clone(), tell.clone());
            async move {
                let mut conn = config.accept(conn).await?;
                let mut first = conn.read().await?.expect("a byte that says how to read");
                let end = match &first[..] {
                    b"m" => conn.read_more(&mut first).await.map(drop),
                    b"p" => conn.peek(&mut [0; 10]).await.map(drop),
                    b"s" => conn.read_slice(&mut [0; 10]).await.map(drop),
                    _ => conn.read().await.map(drop),
                };
                tell.send(end).unwrap();
                Ok::<(), std::io::Error>(())
            }
        });
    });
    let context = client::context(&world.authority, |_| {});
    for way in ["r", "m", "s", "p"] {
        let mut client = try_connect(server.addr(), &context, Some("localhost")).unwrap();
        client.write_all(way.as_bytes()).unwrap();
        let error = told.recv_timeout(HANG).expect("the clock does not run").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{way}: {error}");
    }
}

/// A client that lets go without reading: a server's tickets are in front of what it discards. What it sent arrives.
#[test]
fn letting_go_takes_tickets_and_what_is_behind_them() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().ktls(Ktls::Off).build().unwrap();
    let (tell, told) = channel();
    let go = Gate::new();
    let gate = go.clone();
    let (server, ends) = serve(&case, &config, move |mut conn: TlsConnection| {
        let (tell, gate) = (tell.clone(), gate.clone());
        async move {
            conn.send_all(b"tickets go before this").await?;
            tell.send(()).unwrap();
            gate.wait().await;
            let mut all = Vec::new();
            while let Some(data) = conn.read().await? {
                all.extend_from_slice(&data);
            }
            assert!(all == pattern(100_000), "{} bytes", all.len());
            conn.shutdown().await
        }
    });
    // Its reactor lives on after the connection.
    let other = Server::start(&case, |builder| {
        builder.listen(loopback(), echo);
    });
    let ours = world.client().ktls(Ktls::TxRx).build().unwrap();
    let reactor = other.reactor();
    let connecting = async { ours.connect_over(reactor.connect(server.addr()).await?, "localhost").await };
    let mut conn = block_within(connecting, HANG).expect("in time").unwrap();
    told.recv_timeout(HANG).unwrap();
    block_within(conn.send_all(&pattern(100_000)), HANG).expect("in time").unwrap();
    let before = other.stats().discards;
    drop(conn);
    assert!(wait_until(HANG, || other.stats().discards > before), "nothing is discarded");
    go.open();
    ends.recv_timeout(HANG).unwrap().unwrap();
}

/// The same with data of no bytes in front of a ticket, which a kernel that decrypts tells as it does a FIN.
#[test]
fn letting_go_reads_past_records_of_no_bytes() {
    let case = Case::start();
    let world = World::new();
    let empty = |maker: &mut Maker| [maker.record(23, b""), maker.record(22, &ticket(200, 1))].concat();
    let ((wrote, written), (tell, told)) = (channel(), channel());
    let (addr, serving) = scripted_server_then(&world, empty, move |server, maker| {
        wrote.send(()).unwrap();
        assert_eq!(server.read(&mut [0; 1])?, 0, "the client's close_notify");
        told.recv_timeout(HANG).unwrap();
        // A socket that is closed already answers the first of them with a reset.
        for _ in 0..3 {
            server.get_ref().write_all(&maker.record(23, &pattern(10_000)))?;
        }
        Ok(0)
    });
    let other = Server::start(&case, |builder| {
        builder.listen(loopback(), echo);
    });
    let (ours, reactor) = (client_of(&world), other.reactor());
    let connecting = async { ours.connect_over(reactor.connect(addr).await?, "localhost").await };
    let mut conn = block_within(connecting, HANG).expect("in time").unwrap();
    block_within(conn.send_all(b"x"), HANG).expect("in time").unwrap();
    // They are there, to be discarded.
    written.recv_timeout(HANG).unwrap();
    let before = other.stats().discards;
    drop(conn);
    assert!(wait_until(HANG, || other.stats().discards > before), "nothing is discarded");
    tell.send(()).unwrap();
    serving.join().unwrap().expect("no reset");
}
