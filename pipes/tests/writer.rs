//! The contract of a pipe writer (TWR-01 to 04 in plain text, TMO-09's parking), on reactors and on workers.

mod common;

use bytes::{BufMut, Bytes};
use common::{SOON, everywhere};
use epoxide::{CloseReason, ReactorConfig, workers};
use epoxide_pipes::{Duplex, PipeWriter};
use epoxide_tests_e2e::{Case, Ending, Peer, pattern};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::mpsc::channel;
use std::task::Poll;

const MIB: usize = 1 << 20;

/// TWR-01. A large body in one flush, staged in every way there is.
#[test]
fn every_way_of_staging_keeps_the_order() {
    let case = Case::start();
    let server = everywhere(&case, ReactorConfig::default(), |connection| async move {
        let (_input, mut output) = Duplex::new(connection).into_parts();
        let body = pattern(2 * MIB);
        output.stage(&body[..10])?;
        output.stage_bytes(Bytes::copy_from_slice(&body[10..MIB]))?;
        output.try_reserve(100)?.put_slice(&body[MIB..MIB + 60]);
        output.spare(100)?[..40].copy_from_slice(&body[MIB + 60..MIB + 100]);
        output.advance(40);
        output.stage(&body[MIB + 100..])?;
        assert_eq!((output.staged_len(), output.unsent_len()), (2 * MIB, 2 * MIB));
        assert!(!output.flush().await?.completed);
        assert_eq!((output.staged_len(), output.unsent_len()), (0, 0));
        Ok(())
    });
    for addr in server.addrs() {
        let (body, ending) = Peer::connect(*addr).read_to_end(SOON);
        assert!(body == pattern(2 * MIB) && ending == Ending::Eof, "{} bytes, {ending:?}", body.len());
    }
}

/// `send` keeps the order with what was staged, takes more than may be staged, and does not take back what is cancelled.
#[test]
fn a_send_is_a_stage_and_a_flush() {
    let case = Case::start();
    let config = ReactorConfig { max_staged: MIB / 4, ..ReactorConfig::default() };
    let server = everywhere(&case, config, |connection| async move {
        let (_input, mut output) = Duplex::new(connection).into_parts();
        let body = pattern(6 * MIB);
        assert!(!output.send(&body[..10]).await?.completed);
        assert_eq!(output.unsent_len(), 0);
        output.stage(&body[10..20])?;
        assert!(!output.send(&body[20..MIB]).await?.completed);
        assert!(!output.send(&[]).await?.completed);
        // To a peer that does not read: it waits, and goes on.
        assert!(!output.send(&body[MIB..5 * MIB]).await?.completed);
        let mut at = 5 * MIB;
        while at < 6 * MIB {
            output.cancel_pending_flush();
            let piece = &body[at..at + MIB / 8];
            let told = output.send(piece).await?;
            assert!(!told.completed);
            at += piece.len();
            if told.cancelled {
                output.flush().await?;
            }
        }
        let over = output.send(&body).await.unwrap_err();
        assert!(over.to_string().contains("staged"), "{over}");
        output.complete();
        assert!(output.send(b"too late").await.is_err());
        Ok(())
    });
    for addr in server.addrs() {
        let (body, ending) = Peer::connect(*addr).read_to_end(SOON);
        assert!(body == pattern(6 * MIB) && ending == Ending::Eof, "{} bytes, {ending:?}", body.len());
    }
}

