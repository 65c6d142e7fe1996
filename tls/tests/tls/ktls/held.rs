//! Records that the kernel has taken and still holds back, because the socket had no room for them: they go out before the
//! FIN.

use super::{BOTH, assert_asked, context, kernel_has_tls, pattern, skipped_as_keys_stay, tls_stat};
use crate::client::{self, Client, HANG};
use crate::servers::World;
use boring::ssl::{ShutdownState, Ssl};
use epoxide::{ConnectOptions, Connection, ReactorConfig, connect_with};
use epoxide_tests_e2e::{Case, Server, current_tid, loopback, set_send_buffer};
use epoxide_tls::{Ktls, TlsConnection};
use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How a server ends a session.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It says so while something is on its way.
    Close,
    /// It waits until all is with the kernel.
    Shutdown,
    /// It lets go.
    Drop,
}

fn ways() -> impl Iterator<Item = (Ktls, End)> {
    BOTH.into_iter().flat_map(|ktls| [End::Close, End::Shutdown, End::Drop].map(|end| (ktls, end)))
}

async fn end_by(end: End, mut conn: TlsConnection) -> io::Result<()> {
    match end {
        End::Close => {
            conn.close_handle().close();
            conn.read().await.map(drop)
        }
        End::Shutdown => {
            conn.shutdown().await?;
            while conn.read().await?.is_some() {}
            Ok(())
        }
        End::Drop => Ok(()),
    }
}

/// A client with a small window.
fn narrow_client(world: &World, addr: SocketAddr, window: usize) -> Client {
    let options = ConnectOptions { recv_buffer_size: Some(window), ..ConnectOptions::default() };
    let socket = epoxide::block_on(async { connect_with(addr, options).await.unwrap().into_std() }).unwrap();
    socket.set_nonblocking(false).unwrap();
    let mut ssl = Ssl::new(&context(world)).unwrap();
    ssl.set_hostname("localhost").unwrap();
    client::over(socket, ssl).unwrap()
}

/// What comes, which must be all of it and a close_notify.
fn assert_comes_whole(client: &mut Client, content: &[u8], what: &str) {
    let mut all = Vec::new();
    let mut space = [0; 1000];
    let end = loop {
        match client.read(&mut space) {
            Ok(0) => break Ok(()),
            Ok(n) => all.extend_from_slice(&space[..n]),
            Err(error) => break Err(error),
        }
    };
    assert!(all == content, "{what}: {} of {} bytes, {end:?}", all.len(), content.len());
    assert!(end.is_ok() && client.get_shutdown().contains(ShutdownState::RECEIVED), "{what}: no close_notify: {end:?}");
}

/// A peer that reads nothing at first: a record is far longer than what the socket takes at once.
#[test]
fn a_close_notify_that_is_due_with_a_full_buffer_comes_before_the_fin() {
    let case = Case::start();
    let world = World::new();
    for ((ktls, end), (len, window)) in
        ways().flat_map(|way| [(1, 2304), (40_000, 2304), (70_001, 4096), (300_000, 9000)].map(|case| (way, case)))
    {
        let config = world.options().ktls(ktls).build().unwrap();
        let (tell, told) = channel();
        let (accept, content) = (config.clone(), pattern(len));
        let server = Server::start(&case, |builder| {
            builder.listen(loopback(), move |conn: Connection| {
                let (accept, content, tell) = (accept.clone(), content.clone(), tell.clone());
                async move {
                    conn.set_send_buffer_size(4096)?;
                    let mut conn = accept.accept(conn).await?;
                    conn.stage(&content)?;
                    if let Err(error) = conn.try_flush() {
                        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    }
                    tell.send(()).unwrap();
                    end_by(end, conn).await
                }
            });
        });
        let mut client = narrow_client(&world, server.addr(), window);
        told.recv_timeout(HANG).unwrap();
        assert_comes_whole(&mut client, &pattern(len), &format!("{ktls:?} {end:?} {len}"));
        assert_asked(&config, 1);
    }
}

/// The calling thread is not interrupted by the kernel's own threads, which send what is held back.
fn run_ahead_of_the_kernel() {
    let tid = current_tid().to_string();
    let done = Command::new("chrt").args(["-f", "-p", "10", &tid]).output();
    let done = done.is_ok_and(|output| output.status.success());
    // Without the right to do so, or where nothing is held back, the test shows less.
    assert!(done || std::env::var_os("EPOXIDE_REQUIRE_KTLS").is_none(), "chrt is missing, or this is not root");
}

