//! Pipes and streams over TLS: the adapters do not know what carries them.

use crate::client::{self, GET, HANG, answer, ask};
use crate::servers::{World, serve};
use epoxide::{ReactorConfig, RecvBuf};
use epoxide_pipes::{ByteStream, Duplex};
use epoxide_tests_e2e::{Case, Server, http_reply, loopback, pattern, wait_until};
use epoxide_tls::{TlsConnection, TlsError};
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

#[test]
fn a_request_goes_wholly_through_pipes() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), |conn| async move {
        let mut pipe = Duplex::new(conn);
        loop {
            let result = pipe.input.read_idle().await?;
            let Some(at) = result.buffer.find(b"\r\n\r\n") else {
                let held = result.buffer.len();
                if result.end {
                    return Ok(());
                }
                pipe.input.advance_to(0, held);
                continue;
            };
            pipe.input.advance(at + 4);
            pipe.output.stage(&http_reply(200, b"pipe-tls-ok"))?;
            pipe.output.flush().await?;
        }
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    assert!(ask(&mut client, GET).unwrap().ends_with("pipe-tls-ok"));
    // One byte a record.
    for byte in GET.as_bytes() {
        client.write_all(&[*byte]).unwrap();
    }
    assert!(answer(&mut client).unwrap().ends_with("pipe-tls-ok"));
    client.shutdown().unwrap();
    ends.recv_timeout(HANG).unwrap().unwrap();
}

