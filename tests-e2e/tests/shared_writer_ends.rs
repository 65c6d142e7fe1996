//! Shared writers: every way in which their connection ends, and who hears of it.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::Duration;

use bytes::Bytes;
use epoxide::{Connection, Refusal, SendOutcome, SharedLimits};
use epoxide_tests_e2e::{Case, Ending, Peer, Server, block_within, loopback, sharing, wait_until};

const HANG: Duration = Duration::from_secs(30);
const FRAMES: usize = 200;
const LEN: usize = 8192;

fn frame() -> Bytes {
    Bytes::from_static(&[7; LEN])
}

fn accepted(outcome: SendOutcome) {
    assert!(!matches!(outcome, SendOutcome::Refused(..)), "{outcome:?}");
}

/// Every way to end a connection while threads wait for their tickets and for the end.
#[test]
fn waits_end_with_the_connection() {
    let case = Case::start();
    let limits = SharedLimits { bytes: 2 * FRAMES * LEN, age: Duration::ZERO, ..SharedLimits::default() };
    for how in ["close", "reset", "peer resets", "peer leaves", "stop"] {
        let (mut server, shared) = sharing(&case, limits);
        let peer = Peer::connect_stalling(server.addr());
        let writer = shared.recv_timeout(HANG).expect("the connection is accepted");
        for _ in 0..FRAMES {
            accepted(writer.send(frame()));
        }
        assert!(writer.queued_len() > 0, "vacuity: it all went");
        let waits: Vec<_> = (0..3)
            .map(|_| {
                let (flusher, closer) = (writer.clone(), writer.clone());
                let flush = std::thread::spawn(move || block_within(flusher.flush(), HANG));
                let closed = std::thread::spawn(move || block_within(closer.closed(), HANG));
                (flush, closed)
            })
            .collect();
        let mut peer = Some(peer);
        match how {
            "close" => writer.close_handle().close(),
            "reset" => writer.close_handle().reset(),
            "peer resets" => peer.take().unwrap().reset(),
            // With input unread: that is a reset too.
            "peer leaves" => drop(peer.take()),
            _ => {
                server.abandon_connections();
                let report = server.runtime().handle();
                assert!(report.stats().open == 1);
            }
        }
        if how == "stop" {
            server.stop(Duration::ZERO).unwrap();
        } else {
            if how == "close" {
                // What was accepted goes out before the end.
                let (received, ending) = peer.take().unwrap().read_to_end(HANG);
                assert_eq!((received.len(), ending), (FRAMES * LEN, Ending::Eof), "{how}");
            }
            assert!(wait_until(HANG, || writer.close_reason().is_some()), "{how}");
        }
        for (flush, closed) in waits {
            let flushed = flush.join().unwrap().unwrap_or_else(|| panic!("{how}: a flush is left behind"));
            assert_eq!(flushed.is_ok(), how == "close", "{how}: {flushed:?}");
            let reason = closed.join().unwrap().unwrap_or_else(|| panic!("{how}: closed() is left behind"));
            assert_eq!(Some(reason), writer.close_reason(), "{how}");
        }
        assert!(matches!(writer.send(frame()), SendOutcome::Refused(Refusal::Closed(_), _)), "{how}");
    }
}

/// The read half is gone: the peer's FIN is the end, unless the limits say half-open; a reset is in any case.
#[test]
fn closed_follows_the_peer_when_nobody_reads() {
    let case = Case::start();
    for (half_open, resets) in [(false, false), (true, false), (false, true), (true, true)] {
        let (writers, shared) = channel();
        let handler = move |connection: Connection| {
            let (_, writer) = connection.into_shared(SharedLimits { half_open, ..SharedLimits::default() });
            let _ = writers.send(writer);
            std::future::ready(())
        };
        let server = Server::start(&case, |b| {
            b.listen(loopback(), handler);
        });
        let mut peer = Peer::connect(server.addr());
        let writer = shared.recv_timeout(HANG).unwrap();
        accepted(writer.send(&b"before"[..]));
        assert_eq!(peer.read_exactly(6, HANG).unwrap(), b"before");
        if resets {
            peer.reset();
            let reason = block_within(writer.closed(), HANG).expect("closed() is left behind");
            assert!(matches!(reason, epoxide::CloseReason::PeerReset { .. }), "{reason:?}");
            continue;
        }
        // Unread input before the FIN does not hide it.
        peer.send(b"nobody reads this").unwrap();
        peer.half_close().unwrap();
        if half_open {
            let events = server.stats().events;
            assert!(block_within(writer.closed(), Duration::from_millis(100)).is_none());
            assert!(server.stats().events >= events);
            accepted(writer.send(&b"after"[..]));
            assert_eq!(peer.read_exactly(5, HANG).unwrap(), b"after");
            drop(writer);
        } else {
            let reason = block_within(writer.closed(), HANG).expect("closed() is left behind");
            assert_eq!(reason, epoxide::CloseReason::PeerFin);
            assert!(matches!(writer.send(&b"x"[..]), SendOutcome::Refused(Refusal::Closed(_), _)));
        }
        assert_eq!(peer.ending(HANG), Ending::Eof);
    }
}

/// The same over a unix socket, where no TCP_INFO tells: the edges do.
#[test]
fn closed_follows_the_peer_over_unix_too() {
    let case = Case::start();
    let path = std::env::temp_dir().join(format!("epoxide-shared-{}", std::process::id()));
    for (half_open, leaves) in [(false, false), (true, false), (false, true), (true, true)] {
        let (writers, shared) = channel();
        let handler = move |connection: Connection| {
            let (_, writer) = connection.into_shared(SharedLimits { half_open, ..SharedLimits::default() });
            let _ = writers.send(writer);
            std::future::ready(())
        };
        let _server = Server::start(&case, |b| {
            b.listen_unix(&path, handler);
        });
        let mut peer = UnixStream::connect(&path).unwrap();
        peer.set_read_timeout(Some(HANG)).unwrap();
        let writer = shared.recv_timeout(HANG).unwrap();
        accepted(writer.send(&b"before"[..]));
        if leaves {
            // With input unread: the kernel calls that a reset.
            drop(peer);
            let reason = block_within(writer.closed(), HANG).expect("closed() is left behind");
            assert!(matches!(reason, epoxide::CloseReason::PeerReset { .. }), "{reason:?}");
            continue;
        }
        peer.read_exact(&mut [0; 6]).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        if half_open {
            assert!(block_within(writer.closed(), Duration::from_millis(100)).is_none());
            accepted(writer.send(&b"after"[..]));
            drop(writer);
        } else {
            let reason = block_within(writer.closed(), HANG).expect("closed() is left behind");
            assert_eq!(reason, epoxide::CloseReason::PeerFin);
        }
        let mut rest = Vec::new();
        peer.read_to_end(&mut rest).unwrap();
        assert_eq!(rest.len(), if half_open { 5 } else { 0 });
    }
}
