//! One session from two threads at once: reads decrypt while flushes encrypt.

use crate::client::{self, HANG};
use crate::servers::{World, give_away, serve};
use epoxide_tests_e2e::{Case, block_within, moved_to_workers, rounds, wait_until};
use epoxide_tls::{TlsConnection, TlsReadHalf, TlsVersion, TlsWriteHalf};
use std::io;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

const DOWN: usize = 16 << 20;
const RECORD: usize = 16 * 1024;

fn byte(i: usize) -> u8 {
    (i % 251) as u8
}

/// Sends `DOWN` bytes in flushes of 1 KiB, from a plain thread; every 4096 flushes it renews keys if told to.
fn flush_little(mut write: TlsWriteHalf, renew: bool) -> JoinHandle<TlsWriteHalf> {
    std::thread::spawn(move || {
        let mut kib = [0; 1024];
        for flush in 0..DOWN / kib.len() {
            for (j, out) in kib.iter_mut().enumerate() {
                *out = byte(flush * 1024 + j);
            }
            if renew && flush % 4096 == 100 {
                write.update_keys(true).unwrap();
            }
            write.stage(&kib).unwrap();
            block_within(write.flush(), HANG).expect("a flush hangs").unwrap();
        }
        write
    })
}

/// Receives and checks `DOWN` bytes.
async fn check_all(mut read: TlsReadHalf) -> io::Result<TlsReadHalf> {
    let mut seen = 0;
    while seen < DOWN {
        let data = read.read().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        for (i, got) in data.iter().enumerate() {
            assert_eq!(*got, byte(seen + i), "byte {}", seen + i);
        }
        seen += data.len();
    }
    Ok(read)
}

/// The client: uploads without end while it checks what comes down. Both on one reactor thread of its own.
fn client(config: &epoxide_tls::TlsConfig, addr: std::net::SocketAddr) -> usize {
    epoxide::block_on(async {
        let (read, mut write) = config.connect(addr, "localhost").await.unwrap().into_split();
        let over = Arc::new(AtomicBool::new(false));
        let stop = over.clone();
        let upload = epoxide::spawn_local(async move {
            let record: Vec<u8> = (0..RECORD).map(byte).collect();
            let mut records = 0;
            while !stop.load(Ordering::Relaxed) {
                write.send_all(&record).await.unwrap();
                records += 1;
            }
            write.shutdown().await.unwrap();
            records
        });
        let mut read = check_all(read).await.unwrap();
        over.store(true, Ordering::Relaxed);
        let records = upload.await.unwrap();
        assert!(read.read().await.unwrap().is_none(), "the server's close_notify");
        records
    })
}

/// The server's reads on the reactor or a worker, its flushes on a plain thread. Rounds: 3, and `EPOXIDE_ROUNDS` / 100.
fn both_ways(case: &Case, on_workers: bool) {
    let world = World::new();
    let config = world.client().build().unwrap();
    let during = Arc::new(AtomicUsize::new(0));
    let counted = during.clone();
    let handler = move |conn: TlsConnection| {
        let during = counted.clone();
        async move {
            let (mut read, write) = conn.into_split();
            let writer = flush_little(write, false);
            let mut seen = 0;
            while let Some(data) = read.read().await? {
                for (i, got) in data.iter().enumerate() {
                    assert_eq!(*got, byte((seen + i) % RECORD), "uploaded byte {}", seen + i);
                }
                seen += data.len();
                during.fetch_add(usize::from(!writer.is_finished()), Ordering::Relaxed);
            }
            assert!(writer.is_finished());
            // Dropping both halves ends the session clean.
            drop(writer.join().unwrap());
            Ok::<(), io::Error>(())
        }
    };
    let (tell, ends) = channel();
    let server_config = world.options().build().unwrap();
    let serve_one = move |conn| {
        let (config, handler, tell) = (server_config.clone(), handler.clone(), tell.clone());
        async move {
            let conn = config.accept(conn).await.unwrap();
            tell.send(handler(conn).await).unwrap();
            Ok::<(), io::Error>(())
        }
    };
    let server = if on_workers {
        moved_to_workers(case, serve_one)
    } else {
        epoxide_tests_e2e::Server::start(case, |builder| {
            builder.listen(epoxide_tests_e2e::loopback(), serve_one);
        })
    };
    let mut uploaded = 0;
    for _ in 0..(rounds() / 100).max(1) {
        uploaded += client(&config, server.addr());
        ends.recv_timeout(HANG).unwrap().unwrap();
    }
    assert!(uploaded > 0 && during.load(Ordering::Relaxed) > 100, "reads fell together with flushes: {during:?}");
    if on_workers {
        epoxide_tests_e2e::assert_pool_quiet(&server, 0);
    }
}

