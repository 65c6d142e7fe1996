//! Files over kernel TLS, and read and encrypted here: the same bytes.

use super::{context, kernel_has_tls, pattern, read_out};
use crate::client::{Client, HANG, connect};
use crate::servers::{World, serve, serve_prepared};
use boring::ssl::ShutdownState;
use epoxide::Connection;
use epoxide_tests_e2e::{Case, moved_to_workers};
use epoxide_tls::{Ktls, TlsConnection, TlsVersion};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A file with a pattern, and the descriptor to send it by.
pub(crate) fn file(len: usize) -> (Arc<OwnedFd>, Vec<u8>) {
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
                    for range in [0..size + 1, size + 1..size + 2] {
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

/// A send buffer that holds less than what sendfile(2) takes at once. Before Linux 6.5 a record that was whole in the middle of
/// it waited in TCP for more, for which there was no room, for ever.
#[test]
fn a_file_passes_a_small_send_buffer() {
    let case = Case::start();
    let world = World::new();
    let (fd, content) = file(300_000);
    for (ktls, version) in [(Ktls::Off, TlsVersion::V1_3), (Ktls::Tx, TlsVersion::V1_3), (Ktls::Tx, TlsVersion::V1_2)] {
        for len in [16_385, 40_000, 65_536, 262_145] {
            let config = world.options().max_version(version).ktls(ktls).build().unwrap();
            let fd = fd.clone();
            let small = |conn: &Connection| conn.set_send_buffer_size(4608).unwrap();
            let (server, ends) = serve_prepared(&case, &config, small, move |mut conn: TlsConnection| {
                let fd = fd.clone();
                async move {
                    conn.send_file(fd, 7..7 + len).await?;
                    // Nothing that follows pushes the end of the file out.
                    assert!(conn.read().await?.is_none());
                    conn.shutdown().await
                }
            });
            let mut client = connect(server.addr(), &context(&world));
            let len = usize::try_from(len).unwrap();
            let mut all = vec![0; len];
            client.read_exact(&mut all).unwrap_or_else(|error| panic!("{ktls:?} {version} {len}: {error}"));
            assert!(all == content[7..7 + len], "{ktls:?} {version} {len}");
            client.shutdown().unwrap();
            assert!(read_out(&mut client).is_empty());
            ends.recv_timeout(HANG).unwrap().unwrap();
        }
    }
}

/// What comes, and whether its end was a close_notify. (A reset of kernel TLS may be a bare FIN to the peer: law 5.)
fn read_what_comes(client: &mut Client) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    let end = client.read_to_end(&mut all);
    let clean = end.is_ok() && client.get_shutdown().contains(ShutdownState::RECEIVED);
    (all, clean)
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
            let (all, clean) = read_what_comes(&mut client);
            assert!(!clean && all.len() < 4 << 20, "{} bytes", all.len());
        }
    }
}

/// A close in the middle: by the kernel the file goes out whole and the end behind it; here it is a cut that looks like one.
#[test]
fn a_close_in_the_middle_of_a_file() {
    let case = Case::start();
    let world = World::new();
    let (fd, content) = file(4 << 20);
    for ktls in [Ktls::Off, Ktls::Tx] {
        let fd = fd.clone();
        let config = world.options().ktls(ktls).build().unwrap();
        let (server, ends) = serve(&case, &config, move |mut conn: TlsConnection| {
            let fd = fd.clone();
            async move {
                let handle = conn.close_handle();
                let mut sending = std::pin::pin!(conn.send_file(fd, ..));
                let once = std::future::poll_fn(|cx| std::task::Poll::Ready(sending.as_mut().poll(cx)));
                assert!(once.await.is_pending(), "4 MiB in one poll");
                handle.close();
                sending.await
            }
        });
        let mut client = connect(server.addr(), &context(&world));
        let whole = ktls == Ktls::Tx && kernel_has_tls();
        let (all, clean) = read_what_comes(&mut client);
        assert_eq!(clean, whole, "{ktls:?}: {} bytes", all.len());
        assert_eq!(all == content, whole, "{} bytes", all.len());
        assert_eq!(ends.recv_timeout(HANG).unwrap().is_ok(), whole);
    }
}
