//! The contract of a pipe reader (PRD-01 to 04 and what ioxide's reader promises), on reactors and on workers.

mod common;

use common::{SOON, everywhere, halves, read_and_tell, small};
use epoxide::{Connection, ReactorConfig};
use epoxide_tests_e2e::{Case, Gate, Peer, pattern, wait_until};
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// PRD-01. What is examined and not consumed stays, and the next read waits for more.
#[test]
fn a_read_waits_for_bytes_that_were_not_examined_and_keeps_the_others() {
    let case = Case::start();
    let (tell, told) = channel::<Vec<u8>>();
    let (parks, parked) = channel::<()>();
    let server = everywhere(&case, ReactorConfig::default(), {
        move |connection| {
            let (tell, parks) = (tell.clone(), parks.clone());
            async move {
                let (mut input, _output) = halves(connection);
                let first = input.read().await?.buffer.to_vec();
                assert_eq!(first, b"AB");
                input.advance_to(0, 2);
                let second = read_and_tell(&mut input, &parks).await?.buffer.to_vec();
                let _ = tell.send(second);
                Ok(())
            }
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"AB").unwrap();
        parked.recv_timeout(SOON).expect("the second read waits");
        peer.send(b"C").unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), b"ABC");
    }
}

/// Consumed alone: what is left was not examined, so the next read returns at once. Marks count from the last result,
/// also when it began in the middle of a buffer.
#[test]
fn what_was_not_examined_is_there_at_once_and_marks_are_rebased() {
    let case = Case::start();
    let (tell, told) = channel::<Vec<u8>>();
    let server = everywhere(&case, small(4), move |connection| {
        let tell = tell.clone();
        async move {
            let (mut input, _output) = halves(connection);
            // Five buffers of 4 bytes or fewer; a head of 6 ends in the middle of one.
            let result = input.read_at_least(18).await?;
            assert_eq!(result.buffer.find(b"|"), Some(5));
            input.advance(6);
            let result = input.read().await?;
            assert_eq!(result.buffer.to_vec(), b"BODY|another");
            assert_eq!(result.buffer.find(b"|"), Some(4));
            // Examined beyond what is consumed, twice, in the middle of a buffer.
            input.advance_to(2, 3);
            assert_eq!(input.read().await?.buffer.to_vec(), b"DY|another");
            input.advance_to(1, 10);
            assert!(input.try_read()?.is_none(), "all was examined");
            let _ = tell.send(Vec::new());
            let more = input.read().await?.buffer.to_vec();
            input.advance(more.len());
            let _ = tell.send(more);
            Ok(())
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"HEAD-|BODY|another").unwrap();
        told.recv_timeout(SOON).unwrap();
        peer.send(b"!").unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), b"Y|another!");
    }
}