#[test]
fn a_thread_flushes_16_mib_while_the_reactor_decrypts_an_upload() {
    both_ways(&Case::start_rounds(), false);
}

#[test]
fn a_thread_flushes_16_mib_while_a_worker_decrypts_an_upload() {
    both_ways(&Case::start_rounds(), true);
}

#[test]
fn keys_are_renewed_both_ways_under_load() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), |conn| async {
        let (mut read, write) = conn.into_split();
        let writer = flush_little(write, true);
        while read.read().await?.is_some() {}
        drop(writer.join().unwrap());
        Ok(())
    });
    assert!(client(&world.client().build().unwrap(), server.addr()) > 0);
    ends.recv_timeout(HANG).unwrap().unwrap();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), crate::servers::echo);
    let old = world.client().max_version(TlsVersion::V1_2).build().unwrap();
    let refused = epoxide::block_on(async {
        let mut conn = old.connect(server.addr(), "localhost").await.unwrap();
        conn.update_keys(true).unwrap_err().to_string()
    });
    assert!(refused.contains("TLS 1.3 only"));
    let _ = ends.recv_timeout(HANG);
}

#[test]
fn a_reader_of_a_session_can_be_dropped_while_another_thread_writes() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), |conn| async {
        let (mut read, mut write) = conn.into_split();
        let first = read.read().await?;
        assert!(first.is_some_and(|data| data.starts_with(b"go")));
        let writer = std::thread::spawn(move || {
            for i in 0..2000_usize {
                write.stage(&[byte(i); 500]).unwrap();
                block_within(write.flush(), HANG).expect("a flush hangs").unwrap();
            }
        });
        drop(read);
        writer.join().unwrap();
        Ok(())
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    client.write_all(b"go").unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 2000 * 500);
    assert!(all.chunks(500).enumerate().all(|(i, piece)| piece == [byte(i); 500]));
    ends.recv_timeout(HANG).unwrap().unwrap();
    assert!(wait_until(HANG, || server.stats().open == 0));
}

/// A parked read whose future is dropped, on another thread, loses nothing and frees nothing in use.
#[test]
fn a_cancelled_read_loses_nothing() {
    let case = Case::start();
    let world = World::new();
    let (server, given) = give_away(&case, &world);
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    let mut conn = given.recv_timeout(HANG).unwrap();
    let parker = epoxide_tests_e2e::Parker::new();
    for word in [&b"hello"[..], b"again"] {
        {
            let read = std::pin::pin!(conn.read());
            assert!(epoxide_tests_e2e::poll_once(read, &parker).is_pending());
        }
        // Half a record, then a read that is cancelled, then the rest.
        client.write_all(word).unwrap();
        let data = block_within(conn.read(), HANG).expect("a read hangs").unwrap().unwrap();
        assert_eq!(&data[..], word);
    }
    let mut slow = [0; 3];
    client.write_all(b"abcdef").unwrap();
    for part in [b"abc", b"def"] {
        let n = block_within(conn.read_slice(&mut slow), HANG).expect("a read hangs").unwrap();
        assert_eq!((n, &slow), (3, part));
    }
    assert_eq!(conn.try_read().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    client.write_all(b"tried").unwrap();
    let mut tried = None;
    assert!(wait_until(HANG, || {
        tried = conn.try_read().ok().flatten();
        tried.is_some()
    }));
    assert_eq!(&tried.unwrap()[..], b"tried");
}
