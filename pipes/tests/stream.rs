//! The contract of a byte stream (STR-01 and what ioxide's stream promises), on reactors and on workers; its bounds.

mod common;

use bytes::Bytes;
use common::{SOON, everywhere, small};
use epoxide::{CloseHandle, Connection, ReactorConfig, Reserved, StagedLimit, WriteHalf};
use epoxide_pipes::transport::Transmit;
use epoxide_pipes::{ByteStream, DEFAULT_WRITE_HIGH_WATER, PipeWriter};
use epoxide_tests_e2e::{Case, Ending, Gate, Parker, Peer, Server, block_within, loopback, pattern, poll_once};
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll};
use std::time::Instant;

/// STR-01. Reads of any size: every byte, then 0 for good; an empty slice takes nothing and waits for nothing.
#[test]
fn every_byte_arrives_and_then_the_end_stays() {
    let case = Case::start();
    let (tell, told) = channel::<Vec<u8>>();
    let behind = Gate::new();
    let server = everywhere(&case, small(64), {
        let behind = behind.clone();
        move |connection| {
            let (tell, behind) = (tell.clone(), behind.clone());
            async move {
                let mut stream = ByteStream::new(connection);
                assert_eq!(stream.read(&mut []).await?, 0, "nothing was sent yet, and it does not wait");
                behind.wait().await;
                let mut all = Vec::new();
                // Short ones through a pooled buffer, long ones directly, and both in turn.
                for size in [1, 7, 100, 4096, 3, 5000].into_iter().cycle() {
                    let mut space = vec![0; size];
                    let n = stream.read(&mut space).await?;
                    if n == 0 {
                        break;
                    }
                    all.extend_from_slice(&space[..n]);
                    assert_eq!(stream.read(&mut []).await?, 0);
                }
                for size in [1, 5000, 0, 1] {
                    assert_eq!(stream.read(&mut vec![0; size]).await?, 0, "the end is told again and again");
                }
                let _ = tell.send(all);
                stream.write_all(b"and writing goes on").await?;
                stream.shutdown().await?;
                stream.shutdown().await?;
                assert_eq!(stream.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
                Ok(())
            }
        }
    });
    let mut peers: Vec<_> = server.addrs().iter().map(|addr| Peer::connect(*addr)).collect();
    for peer in &mut peers {
        peer.send(&pattern(64 + 4096)).unwrap();
        peer.half_close().unwrap();
    }
    behind.open();
    for peer in &mut peers {
        assert!(told.recv_timeout(SOON).unwrap() == pattern(64 + 4096));
        assert_eq!(peer.read_to_end(SOON), (b"and writing goes on".to_vec(), Ending::Eof));
    }
}

/// Writes go out without a flush, and what was not read is not lost when the stream is taken apart.
#[test]
fn writes_go_out_at_once_and_nothing_is_lost_by_splitting() {
    let case = Case::start();
    let server = everywhere(&case, ReactorConfig::default(), |connection| async move {
        let mut stream = ByteStream::new(connection);
        assert_eq!(stream.write(b"").await?, 0);
        assert_eq!(stream.write(b"hello").await?, 5);
        let mut two = [0; 2];
        assert_eq!(stream.read(&mut two).await?, 2);
        let (mut input, output) = stream.into_split();
        assert_eq!(input.read_exact(2).await?.buffer.to_vec(), b"cd");
        let (mut reader, writer, left) = ByteStream::from_split(input, output).into_halves();
        assert_eq!(&*left, b"cdef");
        assert!(reader.read().await?.is_none());
        let mut writer = PipeWriter::new(writer);
        writer.stage(&left)?;
        writer.shutdown().await
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        assert_eq!(peer.read_exactly(5, SOON).unwrap(), b"hello");
        peer.send_with_fin(b"abcdef").unwrap();
        assert_eq!(peer.read_to_end(SOON), (b"cdef".to_vec(), Ending::Eof));
    }
}

/// A server that gives its connections away, with little room in the kernel.
fn giving(case: &Case, config: ReactorConfig) -> (Server, std::sync::mpsc::Receiver<Connection>) {
    let (give, given) = channel();
    let server = Server::start(case, |b| {
        b.config(config);
        b.listen(loopback(), move |connection: Connection| {
            let give = give.clone();
            async move {
                connection.set_send_buffer_size(16 * 1024)?;
                let _ = give.send(connection);
                io::Result::Ok(())
            }
        });
    });
    (server, given)
}

/// Writes the pattern from `at` on until a write waits; returns how many bytes were taken, having looked at the bound all the way.
fn fill(stream: &mut ByteStream, high_water: usize, at: usize, parker: &Arc<Parker>) -> usize {
    let bytes = pattern(251 * 100);
    let mut taken = 0;
    loop {
        match poll_once(pin!(stream.write(&bytes[(at + taken) % 251..])), parker) {
            Poll::Ready(n) => taken += n.unwrap(),
            Poll::Pending => return taken,
        }
        assert!(stream.unsent_len() <= high_water, "{} bytes are unsent", stream.unsent_len());
    }
}

/// The bound, and where it ends: a write waits with the high water unsent, and goes on when half of it has gone, not
/// before and not only when all has.
#[test]
fn a_write_waits_at_the_high_water_and_goes_on_at_half() {
    let case = Case::start();
    let (server, given) = giving(&case, ReactorConfig::default());
    for high_water in [DEFAULT_WRITE_HIGH_WATER, 1 << 20, 1000] {
        let mut peer = Peer::connect_stalling(server.addr());
        let connection = given.recv_timeout(SOON).unwrap();
        let mut stream = ByteStream::with_write_high_water(connection, high_water).unwrap();
        let parker = Parker::new();
        let mut taken = fill(&mut stream, high_water, 0, &parker);
        assert_eq!(stream.unsent_len(), high_water, "it waits with the high water unsent");
        // A peer that takes the bytes little by little: the first wake is at half or below.
        let (mut got, mut seen, mut early) = (Vec::new(), parker.wakes(), 0);
        while early < 3 {
            let deadline = Instant::now() + SOON;
            while parker.wakes() == seen {
                assert!(Instant::now() < deadline, "the write is never woken");
                let mut some = vec![0; 4096];
                match peer.read(&mut some, std::time::Duration::from_millis(5)) {
                    Ok(n) => got.extend_from_slice(&some[..n]),
                    Err(ending) => assert_eq!(ending, Ending::Timeout),
                }
            }
            seen = parker.wakes();
            let left = stream.unsent_len();
            let before = taken;
            // Only a byte: the wait itself is what is tested.
            if let Poll::Ready(n) = poll_once(pin!(stream.write(&pattern(251)[taken % 251..][..1])), &parker) {
                taken += n.unwrap();
            }
            // More may go out between the two looks, so each is held against what cannot change.
            assert!(left > high_water / 2 || taken > before, "{left} of {high_water} are unsent and it waits");
            if taken > before {
                let left = stream.unsent_len();
                assert!(left <= high_water / 2 + 1, "{left} of {high_water} are unsent and it goes on");
                early += 1;
                taken += fill(&mut stream, high_water, taken, &parker);
                assert_eq!(stream.unsent_len(), high_water);
                seen = parker.wakes();
            }
        }
        let reading = std::thread::spawn(move || {
            got.extend(peer.read_to_end(SOON).0);
            got
        });
        block_within(stream.shutdown(), SOON).unwrap().unwrap();
        drop(stream);
        assert!(reading.join().unwrap() == pattern(taken), "bytes are lost");
    }
}

/// Half gone while the peer has stopped for good: the write goes on although the queue never empties.
#[test]
fn a_write_goes_on_at_half_of_a_queue_that_never_empties() {
    let case = Case::start();
    let (server, given) = giving(&case, ReactorConfig::default());
    let high_water = 4 << 20;
    let mut peer = Peer::connect_stalling(server.addr());
    let connection = given.recv_timeout(SOON).unwrap();
    let mut stream = ByteStream::with_write_high_water(connection, high_water).unwrap();
    let parker = Parker::new();
    let taken = fill(&mut stream, high_water, 0, &parker);
    // What the kernel holds and a little more than half of ours.
    let wanted = taken - high_water + high_water / 2 + 64 * 1024;
    assert!(peer.read_exactly(wanted, SOON).unwrap() == pattern(wanted));
    let n = block_within(stream.write(&pattern(251)[taken % 251..]), SOON).expect("half has gone").unwrap();
    assert!(n > 0 && stream.unsent_len() > 0, "the queue was not empty");
    stream.close_handle().reset();
    drop(stream);
    assert!(peer.ending(SOON).is_closed());
}

/// `max_staged` below the high water bounds a write too, and a write waits for room instead of failing, or of holding its
/// thread: on the reactor's own, nobody else would make room.
#[test]
fn a_small_staging_limit_bounds_writes_too() {
    let case = Case::start();
    let (tell, told) = channel::<usize>();
    let config = ReactorConfig { max_staged: 1000, ..ReactorConfig::default() };
    let server = everywhere(&case, config, move |connection| {
        let tell = tell.clone();
        async move {
            connection.set_send_buffer_size(16 * 1024)?;
            let mut stream = ByteStream::new(connection);
            let body = pattern(251 * 12_000);
            let mut left = &body[..];
            while !left.is_empty() {
                // Two slices that do not fit together: what is taken of them is taken once.
                let (one, two) = left.split_at(left.len().min(600));
                let slices = [IoSlice::new(one), IoSlice::new(two)];
                let n = poll_fn(|cx| stream.poll_write_vectored(cx, &slices)).await?;
                let _ = tell.send(n);
                assert!(n > 0 && stream.unsent_len() <= 1000);
                left = &left[n..];
            }
            stream.shutdown().await
        }
    });
    for addr in server.addrs() {
        let (got, ending) = Peer::connect_stalling(*addr).read_to_end(SOON);
        assert!(got == pattern(251 * 12_000) && ending == Ending::Eof, "{} bytes, {ending:?}", got.len());
    }
    let taken: Vec<usize> = told.try_iter().collect();
    assert!(taken.contains(&600) && taken.iter().any(|n| *n < 600), "the limit was met between slices and within one");
}

/// A transport that has no room for a single byte, and nothing on its way either.
struct NoRoom(WriteHalf);

impl NoRoom {
    fn refusal(asked: usize) -> StagedLimit {
        StagedLimit { asked, staged: 0, limit: 10 }
    }
}

impl Transmit for NoRoom {
    fn stage(&mut self, bytes: &[u8]) -> Result<(), StagedLimit> {
        Err(Self::refusal(bytes.len()))
    }

    fn stage_bytes(&mut self, bytes: Bytes) -> Result<(), StagedLimit> {
        Err(Self::refusal(bytes.len()))
    }

    fn try_reserve(&mut self, n: usize) -> Result<Reserved<'_>, StagedLimit> {
        Err(Self::refusal(n))
    }

    fn spare(&mut self, n: usize) -> Result<&mut [u8], StagedLimit> {
        Err(Self::refusal(n))
    }

    fn advance(&mut self, n: usize) {
        self.0.advance(n);
    }

    fn staged_len(&self) -> usize {
        self.0.staged_len()
    }

    fn unsent_len(&self) -> usize {
        self.0.unsent_len()
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(cx)
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        pin!(self.0.shutdown()).poll(cx)
    }

    fn close_handle(&self) -> CloseHandle {
        self.0.close_handle()
    }
}

/// A write that can never be taken is refused: it neither waits for ever nor holds its thread.
#[test]
fn a_write_for_which_there_is_never_room_is_refused() {
    let case = Case::start();
    let (server, given) = giving(&case, ReactorConfig::default());
    let peer = Peer::connect(server.addr());
    let (reader, writer) = given.recv_timeout(SOON).unwrap().into_split();
    let mut stream = ByteStream::from_halves(reader, NoRoom(writer));
    let refused = block_within(stream.write(b"byte"), SOON).expect("it is told at once").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded, "{refused}");
    drop(peer);
}

#[test]
fn a_high_water_of_zero_is_refused_by_name() {
    let case = Case::start();
    let (server, given) = giving(&case, ReactorConfig::default());
    let peer = Peer::connect(server.addr());
    let refused = ByteStream::with_write_high_water(given.recv_timeout(SOON).unwrap(), 0).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("write_high_water"), "{refused}");
    drop(peer);
}

/// A reset is an error and no end; what was received before it is delivered first.
#[test]
fn a_reset_is_told_as_an_error_behind_the_bytes() {
    let case = Case::start();
    let (server, given) = giving(&case, ReactorConfig::default());
    let mut peer = Peer::connect(server.addr());
    let mut stream = ByteStream::new(given.recv_timeout(SOON).unwrap());
    peer.send(b"last words").unwrap();
    let mut space = [0; 4];
    assert_eq!(block_within(stream.read(&mut space), SOON).unwrap().unwrap(), 4);
    peer.reset();
    // The rest of the pooled buffer was received before the reset.
    let mut space = [0; 16];
    assert_eq!(block_within(stream.read(&mut space), SOON).unwrap().unwrap(), 6);
    for _ in 0..2 {
        let error = block_within(stream.read(&mut space), SOON).unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