/// There is room for the close_notify, and not for what the kernel holds back before it.
#[test]
fn what_the_kernel_holds_back_goes_out_before_the_fin() {
    /// One full record.
    const LEN: usize = 16 * 1024;
    let case = Case::start();
    let world = World::new();
    for (ktls, end) in ways() {
        let config = world.options().ktls(ktls).build().unwrap();
        let (tell, told) = channel();
        let accept = config.clone();
        let server = Server::start(&case, |builder| {
            builder.listen(loopback(), move |conn: Connection| {
                let (accept, tell) = (accept.clone(), tell.clone());
                async move {
                    // 4.5 KiB: the smallest.
                    conn.set_send_buffer_size(1)?;
                    let socket = conn.as_fd().try_clone_to_owned()?;
                    let mut conn = accept.accept(conn).await?;
                    run_ahead_of_the_kernel();
                    conn.stage(&pattern(LEN))?;
                    match conn.try_flush() {
                        // The kernel has all of it; TCP has not.
                        Ok(()) => {}
                        Err(error) => assert!(!kernel_has_tls() && error.kind() == ErrorKind::WouldBlock, "{error}"),
                    }
                    // A little more room.
                    set_send_buffer(&socket, 5000);
                    drop(socket);
                    tell.send(()).unwrap();
                    end_by(end, conn).await
                }
            });
        });
        let mut client = narrow_client(&world, server.addr(), 2304);
        told.recv_timeout(HANG).unwrap();
        assert_comes_whole(&mut client, &pattern(LEN), &format!("{ktls:?} {end:?}"));
        assert_asked(&config, 1);
    }
}

/// The send clock: what the kernel holds back is out for its user, while a slow peer takes it all the same.
#[test]
fn a_slow_steady_peer_gets_what_the_kernel_holds_back() {
    const LEN: usize = 16 * 1024;
    let case = Case::start();
    let world = World::new();
    for ktls in [Ktls::Off, Ktls::Tx] {
        let config = world.options().ktls(ktls).build().unwrap();
        let server = Server::start(&case, |builder| {
            builder.config(ReactorConfig { send_timeout: Duration::from_millis(1500), ..ReactorConfig::default() });
            builder.listen(loopback(), move |conn: Connection| {
                let config = config.clone();
                async move {
                    conn.set_send_buffer_size(1)?;
                    let mut conn = config.accept(conn).await?;
                    conn.stage(&pattern(LEN))?;
                    // The kernel may have all of it: TCP has not.
                    let _ = conn.try_flush();
                    conn.shutdown().await
                }
            });
        });
        let client = narrow_client(&world, server.addr(), 2304);
        // The records as they are: to decrypt them it would wait for all of the first.
        let (mut came, mut space) = (0, [0; 600]);
        loop {
            match client.get_ref().read(&mut space) {
                Ok(0) => break,
                Ok(n) => came += n,
                Err(error) => panic!("{ktls:?}: {error} after {came} bytes"),
            }
            // sleep: a slow peer, which takes far less than a record within the send clock.
            std::thread::sleep(Duration::from_millis(200));
        }
        assert!(came > LEN, "{ktls:?}: {came} bytes");
        assert_eq!(server.stats().timeouts, 0, "{ktls:?}");
    }
}

/// New keys, while records with the old ones are held back: those keep theirs.
#[test]
fn keys_are_renewed_behind_what_the_kernel_holds_back() {
    const LEN: usize = 16 * 1024;
    const ROUNDS: usize = 4;
    let case = Case::start();
    let world = World::new();
    if skipped_as_keys_stay() {
        return;
    }
    for ktls in BOTH {
        let config = world.options().ktls(ktls).build().unwrap();
        let before = tls_stat("TlsTxRekeyOk");
        let (tell, told) = channel();
        let accept = config.clone();
        let server = Server::start(&case, |builder| {
            builder.listen(loopback(), move |conn: Connection| {
                let (accept, tell) = (accept.clone(), tell.clone());
                async move {
                    conn.set_send_buffer_size(1)?;
                    let socket = conn.as_fd().try_clone_to_owned()?;
                    let mut conn = accept.accept(conn).await?;
                    run_ahead_of_the_kernel();
                    for round in 0..ROUNDS {
                        conn.stage(&pattern(LEN))?;
                        let _ = conn.try_flush();
                        set_send_buffer(&socket, 5000 + round);
                        conn.update_keys(false)?;
                        let _ = conn.try_flush();
                        if round == 0 {
                            tell.send(()).unwrap();
                        }
                        conn.flush().await?;
                    }
                    drop(socket);
                    end_by(End::Close, conn).await
                }
            });
        });
        let mut client = narrow_client(&world, server.addr(), 2304);
        told.recv_timeout(HANG).unwrap();
        assert_comes_whole(&mut client, &pattern(LEN).repeat(ROUNDS), &format!("{ktls:?}"));
        assert_asked(&config, 1);
        if kernel_has_tls() {
            assert!(tls_stat("TlsTxRekeyOk") >= before + ROUNDS as u64, "the kernel has taken them");
        }
    }
}
