//! Seeded mixes of every read and write call, hopping between threads.

use std::io;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::thread;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use epoxide::{Connection, ReactorConfig, ReactorHandle, time};
use epoxide_tests_e2e::*;

const SOON: Duration = Duration::from_secs(60);

fn run_somewhere<T: Send + 'static>(
    rng: &mut Rng,
    handles: &[ReactorHandle],
    future: impl Future<Output = T> + Send + 'static,
) -> T {
    let what = "a segment hangs";
    match rng.below(4) {
        0 => block_within(handles[0].spawn(future).unwrap(), SOON).expect(what).unwrap(),
        1 => block_within(handles[1].spawn(future).unwrap(), SOON).expect(what).unwrap(),
        2 => block_within(handles[0].workers().spawn(future).unwrap(), SOON).expect(what).unwrap(),
        _ => block_within(future, SOON).expect(what),
    }
}

/// Polls once, then drops.
async fn once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    std::future::poll_fn(|cx| {
        std::task::Poll::Ready(match future.as_mut().poll(cx) {
            std::task::Poll::Ready(v) => Some(v),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

async fn read_segment(
    mut c: Connection,
    mut rng: Rng,
    mut got: Vec<u8>,
) -> io::Result<(Connection, Rng, Vec<u8>, bool)> {
    for _ in 0..rng.below(12) + 1 {
        match rng.below(9) {
            0 => match c.read().await? {
                Some(mut b) => {
                    // Cut it up in every way.
                    let at = rng.below(b.len() as u64 + 2) as usize;
                    let front = b.split_to(at);
                    if rng.below(2) == 0 {
                        got.extend_from_slice(&front.freeze());
                    } else {
                        got.extend_from_slice(&front);
                    }
                    got.extend_from_slice(&b.freeze());
                }
                None => return Ok((c, rng, got, true)),
            },
            1 => {
                let mut space = vec![0; rng.below(100) as usize + 1];
                match c.read_slice(&mut space).await? {
                    0 => return Ok((c, rng, got, true)),
                    n => got.extend_from_slice(&space[..n]),
                }
            }
            2 => {
                let mut space = vec![0; rng.below(100) as usize + 1];
                if c.peek(&mut space).await? == 0 {
                    return Ok((c, rng, got, true));
                }
            }
            3 => match c.try_read() {
                Ok(Some(b)) => got.extend_from_slice(&b),
                Ok(None) => return Ok((c, rng, got, true)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
            },
            4 => match once(c.read()).await {
                Some(Ok(Some(b))) => got.extend_from_slice(&b),
                Some(Ok(None)) => return Ok((c, rng, got, true)),
                Some(Err(e)) => return Err(e),
                None => {}
            },
            5 => match time::timeout(Duration::from_millis(rng.below(3)), c.read_idle()).await {
                Ok(Ok(Some(b))) => got.extend_from_slice(&b),
                Ok(Ok(None)) => return Ok((c, rng, got, true)),
                Ok(Err(e)) => return Err(e),
                Err(_) => {}
            },
            _ => {
                let Some(mut b) = c.read().await? else { return Ok((c, rng, got, true)) };
                for _ in 0..rng.below(6) {
                    match rng.below(4) {
                        0 => {
                            let n = rng.below(b.len() as u64 + 1) as usize;
                            got.extend_from_slice(&b[..n]);
                            b.advance(n);
                        }
                        1 => {
                            let n = rng.below(b.len() as u64 + 1) as usize;
                            let f = b.split_to(n);
                            got.extend_from_slice(&f);
                            if rng.below(2) == 0 {
                                drop(f.freeze());
                            }
                        }
                        _ => {}
                    }
                    let before = b.len();
                    let r = if rng.below(3) == 0 {
                        match once(c.read_more(&mut b)).await {
                            Some(r) => r,
                            None => continue,
                        }
                    } else {
                        c.read_more(&mut b).await
                    };
                    match r {
                        Ok(0) => {
                            got.extend_from_slice(&b);
                            return Ok((c, rng, got, true));
                        }
                        Ok(n) => assert_eq!(b.len(), before + n),
                        Err(e) if e.kind() == io::ErrorKind::QuotaExceeded => assert_eq!(b.len(), before),
                        Err(e) => return Err(e),
                    }
                }
                got.extend_from_slice(&b);
            }
        }
    }
    Ok((c, rng, got, false))
}

#[test]
fn every_way_to_read_on_every_thread_loses_nothing() {
    let case = Case::start();
    for (round, size, max) in [
        (0, 1, 1),
        (1, 1, 64),
        (2, 3, 100),
        (3, 64, 64),
        (4, 64, 1000),
        (5, 4096, 16384),
        (6, 100, 7),
        (7, 16384, 1 << 20),
    ] {
        let server = Server::start(&case, |b| {
            b.reactors(2).config(ReactorConfig {
                recv_buffer_size: size,
                max_read_buffer: max,
                ..ReactorConfig::default()
            });
        });
        let handles = server.runtime().handles();
        for seed in 0..6_u64 {
            let total = 3000 * (1 + size.min(64));
            let unix = seed % 3 == 2;
            let body = pattern(total);
            let send = body.clone();
            let mut w = Rng::new(seed * 77 + round);
            let (mut c, sender) = if unix {
                let (a, mut b) = UnixStream::pair().unwrap();
                (
                    Connection::from_unix_on(&handles[0], a).unwrap(),
                    thread::spawn(move || {
                        write_chunks(&mut w, &mut b, &send);
                        b.shutdown(Shutdown::Write).unwrap();
                        b.read_to_end(&mut Vec::new()).map(drop)
                    }),
                )
            } else {
                let (a, mut b) = tcp_pair(SOON);
                (
                    Connection::from_std_on(&handles[0], a).unwrap(),
                    thread::spawn(move || {
                        write_chunks(&mut w, &mut b, &send);
                        b.shutdown(Shutdown::Write).unwrap();
                        b.read_to_end(&mut Vec::new()).map(drop)
                    }),
                )
            };
            let mut rng = Rng::new(seed * 1000 + round);
            let mut place = Rng::new(seed * 31 + round);
            let mut got = Vec::new();
            loop {
                let over;
                (c, rng, got, over) = run_somewhere(&mut place, &handles, read_segment(c, rng, got)).unwrap();
                assert!(got == body[..got.len()], "round {round} seed {seed}: wrong bytes at most {}", got.len());
                if over {
                    break;
                }
            }
            assert_eq!(got.len(), body.len(), "round {round} seed {seed}");
            drop(c);
            sender.join().unwrap().unwrap();
        }
    }
}

fn write_chunks(rng: &mut Rng, to: &mut impl Write, bytes: &[u8]) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let n = (rng.below(700) as usize + 1).min(rest.len());
        to.write_all(&rest[..n]).unwrap();
        rest = &rest[n..];
        if rng.below(20) == 0 {
            // sleep: spreads the pieces over edges; no outcome depends on it.
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What is staged is appended to `sent` at once.
async fn write_segment(
    mut c: Connection,
    mut rng: Rng,
    mut sent: Vec<u8>,
    body: Bytes,
) -> io::Result<(Connection, Rng, Vec<u8>)> {
    for _ in 0..rng.below(16) + 1 {
        let at = sent.len();
        let most = if rng.below(8) == 0 { 60_000 } else { 400 };
        let n = (rng.below(most) as usize).min(body.len() - at);
        let next = body.slice(at..at + n);
        match rng.below(12) {
            0 => {
                if c.stage(&next).is_ok() {
                    sent.extend_from_slice(&next);
                }
            }
            1 | 2 => {
                // Many small pieces.
                for piece in next.chunks(7).take(1500) {
                    if c.stage_bytes(body.slice(sent.len()..sent.len() + piece.len())).is_err() {
                        break;
                    }
                    sent.extend_from_slice(piece);
                }
            }
            3 => {
                if let Ok(mut r) = c.try_reserve(n) {
                    let part = &next[..rng.below(n as u64 + 1) as usize];
                    r.put_slice(part);
                    sent.extend_from_slice(part);
                }
            }
            4 => {
                if let Ok(s) = c.spare(n) {
                    let k = rng.below(n as u64 + 1) as usize;
                    s[..k].copy_from_slice(&next[..k]);
                    c.advance(k);
                    sent.extend_from_slice(&next[..k]);
                }
            }
            5 => {
                let _ = c.spare(n);
            }
            6 => {
                if let Ok(s) = c.spare(n) {
                    s.fill(0xEE);
                }
                c.stage_bytes(Bytes::new()).ok();
                c.stage(&[]).ok();
            }
            7 => c.flush().await?,
            8 => {
                if let Some(r) = once(c.flush()).await {
                    r?;
                }
            }
            9 => match c.try_flush() {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                _ => {}
            },
            10 => {
                if let Ok(r) = time::timeout(Duration::from_millis(rng.below(3)), c.flush()).await {
                    r?;
                }
            }
            _ => {
                c.send_all(&next).await?;
                sent.extend_from_slice(&next);
            }
        }
    }
    Ok((c, rng, sent))
}

#[test]
fn every_way_to_write_on_every_thread_keeps_the_order() {
    let case = Case::start();
    for (round, budget, max) in [(0, 1, 1000), (1, 100, 1), (2, 1000, 5000), (3, 256 * 1024, 16 << 20), (4, 7, 100_000)]
    {
        let server = Server::start(&case, |b| {
            b.reactors(2).config(ReactorConfig { flush_budget: budget, max_staged: max, ..ReactorConfig::default() });
        });
        let handles = server.runtime().handles();
        for seed in 0..6_u64 {
            let body = Bytes::from(pattern(if budget < 50 || max < 50 { 60_000 } else { 1_000_000 }));
            let unix = seed % 3 == 2;
            let mut w = Rng::new(seed * 78 + round);
            let slow = move |r: &mut dyn Read| {
                let mut all = Vec::new();
                let mut chunk = vec![0; 5000];
                loop {
                    let n = w.below(4990) as usize + 1;
                    match r.read(&mut chunk[..n]) {
                        Ok(0) => return (all, Ok(())),
                        Ok(n) => all.extend_from_slice(&chunk[..n]),
                        Err(e) => return (all, Err(e)),
                    }
                    if w.below(60) == 0 {
                        // sleep: spreads the pieces over edges; no outcome depends on it.
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            };
            let mut slow = slow;
            let (mut c, reader) = if unix {
                let (a, mut b) = UnixStream::pair().unwrap();
                (Connection::from_unix_on(&handles[0], a).unwrap(), thread::spawn(move || slow(&mut b)))
            } else {
                let (a, mut b) = tcp_pair(SOON);
                let c = Connection::from_std_on(&handles[0], a).unwrap();
                c.set_send_buffer_size(4096).unwrap();
                (c, thread::spawn(move || slow(&mut b)))
            };
            let mut rng = Rng::new(seed * 1001 + round);
            let mut place = Rng::new(seed * 37 + round);
            let mut sent = Vec::new();
            let mut turns = 0;
            while sent.len() < body.len() && turns < 250 {
                turns += 1;
                (c, rng, sent) =
                    run_somewhere(&mut place, &handles, write_segment(c, rng, sent, body.clone())).unwrap();
            }
            // The end: everything staged is handed over, then one of four endings.
            let end = place.below(4);
            let close = c.close_handle();
            run_somewhere(&mut place, &handles, async move {
                match end {
                    0 => c.shutdown().await.unwrap(),
                    1 => {
                        let _ = c.try_flush();
                        drop(c);
                    }
                    2 => {
                        let _ = once(c.shutdown()).await;
                        let _ = once(c.flush()).await;
                        drop(c);
                    }
                    _ => {
                        let _ = c.try_flush();
                        close.close();
                        drop(c);
                    }
                }
            });
            let (got, ended) = reader.join().unwrap();
            assert!(
                ended.is_ok(),
                "round {round} seed {seed} end {end}: {ended:?} after {} of {}",
                got.len(),
                sent.len()
            );
            assert_eq!(got.len(), sent.len(), "round {round} seed {seed} end {end} unix {unix}");
            assert!(got == sent, "round {round} seed {seed}: other bytes");
        }
    }
}

#[test]
fn thousands_of_cancelled_reads_then_one_byte() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut c: Connection| async move {
            for _ in 0..5000 {
                assert!(once(c.read()).await.is_none());
                epoxide::yield_now().await;
            }
            let got = c.read().await?.unwrap();
            c.send_all(&got).await
        });
    });
    let mut peer = Peer::connect(server.addr());
    assert!(wait_until(SOON, || server.stats().parks >= 5000));
    peer.send(b"x").unwrap();
    assert_eq!(peer.read_to_end(SOON), (b"x".to_vec(), Ending::Eof));
}