#[test]
fn complete_commits_what_is_staged() {
    let case = Case::start();
    let world = World::new();
    let (server, _ends) = serve(&case, &world.options().build().unwrap(), |conn| async move {
        let mut pipe = Duplex::new(conn);
        pipe.output.stage(b"never flushed by hand")?;
        std::thread::spawn(move || pipe.output.complete()).join().unwrap();
        Ok(())
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"never flushed by hand");
    assert!(client.get_shutdown().contains(boring::ssl::ShutdownState::RECEIVED));
}

#[test]
fn garbage_is_a_fault_in_a_pipe_too() {
    let case = Case::start();
    let world = World::new();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), |conn| async move {
        let mut pipe = Duplex::new(conn);
        loop {
            let n = pipe.input.read().await?.buffer.len();
            pipe.input.advance(n);
        }
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    client.write_all(b"good").unwrap();
    client.get_mut().write_all(b"bad bytes").unwrap();
    let error = ends.recv_timeout(HANG).unwrap().unwrap_err();
    assert!(matches!(TlsError::of(&error), Some(TlsError::Decrypt { .. })), "{error}");
}

#[test]
fn a_stream_carries_megabytes_both_ways() {
    let case = Case::start();
    let world = World::new();
    let body = pattern(2 << 20);
    let sent = body.clone();
    let (server, ends) = serve(&case, &world.options().build().unwrap(), move |conn| {
        let body = sent.clone();
        async move {
            let mut stream = ByteStream::new(conn);
            let mut got = vec![0; body.len()];
            let mut filled = 0;
            while filled < got.len() {
                match stream.read(&mut got[filled..]).await? {
                    0 => return Err(ErrorKind::UnexpectedEof.into()),
                    n => filled += n,
                }
            }
            assert!(got == body);
            stream.write_all(&got).await?;
            stream.shutdown().await
        }
    });
    let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
    client.write_all(&body).unwrap();
    let mut back = Vec::new();
    client.read_to_end(&mut back).unwrap();
    assert!(back == body);
    ends.recv_timeout(HANG).unwrap().unwrap();
}

/// A peer that drips: one byte a record, none of them consumed. Memory stays within twice what is held and one buffer.
///
/// `EPOXIDE_DRIP=full` is the whole size: 1000 connections, 8 KiB each, in buffers of 16 KiB; at most 32 MiB, of the process
/// too.
#[test]
fn a_dripping_peer_is_held_in_little_memory() {
    let full = std::env::var("EPOXIDE_DRIP").is_ok_and(|size| size == "full");
    let (head, buffer, connections) = if full { (8192, 16 * 1024, 1000) } else { (600, 1024, 100) };
    let case = Case::start_within(Duration::from_secs(if full { 900 } else { 120 }));
    let world = World::new();
    let config = world.options().build().unwrap();
    let [held, memory] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let counted = (held.clone(), memory.clone());
    let server = Server::start(&case, move |builder| {
        builder.config(ReactorConfig { recv_buffer_size: buffer, ..ReactorConfig::default() });
        builder.listen(loopback(), move |conn| {
            let (config, (held, total)) = (config.clone(), counted.clone());
            async move {
                let mut pipe = Duplex::new(config.accept(conn).await?);
                loop {
                    let result = pipe.input.read().await?;
                    let (n, end) = (result.buffer.len(), result.end);
                    let (memory, bytes) = (pipe.input.held_memory(), pipe.input.held_len());
                    assert!(memory <= 2 * bytes + buffer, "{memory} bytes of memory hold {bytes}");
                    if end {
                        return io::Result::Ok(());
                    }
                    if n == head {
                        total.fetch_add(memory, Ordering::Relaxed);
                        held.fetch_add(n, Ordering::Relaxed);
                    }
                    pipe.input.advance_to(0, n);
                }
            }
        });
    });
    let outstanding = server.stats().buffers_outstanding;
    let context = client::context(&world.authority, |_| {});
    let mut clients: Vec<_> = (0..connections).map(|_| client::connect(server.addr(), &context)).collect();
    // Both ends are in this process; what the clients need they have now.
    let before = resident();
    for _ in 0..head {
        for client in &mut clients {
            client.write_all(b"h").unwrap();
        }
    }
    assert!(wait_until(HANG, || held.load(Ordering::Relaxed) == connections * head), "not all is held");
    let buffers = (server.stats().buffers_outstanding - outstanding) as usize;
    let (memory, grown) = (memory.load(Ordering::Relaxed), resident().saturating_sub(before));
    println!("held: {} bytes, {memory} bytes of memory, {buffers} buffers, {grown} bytes resident", connections * head);
    assert!(buffers <= 2 * connections, "{buffers} buffers: sessions hold none of their own");
    let bound = connections * 2 * buffer;
    assert!(memory <= bound && buffers * buffer <= bound, "{memory} bytes of memory, {buffers} buffers");
    assert!(!full || grown <= bound, "{grown} bytes resident");
    assert!(clients.iter_mut().all(|client| client.shutdown().is_ok()));
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// `read_more` fills what is there and grows as over TCP, up to its limit.
#[test]
fn a_buffer_grows_over_tls_as_over_tcp() {
    let case = Case::start();
    let world = World::new();
    let config = world.options().build().unwrap();
    let (tell, told) = channel();
    let server = Server::start(&case, move |builder| {
        builder.config(ReactorConfig { max_read_buffer: 64 * 1024, ..ReactorConfig::default() });
        builder.listen(loopback(), move |conn| {
            let (config, tell) = (config.clone(), tell.clone());
            async move {
                let mut conn: TlsConnection = config.accept(conn).await?;
                let mut buf: RecvBuf = conn.read().await?.unwrap();
                let full = loop {
                    match conn.read_more(&mut buf).await {
                        Ok(0) => break None,
                        Ok(_) => {}
                        Err(error) => break Some(error),
                    }
                };
                let mut all = buf.to_vec();
                drop(buf);
                let full = full.map(|error| error.kind());
                // Declined bytes are still there.
                while let Some(more) = conn.read().await? {
                    all.extend_from_slice(&more);
                }
                tell.send((full, all)).unwrap();
                io::Result::Ok(())
            }
        });
    });
    let body = pattern(100_000);
    for (len, full) in [(60_000, None), (100_000, Some(ErrorKind::QuotaExceeded))] {
        let mut client = client::connect(server.addr(), &client::context(&world.authority, |_| {}));
        client.write_all(&body[..len]).unwrap();
        client.shutdown().unwrap();
        let (kind, all) = told.recv_timeout(HANG).unwrap();
        assert_eq!(kind, full);
        assert!(all == body[..len], "{} of {len} bytes", all.len());
    }
}