/// TWR-02. Completing commits what is staged, also when nobody ever flushes; nothing can be staged behind it.
#[test]
fn completing_commits_what_is_staged() {
    let case = Case::start();
    let server = everywhere(&case, ReactorConfig::default(), |connection| async move {
        let (_input, mut output) = Duplex::new(connection).into_parts();
        output.stage(b"never flushed")?;
        output.complete();
        output.complete();
        let refused = output.stage(b"too late").unwrap_err();
        assert_eq!((refused.asked, refused.limit), (8, 0));
        assert!(output.stage_bytes(Bytes::from_static(b"x")).is_err() && output.try_reserve(1).is_err());
        assert!(output.spare(1).is_err());
        assert_eq!(output.write(b"x").await.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        assert!(output.flush().await?.completed);
        Ok(())
    });
    for addr in server.addrs() {
        assert_eq!(Peer::connect(*addr).read_to_end(SOON), (b"never flushed".to_vec(), Ending::Eof));
    }
}

/// Polls a flush until it waits; then the writer is inside the window that the tests below are about.
async fn stage_until_a_flush_waits(output: &mut PipeWriter) -> io::Result<usize> {
    let mut staged = 0;
    loop {
        output.stage(&pattern(251 * 1024))?;
        staged += 251 * 1024;
        let mut flush = output.flush();
        let parked = poll_fn(|cx| match Pin::new(&mut flush).poll(cx) {
            Poll::Ready(result) => Poll::Ready(result.map(|_| false)),
            Poll::Pending => Poll::Ready(Ok(true)),
        });
        // A flush that only yields (its budget is used up) has sent everything.
        if parked.await? && output.unsent_len() > 0 {
            return Ok(staged);
        }
    }
}

/// TWR-04. Completing while a flush waits: nothing breaks, everything staged arrives, and then the end.
#[test]
fn completing_while_a_flush_waits_loses_nothing() {
    let case = Case::start();
    let (tell, told) = channel::<usize>();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let tell = tell.clone();
        async move {
            let (_input, mut output) = Duplex::new(connection).into_parts();
            let mut staged = stage_until_a_flush_waits(&mut output).await?;
            output.stage(&pattern(251))?;
            staged += 251;
            output.complete();
            let _ = tell.send(staged);
            // Dropped with the flush under way: the end comes behind it.
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect_stalling(*addr);
        let staged = told.recv_timeout(SOON).unwrap();
        let (body, ending) = peer.read_to_end(SOON);
        assert!(body == pattern(staged) && ending == Ending::Eof, "{} of {staged}, {ending:?}", body.len());
    }
}

/// A parked flush is ended from another thread, by a cancel and by completing; what was staged goes out all the same.
#[test]
fn a_parked_flush_is_cancelled_or_completed_from_another_thread() {
    let case = Case::start();
    let (handles, given) = channel();
    let (tell, told) = channel();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let (handles, tell) = (handles.clone(), tell.clone());
        async move {
            let (_input, mut output) = Duplex::new(connection).into_parts();
            let handle = output.handle();
            let staged = stage_until_a_flush_waits(&mut output).await?;
            let _ = handles.send((handle, staged));
            let _ = tell.send(output.flush().await?);
            // With what was completed meanwhile the loop ends.
            let _ = tell.send(output.flush().await?);
            assert!(output.stage(b"x").is_err());
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect_stalling(*addr);
        let (handle, staged) = given.recv_timeout(SOON).unwrap();
        handle.cancel();
        let first = told.recv_timeout(SOON).unwrap();
        assert!(first.cancelled && !first.completed);
        handle.complete();
        let second = told.recv_timeout(SOON).unwrap();
        assert!(second.completed && !second.cancelled);
        let (body, ending) = peer.read_to_end(SOON);
        assert!(body == pattern(staged) && ending == Ending::Eof, "{} of {staged}, {ending:?}", body.len());
    }
}

/// "Write until it is completed" ends: by our own end without an error, by the peer's reset with its reason.
#[test]
fn writing_until_completed_ends_with_the_connection() {
    let case = Case::start();
    let (tell, told) = channel();
    let (closers, given) = channel();
    let server = everywhere(&case, ReactorConfig::default(), move |connection| {
        let (tell, closers) = (tell.clone(), closers.clone());
        async move {
            let (_input, mut output) = Duplex::new(connection).into_parts();
            let _ = closers.send(output.close_handle());
            let ended = loop {
                output.stage(&[b'x'; 1000])?;
                match output.flush().await {
                    Ok(result) if result.completed => break Ok(()),
                    Ok(_) => {}
                    Err(error) => break Err(CloseReason::of(&error)),
                }
            };
            let _ = tell.send(ended);
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        let closer = given.recv_timeout(SOON).unwrap();
        peer.read_exactly(5000, SOON).unwrap();
        peer.reset();
        let reason = told.recv_timeout(SOON).unwrap().unwrap_err();
        assert!(matches!(reason, Some(CloseReason::PeerReset { .. })), "{reason:?}");
        drop(closer);

        let mut peer = Peer::connect(*addr);
        given.recv_timeout(SOON).unwrap().close();
        assert_eq!(peer.ending(SOON), Ending::Eof);
        assert_eq!(told.recv_timeout(SOON).unwrap(), Ok(()));
    }
}

/// Staging past the limit is refused whole and changes nothing.
#[test]
fn staging_past_the_limit_leaves_the_connection_usable() {
    let case = Case::start();
    let config = ReactorConfig { max_staged: 100, ..ReactorConfig::default() };
    let server = everywhere(&case, config, |connection| async move {
        let (_input, mut output) = Duplex::new(connection).into_parts();
        output.stage(&[b'a'; 60])?;
        let refused = output.stage(&[b'b'; 41]).unwrap_err();
        assert_eq!((refused.asked, refused.staged, refused.limit), (41, 60, 100));
        assert!(output.stage_bytes(Bytes::from(vec![b'b'; 41])).is_err() && output.try_reserve(41).is_err());
        assert_eq!(output.staged_len(), 60);
        output.flush().await?;
        output.stage(&[b'c'; 100])?;
        output.shutdown().await
    });
    for addr in server.addrs() {
        let (body, ending) = Peer::connect(*addr).read_to_end(SOON);
        assert_eq!((body, ending), ([[b'a'; 60].as_slice(), &[b'c'; 100]].concat(), Ending::Eof));
    }
}

/// OFF-02. Another task stages and completes; the handler lets go of its half.
#[test]
fn a_writer_works_on_a_task_of_its_own() {
    let case = Case::start();
    let server = everywhere(&case, ReactorConfig::default(), |connection| async move {
        let (mut input, mut output) = Duplex::new(connection).into_parts();
        let writer = workers::spawn(async move {
            for _ in 0..100 {
                output.stage(&pattern(1000)).map_err(io::Error::from)?;
                output.flush().await?;
            }
            output.complete();
            io::Result::Ok(())
        });
        let asked = input.read_exact(3).await?.buffer.to_vec();
        assert_eq!(asked, b"all");
        writer.await.map_err(|error| io::Error::other(error.to_string()))?
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"all").unwrap();
        let (body, ending) = peer.read_to_end(SOON);
        assert!(body == pattern(1000).repeat(100) && ending == Ending::Eof, "{} bytes, {ending:?}", body.len());
    }
}
