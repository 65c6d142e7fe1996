//! Letting go while something waits or is just completing: a half, the other half, or the whole, from another task or
//! thread (ioxide's adapter lock: 5000 connections, and 400 rounds, for each adapter). Rust's ownership makes the worst of
//! it impossible; what is left is that everything ends and everything is given back, which the case's account checks.
//!
//! `EPOXIDE_ROUNDS` scales it: 300, when unset, is a tenth of the full size, 3000 is all of it.

mod common;

use common::{SOON, everywhere};
use epoxide::{Connection, ReactorConfig, workers};
use epoxide_pipes::{ByteStream, Duplex};
use epoxide_tests_e2e::{Case, Peer, Rng, rounds, wait_until};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn scaled(full: usize) -> usize {
    (full * rounds() / 3000).clamp(10, full)
}

#[derive(Default)]
struct Seen {
    entered: AtomicUsize,
    left: AtomicUsize,
    /// Ended by a handle, while it waited or at its next read.
    completed: AtomicUsize,
    ended: AtomicUsize,
}

impl Seen {
    fn count(counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn of(counter: &AtomicUsize) -> usize {
        counter.load(Ordering::Relaxed)
    }
}

/// Reads until it is told to end, by whichever side. `completed` tells the handle from the peer.
async fn read_until_told(mut pipe: epoxide_pipes::PipeReader, seen: Arc<Seen>) {
    loop {
        match pipe.read().await {
            Ok(result) => {
                let (n, end) = (result.buffer.len(), result.end);
                // Now and then something stays held, so that there are buffers to give back.
                pipe.advance_to(n / 2, n);
                if end {
                    Seen::count(&seen.ended);
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                assert_eq!(pipe.held_memory(), 0);
                Seen::count(&seen.completed);
                break;
            }
            Err(_) => {
                Seen::count(&seen.ended);
                break;
            }
        }
    }
    Seen::count(&seen.left);
}

/// The reading task on a worker, the handle and the writer in the handler: which is first is anybody's guess.
async fn pipe_released(connection: Connection, how: u64, seen: Arc<Seen>) -> io::Result<()> {
    let (input, mut output) = Duplex::new(connection).into_parts();
    Seen::count(&seen.entered);
    let handle = input.handle();
    let closer = input.close_handle();
    let reading = workers::spawn(read_until_told(input, Arc::clone(&seen)));
    output.stage(b"go")?;
    let _ = output.flush().await?;
    match how % 4 {
        0 => handle.complete(),
        1 => {
            drop(output);
            handle.complete();
        }
        2 => closer.close(),
        _ => {
            handle.cancel();
            drop(output);
            handle.complete();
        }
    }
    reading.await.map_err(|error| io::Error::other(error.to_string()))
}

async fn stream_released(connection: Connection, how: u64, seen: Arc<Seen>) -> io::Result<()> {
    let stream = ByteStream::new(connection);
    Seen::count(&seen.entered);
    let closer = stream.close_handle();
    let (mut input, mut output) = stream.into_split();
    let handle = input.handle();
    let reading = workers::spawn(async move {
        let mut space = [0; 100];
        let ended = loop {
            match input.read_slice(&mut space).await {
                Ok(0) => break &seen.ended,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotConnected => break &seen.completed,
                Err(_) => break &seen.ended,
            }
        };
        Seen::count(ended);
        Seen::count(&seen.left);
    });
    let _ = output.write(b"go").await?;
    match how % 4 {
        0 => handle.complete(),
        1 => {
            drop(output);
            handle.complete();
        }
        2 => closer.close(),
        // The whole, from here: the task's future is dropped on its worker, with whatever it waits for.
        _ => reading.abort_handle().abort(),
    }
    let _ = reading.await;
    Ok(())
}

/// Every connection is let go in one of four ways while its peer writes, ends or resets.
fn release<F>(serve: impl Fn(Connection, u64, Arc<Seen>) -> F + Clone + Send + 'static)
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let case = Case::start_rounds();
    let seen = Arc::new(Seen::default());
    let server = everywhere(&case, ReactorConfig::default(), {
        let (seen, serve) = (Arc::clone(&seen), serve);
        let next = Arc::new(AtomicUsize::new(0));
        move |connection| serve(connection, next.fetch_add(1, Ordering::Relaxed) as u64, Arc::clone(&seen))
    });
    let mut rng = Rng::new(0x5EED);
    let each = scaled(5000);
    for round in 0..each {
        for addr in server.addrs() {
            let mut peer = Peer::connect(*addr);
            // Its answers may find nobody: that is the point.
            let _ = peer.send(&[b'x'; 300][..1 + rng.below(300) as usize]);
            match round % 3 {
                0 => drop(peer),
                1 => peer.reset(),
                _ => {
                    let _ = peer.read_exactly(2, SOON);
                    let _ = peer.half_close();
                }
            }
        }
    }
    let entered = || Seen::of(&seen.entered);
    assert!(wait_until(SOON, || entered() == 2 * each), "{} of {} handlers came", entered(), 2 * each);
    assert!(server.wait_quiet());
    // Aborted tasks of the stream's case leave without being counted.
    let (completed, ended) = (Seen::of(&seen.completed), Seen::of(&seen.ended));
    println!("{} connections: {completed} completed by a handle, {ended} by the peer or a close", 2 * each);
    assert!(
        completed > each / 20 && ended > each / 20,
        "{completed} completed, {ended} ended: one window was not entered"
    );
}

#[test]
fn pipes_released_from_another_task_end_and_give_everything_back() {
    release(pipe_released);
}

#[test]
fn streams_released_from_another_task_end_and_give_everything_back() {
    release(stream_released);
}

/// 400 rounds for each: a read loop runs on a worker, a stream of bytes comes in, and another task completes it.
#[test]
fn completing_a_running_read_loop_always_ends_it() {
    let case = Case::start_rounds();
    let seen = Arc::new(Seen::default());
    let (handles, given) = std::sync::mpsc::channel();
    let server = everywhere(&case, ReactorConfig::default(), {
        let seen = Arc::clone(&seen);
        move |connection| {
            let (seen, handles) = (Arc::clone(&seen), handles.clone());
            async move {
                let (input, output) = Duplex::new(connection).into_parts();
                Seen::count(&seen.entered);
                let _ = handles.send(input.handle());
                read_until_told(input, seen).await;
                drop(output);
                Ok(())
            }
        }
    });
    let rounds = scaled(400);
    let mut rng = Rng::new(400);
    for round in 0..rounds {
        for addr in server.addrs() {
            let mut peer = Peer::connect(*addr);
            let handle = given.recv_timeout(SOON).unwrap();
            let turns = rng.below(2000);
            let completing = std::thread::spawn(move || {
                for _ in 0..turns {
                    std::hint::spin_loop();
                }
                handle.complete();
            });
            for _ in 0..rng.below(20) {
                let _ = peer.send(b"more and more");
            }
            assert!(peer.ending(SOON).is_closed(), "round {round}: the loop goes on");
            completing.join().unwrap();
        }
    }
    assert_eq!(Seen::of(&seen.completed), 2 * rounds, "every loop is ended by its handle: its peer never ends first");
}
