//! How reading ends: at the peer's end, by a cancel, by completing, by a drain; on reactors and on workers.

mod common;

use common::{SOON, everywhere, halves, read_and_tell};
use epoxide::ReactorConfig;
use epoxide_tests_e2e::{Case, Ending, Peer};
use std::io;
use std::sync::mpsc::channel;

/// What is left at the peer's end stays readable, with the end told each time; bytes come before a reset.
#[test]
fn leftovers_stay_readable_at_the_end() {
    let case = Case::start();
    let (tell, told) = channel::<()>();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let tell = tell.clone();
        async move {
            let (mut input, _output) = halves(connection);
            loop {
                let result = input.read().await?;
                let (n, end) = (result.buffer.len(), result.end);
                input.advance_to(0, n);
                if end {
                    break;
                }
            }
            let result = input.read().await?;
            assert!(result.end && result.buffer.to_vec() == b"tail");
            assert!(input.try_read()?.is_some_and(|result| result.end && result.buffer.len() == 4));
            assert_eq!(&*input.take(2), b"ta");
            assert_eq!(input.read_exact(3).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(input.read_exact(2).await?.buffer.to_vec(), b"il");
            let _ = tell.send(());
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send_with_fin(b"tail").unwrap();
        told.recv_timeout(SOON).unwrap();
    }
}

/// A read that is parked is cancelled from another thread, wakes, and loses nothing. (ioxide's does not wake.)
#[test]
fn a_cancel_wakes_a_parked_read_and_loses_nothing() {
    let case = Case::start();
    let (handles, given) = channel();
    let (tell, told) = channel::<Vec<u8>>();
    let (parks, parked) = channel::<()>();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let (handles, tell, parks) = (handles.clone(), tell.clone(), parks.clone());
        async move {
            let (mut input, _output) = halves(connection);
            assert_eq!(input.read_exact(2).await?.buffer.len(), 2);
            input.advance_to(0, 2);
            // Asked for before there is a wait: the next read tells it, once.
            input.cancel_pending_read();
            assert!(input.read().await?.cancelled);
            let _ = handles.send(input.handle());
            let result = read_and_tell(&mut input, &parks).await?;
            assert!(result.cancelled && !result.end && result.buffer.to_vec() == b"AB");
            let _ = tell.send(b"cancelled".to_vec());
            let result = input.read().await?;
            assert!(!result.cancelled);
            let _ = tell.send(result.buffer.to_vec());
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"AB").unwrap();
        let handle = given.recv_timeout(SOON).unwrap();
        parked.recv_timeout(SOON).expect("the read waits");
        handle.cancel();
        assert_eq!(told.recv_timeout(SOON).unwrap(), b"cancelled");
        peer.send(b"C").unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), b"ABC");
        // The pipe is gone: nothing happens.
        assert!(peer.ending(SOON).is_closed());
        handle.cancel();
        handle.complete();
    }
}

/// Completing is final, gives the buffers back, and leaves the connection open.
#[test]
fn completing_ends_reading_and_nothing_else() {
    let case = Case::start();
    let (handles, given) = channel();
    let (parks, parked) = channel::<()>();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let (handles, parks) = (handles.clone(), parks.clone());
        async move {
            let (mut input, mut output) = halves(connection);
            assert_eq!(input.read_exact(2).await?.buffer.len(), 2);
            input.advance_to(0, 2);
            let _ = handles.send(input.handle());
            // Parked; the other thread completes it.
            assert_eq!(read_and_tell(&mut input, &parks).await.unwrap_err().kind(), io::ErrorKind::NotConnected);
            assert_eq!((input.held_len(), input.held_memory()), (0, 0));
            input.complete();
            assert_eq!(input.read().await.unwrap_err().kind(), io::ErrorKind::NotConnected);
            assert!(input.try_read().is_err() && input.read_at_least(1).await.is_err());
            assert!(input.read_slice(&mut [0]).await.is_err());
            output.stage(b"still here")?;
            output.flush().await?;
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"AB").unwrap();
        let handle = given.recv_timeout(SOON).unwrap();
        parked.recv_timeout(SOON).expect("the read waits");
        handle.complete();
        assert_eq!(peer.read_to_end(SOON), (b"still here".to_vec(), Ending::Eof));
    }
}

/// Law 6: idle only with nothing held. A drain ends an idle reader, and lets one that holds half a request finish it.
#[test]
fn a_drain_ends_idle_readers_and_waits_for_those_that_hold_bytes() {
    let case = Case::start();
    let (tell, told) = channel::<()>();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let tell = tell.clone();
        async move {
            let (mut input, mut output) = halves(connection);
            loop {
                let result = input.read_idle().await?;
                if result.end && result.buffer.is_empty() {
                    return Ok(());
                }
                let n = result.buffer.len();
                if result.buffer.find(b"\n").is_some() {
                    input.advance(n);
                    output.stage(b"answer")?;
                    output.flush().await?;
                } else {
                    input.advance_to(0, n);
                }
                let _ = tell.send(());
            }
        }
    });
    let mut idle: Vec<_> = server.addrs().iter().map(|addr| Peer::connect(*addr)).collect();
    let mut busy: Vec<_> = server.addrs().iter().map(|addr| Peer::connect(*addr)).collect();
    for (idle, busy) in idle.iter_mut().zip(&mut busy) {
        idle.send(b"whole\n").unwrap();
        assert_eq!(idle.read_exactly(6, SOON).unwrap(), b"answer");
        busy.send(b"half").unwrap();
        told.recv_timeout(SOON).unwrap();
        told.recv_timeout(SOON).unwrap();
    }
    std::thread::scope(|scope| {
        let stopped = scope.spawn(move || server.stop(SOON).unwrap());
        for (idle, busy) in idle.iter_mut().zip(&mut busy) {
            assert_eq!(idle.ending(SOON), Ending::Eof);
            busy.send(b" and half\n").unwrap();
            assert_eq!(busy.read_to_end(SOON), (b"answer".to_vec(), Ending::Eof));
        }
        assert_eq!(stopped.join().unwrap().cut, 0);
    });
}