/// PRD-03. Buffers go back as consumption passes them: 2000 round trips leave the pool as it was.
#[test]
fn two_thousand_bytes_one_by_one_hold_no_buffers() {
    let case = Case::start();
    let server = everywhere(&case, small(512), |connection| async move {
        let (mut input, mut output) = halves(connection);
        loop {
            let result = input.read().await?;
            let (n, end) = (result.buffer.len(), result.end);
            input.advance(n);
            assert_eq!((input.held_len(), input.held_memory()), (0, 0));
            for _ in 0..n {
                output.stage(b".")?;
            }
            if output.flush().await?.completed || end {
                return Ok(());
            }
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        let mut allocated = 0;
        for round in 0..2000 {
            peer.send(b"x").unwrap();
            assert_eq!(peer.read_exactly(1, SOON).unwrap(), b".");
            if round == 100 {
                allocated = server.stats().buffers_allocated;
            }
        }
        let after = server.stats().buffers_allocated;
        assert!(after <= allocated + 4, "{allocated} buffers at round 100, {after} at the end");
    }
}

/// PRD-04, CORE-12. A reader that falls behind loses nothing: every byte, then a clean end, again and again.
#[test]
fn a_reader_that_falls_behind_gets_every_byte_and_then_the_end() {
    let case = Case::start();
    let behind = Gate::new();
    let (tell, told) = channel::<Vec<u8>>();
    let server = everywhere(&case, small(64), {
        let behind = behind.clone();
        move |connection| {
            let (behind, tell) = (behind.clone(), tell.clone());
            async move {
                let (mut input, _output) = halves(connection);
                let mut all = input.read().await?.buffer.to_vec();
                input.advance(all.len());
                behind.wait().await;
                loop {
                    let result = input.read().await?;
                    for slice in result.buffer {
                        all.extend_from_slice(slice);
                    }
                    let (n, end) = (result.buffer.len(), result.end);
                    input.advance(n);
                    if end && n == 0 {
                        break;
                    }
                }
                for _ in 0..3 {
                    let again = input.read().await?;
                    assert!(again.end && again.buffer.is_empty());
                }
                let _ = tell.send(all);
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
    for _ in &peers {
        assert!(told.recv_timeout(SOON).unwrap() == pattern(64 + 4096), "bytes are lost or out of order");
    }
}

async fn limits(connection: Connection, tell: Sender<()>) -> io::Result<()> {
    let (mut input, _output) = halves(connection);
    input.set_max_held(100);
    // Too much at once is refused before anything is received.
    let refused = input.read_at_least(101).await.unwrap_err();
    assert!(refused.kind() == io::ErrorKind::QuotaExceeded && refused.to_string().contains("100"), "{refused}");
    let line = input.read_until(b"\r\n", 50, SOON).await?;
    assert_eq!(line.buffer.to_vec(), b"line one\r\n");
    input.advance(10);
    let refused = input.read_until(b"\r\n", 20, SOON).await.unwrap_err();
    assert!(refused.kind() == io::ErrorKind::QuotaExceeded && refused.to_string().contains("20 bytes"), "{refused}");
    // Nothing was lost by that, and the whole is within a larger limit.
    let line = input.read_until(b"\r\n", 32, SOON).await?;
    assert_eq!(line.buffer.to_vec(), b"a line of more than 20 bytes.\r\n");
    input.advance(31);
    let refused = input.read_until(b"", 32, SOON).await.unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    let refused = input.read_until(b"\r\n", 32, Duration::from_millis(20)).await.unwrap_err();
    assert!(refused.kind() == io::ErrorKind::TimedOut && refused.to_string().contains("20ms"), "{refused}");
    let _ = tell.send(());
    // 100 bytes are held and examined: no more of them.
    let n = input.read_at_least(100).await?.buffer.len();
    input.advance_to(0, n);
    let refused = input.read().await.unwrap_err();
    assert!(refused.kind() == io::ErrorKind::QuotaExceeded && refused.to_string().contains("max_held is 100"));
    input.advance(n);
    let refused = input.read_until(b"\r\n", 1000, SOON).await.unwrap_err();
    assert!(refused.kind() == io::ErrorKind::UnexpectedEof && refused.to_string().contains("1000"), "{refused}");
    let rest = input.held_len();
    assert_eq!(n + rest, 140);
    input.advance(rest);
    let end = input.read_until(b"\r\n", 1000, SOON).await?;
    assert!(end.end && end.buffer.is_empty());
    let _ = tell.send(());
    Ok(())
}

#[test]
fn limits_are_named_when_they_are_reached_and_nothing_is_lost() {
    let case = Case::start();
    let (tell, told) = channel();
    let server = everywhere(&case, small(16), move |connection| limits(connection, tell.clone()));
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.send(b"line one\r\na line of more than 20 bytes.\r\n").unwrap();
        told.recv_timeout(SOON).unwrap();
        peer.send(&[b'x'; 140]).unwrap();
        peer.half_close().unwrap();
        told.recv_timeout(SOON).unwrap();
    }
}

/// A delimiter may lie across buffers and come byte by byte.
#[test]
fn a_delimiter_is_found_however_it_is_cut() {
    let case = Case::start();
    let (tell, told) = channel::<Vec<u8>>();
    let server = everywhere(&case, small(3), move |connection| {
        let tell = tell.clone();
        async move {
            let (mut input, _output) = halves(connection);
            loop {
                let line = input.read_until(b"\r\n\r\n", 1000, SOON).await?;
                if line.end && line.buffer.is_empty() {
                    return Ok(());
                }
                let bytes = line.buffer.to_vec();
                input.advance(bytes.len());
                let _ = tell.send(bytes);
            }
        }
    });
    for addr in server.addrs() {
        let mut peer = Peer::connect(*addr);
        peer.drip(b"GET /\r\n\r\n", 1, Duration::from_millis(1)).unwrap();
        peer.send(b"a\r\r\n\r\n\r\n\r\n\r\n\r\n\r\n").unwrap();
        peer.half_close().unwrap();
        let expected: [&[u8]; 4] = [b"GET /\r\n\r\n", b"a\r\r\n\r\n", b"\r\n\r\n", b"\r\n\r\n"];
        for head in expected {
            assert_eq!(told.recv_timeout(SOON).unwrap(), head);
        }
    }
}

/// Reads and the connection's end from the test's own thread: any thread may hold the pipe.
#[test]
fn a_pipe_is_used_from_a_plain_thread() {
    let case = Case::start();
    let (give, given) = channel();
    let server = everywhere(&case, small(8), move |connection| {
        let give = give.clone();
        async move {
            let _ = give.send(connection);
            Ok(())
        }
    });
    let mut peer = Peer::connect(server.addr());
    let (mut input, mut output) = halves(given.recv_timeout(SOON).unwrap());
    peer.send(&pattern(100)).unwrap();
    let got = epoxide_tests_e2e::block_within(input.read_exact(100), SOON).unwrap().unwrap().buffer.to_vec();
    assert!(got == pattern(100));
    assert!(wait_until(SOON, || input.try_read().unwrap().is_some()), "what is not consumed stays");
    output.stage(b"ok").unwrap();
    assert!(!epoxide_tests_e2e::block_within(output.flush(), SOON).unwrap().unwrap().completed);
    assert_eq!(peer.read_exactly(2, SOON).unwrap(), b"ok");
}
