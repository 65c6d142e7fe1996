//! A peer that reads slowly bounds what a copy to it holds: `tokio::io::copy` of a long body, in one test of its own,
//! because it measures the memory of the whole process.
//!
//! `EPOXIDE_COPY_MIB` is the body's size: 64 MiB when unset, 1024 in a full run. `EPOXIDE_COPY_RATE` is how many MiB the peer
//! reads in a second: as many as come when unset, 1 in a full run, which takes 17 minutes then.

mod common;

use common::SOON;
use epoxide::Connection;
use epoxide_pipes::{ByteStream, DEFAULT_WRITE_HIGH_WATER};
use epoxide_tests_e2e::{Case, Peer, Server, asked_for, loopback, wait_until};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Looks at what is unsent after every write.
struct Watched {
    stream: ByteStream,
    most: Arc<AtomicUsize>,
    waits: Arc<AtomicUsize>,
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.most.fetch_max(self.stream.unsent_len(), Ordering::Relaxed);
        if written.is_pending() {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.stream), cx)
    }
}

fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[test]
fn a_copy_to_a_slow_reader_holds_no_more_than_the_high_water() {
    let (mib, rate) = (asked_for("EPOXIDE_COPY_MIB", 64), asked_for("EPOXIDE_COPY_RATE", 0));
    let case = Case::start_within(Duration::from_secs(120 + (mib / rate.clamp(1, 4)) as u64));
    let body = mib << 20;
    let [most, waits] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
    let server = Server::start(&case, |b| {
        let (most, waits) = (Arc::clone(&most), Arc::clone(&waits));
        b.listen(loopback(), move |connection: Connection| {
            let (most, waits) = (Arc::clone(&most), Arc::clone(&waits));
            async move {
                let mut stream = Watched { stream: ByteStream::new(connection), most, waits };
                let copied = tokio::io::copy(&mut tokio::io::repeat(b'x').take(body as u64), &mut stream).await?;
                assert_eq!(copied, body as u64);
                stream.shutdown().await
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    // Everything is full and the copy waits: nothing is read yet, and most of the body is still to come.
    assert!(wait_until(SOON, || waits.load(Ordering::Relaxed) > 0), "the copy never waits");
    let before = resident();
    let begun = Instant::now();
    let (mut chunk, mut got, mut highest) = (vec![0; 16 * 1024], 0, before);
    loop {
        match peer.read(&mut chunk, SOON).unwrap() {
            0 => break,
            n => got += n,
        }
        if let Some(due) = ((got * 1000) >> 20).checked_div(rate) {
            // sleep: the peer's pace.
            std::thread::sleep(Duration::from_millis(due as u64).saturating_sub(begun.elapsed()));
        }
        if got % 64 < 8 {
            highest = highest.max(resident());
        }
    }
    assert_eq!(got, body);
    let most = most.load(Ordering::Relaxed);
    assert!(most > 0 && most <= DEFAULT_WRITE_HIGH_WATER, "{most} bytes were unsent");
    let grown = highest - before;
    println!(
        "{mib} MiB: at most {most} bytes unsent, {grown} bytes more resident, {} waits",
        waits.load(Ordering::Relaxed)
    );
    assert!(grown < 1 << 20, "the process grew by {grown} bytes");
}
