//! How connections end: a reset is never taken for a clean end, a response is never killed by
//! input nobody read, a panic never looks like a whole answer, and idle connections hold nothing.

use std::future::{Future, poll_fn};
use std::io::{self, ErrorKind};
use std::pin::pin;
use std::sync::mpsc::{Receiver, channel};
use std::task::Poll;
use std::time::Duration;

use epoxide::{CloseReason, Connection};
use epoxide_tests_e2e::{
    Case, Ending, Gate, Http, Peer, Server, SockDiag, TcpState, http_ok, http_reply, loopback, pattern, provoke_panic,
    rounds, stage, wait_until,
};

const SOON: Duration = Duration::from_secs(4);

/// What a handler met: how its sends failed, what its next read returned, and the stored reason.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Met {
    send: Option<ErrorKind>,
    read: Result<usize, ErrorKind>,
    reason: Option<String>,
}

/// Waits at the gate its client names, then sends until that fails (at most 64 times), and reads.
fn sender_server(case: &Case, gates: Vec<Gate>) -> (Server, Receiver<Met>) {
    let (met, meetings) = channel();
    let server = Server::start(case, move |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (met, gates) = (met.clone(), gates.clone());
            async move {
                let Some(first) = connection.read().await? else { return io::Result::Ok(()) };
                gates[usize::from(first[0])].wait().await;
                drop(first);
                let mut send = None;
                for _ in 0..64 {
                    stage(&mut connection, b"are you there?")?;
                    if let Err(error) = connection.flush().await {
                        send = Some(error.kind());
                        break;
                    }
                }
                let read = connection.read().await.map(|b| b.map_or(0, |b| b.len()));
                let read = read.map_err(|e| e.kind());
                let reason = connection.close_reason().map(|r| format!("{r:?}"));
                let _ = met.send(Met { send, read, reason });
                Ok(())
            }
        });
    });
    (server, meetings)
}

/// 3g-88: the peer's RST makes our send fail; that send consumes the error, and the recv that
/// follows returns 0. It must not be read as the peer's clean end.
#[test]
fn a_reset_after_our_failed_send_is_never_a_clean_end() {
    let case = Case::start_rounds();
    for after_half_close in [false, true] {
        let rounds = rounds().min(250);
        let gates: Vec<Gate> = (0..rounds).map(|_| Gate::new()).collect();
        let (server, meetings) = sender_server(&case, gates.clone());
        let diag = SockDiag::open();
        for (round, gate) in gates.iter().enumerate() {
            let mut peer = Peer::connect(server.addr());
            let (ours, theirs) = (peer.local_addr(), peer.peer_addr());
            peer.send(&[u8::try_from(round).unwrap()]).unwrap();
            let parked = || diag.row(theirs, ours).is_some_and(|row| row.unread == 0);
            assert!(wait_until(SOON, parked), "the handler does not read its first byte");
            if after_half_close {
                peer.half_close().unwrap();
                let closing = || diag.row(theirs, ours).is_some_and(|r| r.state == TcpState::CloseWait);
                assert!(wait_until(SOON, closing));
            }
            peer.reset();
            let gone = || diag.row(theirs, ours).is_none();
            assert!(wait_until(SOON, gone), "vacuity: the reset has not arrived");
            gate.open();
            let met = meetings.recv_timeout(SOON).expect("the handler hangs after a reset");
            assert_eq!(met.send, Some(ErrorKind::ConnectionReset), "round {round}: {met:?}");
            assert_eq!(met.read, Err(ErrorKind::ConnectionReset), "round {round}: {met:?}");
            let reason = met.reason.unwrap_or_default();
            assert!(reason.contains("PeerReset"), "round {round}: {reason}");
        }
    }
}

/// The control: a peer that only half-closes takes every send, and the read is a clean end.
#[test]
fn a_fin_after_our_sends_is_a_clean_end() {
    let case = Case::start();
    let gate = Gate::new();
    let (server, meetings) = sender_server(&case, vec![gate.clone()]);
    let mut peer = Peer::connect(server.addr());
    peer.send_with_fin(&[0]).unwrap();
    gate.open();
    let met = meetings.recv_timeout(SOON).unwrap();
    assert_eq!((met.send, met.read, met.reason), (None, Ok(0), None));
    assert_eq!(peer.read_to_end(SOON).1, Ending::Eof);
}

/// A reset is an error for a parked and for a later read, with its own reason and errno.
#[test]
fn a_peer_reset_is_an_error_with_its_reason() {
    let case = Case::start();
    let (met, meetings) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let met = met.clone();
            async move {
                drop(connection.read().await?);
                stage(&mut connection, b"!")?;
                connection.flush().await?;
                let error = connection.read().await.map(|_| ()).unwrap_err();
                let again = connection.read().await.map(|_| ()).map_err(|e| e.kind());
                let reason = CloseReason::of(&error);
                let _ = met.send((error.kind(), again, reason, connection.close_reason()));
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    peer.read_exactly(1, SOON).unwrap();
    peer.reset();
    let (kind, again, of_error, stored) = meetings.recv_timeout(SOON).unwrap();
    assert_eq!(kind, ErrorKind::ConnectionReset);
    assert_eq!(again, Err(ErrorKind::ConnectionReset), "a later read forgets the reset");
    assert!(format!("{of_error:?}").contains("PeerReset"), "{of_error:?}");
    assert!(format!("{stored:?}").contains("PeerReset"), "{stored:?}");
}

/// Bytes that arrived before the reset... do not survive it in the kernel; but bytes that arrived
/// before a FIN do, however long the handler takes.
#[test]
fn received_bytes_come_before_the_end() {
    let case = Case::start();
    let gate = Gate::new();
    let handler_gate = gate.clone();
    let (got, gots) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (gate, got) = (handler_gate.clone(), got.clone());
            async move {
                gate.wait().await;
                let _ = got.send(epoxide_tests_e2e::read_to_end(&mut connection).await?);
                io::Result::Ok(())
            }
        });
    });
    let sent = pattern(100_000);
    let mut peer = Peer::connect(server.addr());
    peer.send(&sent).unwrap();
    peer.half_close().unwrap();
    gate.open();
    assert!(gots.recv_timeout(SOON).unwrap() == sent);
}

/// 3g-96: an early answer with the request's body unread. Closing such a socket at once sends a RST
/// that can kill the answer on its way; letting go must send the FIN and discard.
#[test]
fn unread_input_at_close_does_not_kill_the_last_response() {
    let case = Case::start_rounds();
    let rounds = rounds().min(250);
    let gates: Vec<Gate> = (0..rounds).map(|_| Gate::new()).collect();
    let handler_gates = gates.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let gates = handler_gates.clone();
            async move {
                let mut first = [0];
                if connection.read_slice(&mut first).await? == 0 {
                    return Ok(());
                }
                gates[usize::from(first[0])].wait().await;
                stage(&mut connection, &http_reply(503, &[b'x'; 2000]))?;
                connection.flush().await
                // Let go here, with the body unread.
            }
        });
    });
    let diag = SockDiag::open();
    for (round, gate) in gates.iter().enumerate() {
        let mut client = Http::connect(server.addr());
        let (ours, theirs) = (client.peer().local_addr(), client.peer().peer_addr());
        let mut body = pattern(200 * 1024);
        body[0] = u8::try_from(round).unwrap();
        let early = body.len() / 2;
        client.peer().send_until_blocked(&body[..early], Duration::from_millis(300)).unwrap();
        let unread = || diag.row(theirs, ours).is_some_and(|row| row.unread > 16 * 1024);
        assert!(wait_until(SOON, unread), "vacuity: round {round}: nothing is unread");
        gate.open();
        // Half the body meets a handler that has gone.
        client.send(&body[early..]).unwrap_or_else(|e| panic!("round {round}: {e}"));
        let (responses, ending, left_over) = client.drain(SOON);
        assert_eq!(responses.len(), 1, "round {round}: {ending:?}, {left_over} bytes of a response");
        assert_eq!((responses[0].status, ending, left_over), (503, Ending::Eof, 0), "round {round}");
        // A RST behind the FIN would not take the answer from THIS kernel, but from others; it shows
        // as a pending error, and as a socket that is not waiting for our FIN any more.
        client.send(b"and still more of it").unwrap_or_else(|e| panic!("round {round}: {e}"));
        let discarded = || diag.row(theirs, ours).is_none_or(|row| row.unread == 0);
        assert!(wait_until(SOON, discarded), "round {round}: nobody discards the input");
        let error = client.peer().stream().take_error().unwrap();
        assert!(error.is_none(), "round {round}: a RST behind the answer: {error:?}");
        let state = diag.row(ours, theirs).map(|row| row.state);
        assert_eq!(state, Some(TcpState::CloseWait), "round {round}: the server did not linger");
    }
}

/// 3g-97: idle connections hold no receive buffer. The control holds one on purpose.
#[test]
fn idle_connections_hold_no_buffers() {
    let case = Case::start();
    let gate = Gate::new();
    let handler_gate = gate.clone();
    let (held, holds) = channel();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
        b.listen(loopback(), move |mut connection: Connection| {
            let (gate, held) = (handler_gate.clone(), held.clone());
            async move {
                let received = connection.read().await?;
                let _ = held.send(());
                gate.wait().await;
                drop(received);
                io::Result::Ok(())
            }
        });
    });
    let before = server.stats().buffers_outstanding;
    let mut idle: Vec<Http> = (0..200).map(|_| Http::connect(server.addrs()[0])).collect();
    for client in &mut idle {
        assert_eq!(client.get().map(|r| r.status), Ok(200));
    }
    // A snapshot lags behind by one pass at most.
    assert!(wait_until(SOON, || server.stats().open == 200));
    let given_back = wait_until(SOON, || server.stats().buffers_outstanding == before);
    assert!(given_back, "200 idle connections hold {:?} buffers", server.stats().buffers_outstanding);
    let mut holder = Peer::connect(server.addrs()[1]);
    holder.send(b"x").unwrap();
    holds.recv_timeout(SOON).unwrap();
    assert_eq!(server.stats().buffers_outstanding, before + 1, "control: a held one is counted");
    gate.open();
    drop(holder);
    for client in &mut idle {
        assert_eq!(client.get().map(|r| r.status), Ok(200), "after idling");
    }
}

/// Idle connections cost no CPU.
#[test]
fn idle_connections_cost_no_cpu() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), http_ok);
    });
    let mut idle: Vec<Http> = (0..1000).map(|_| Http::connect(server.addr())).collect();
    assert_eq!(idle[999].get().map(|r| r.status), Ok(200));
    let all_open = || server.stats().open == 1000;
    assert!(wait_until(SOON, all_open));
    let share = server.reactor_cpu().share_over(Duration::from_secs(1)).unwrap();
    assert!(share <= 0.05, "1000 idle connections cost {share:.2} of a core");
}

/// A panic in a handler: its peer gets a RST (a cut body must not look whole), everybody else goes
/// on, on the same reactor.
#[test]
fn a_panicking_handler_resets_its_peer_and_harms_nobody_else() {
    let case = Case::start();
    let mut server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            drop(connection.read().await);
            let _ = stage(&mut connection, b"HTTP/1.1 200 x\r\n\r\nhalf a bo");
            let _ = connection.flush().await;
            provoke_panic("in the middle of a response");
        });
        b.listen(loopback(), http_ok);
    });
    let mut other = Http::connect(server.addrs()[1]);
    assert_eq!(other.get().map(|r| r.status), Ok(200));
    for i in 0..10 {
        let mut peer = Peer::connect(server.addrs()[0]);
        peer.send(b"x").unwrap();
        assert_eq!(peer.ending(SOON), Ending::Reset, "connection {i}");
        assert_eq!(other.get().map(|r| r.status), Ok(200), "after panic {i}");
    }
    server.claim_panics(10);
}

/// Letting go sends what was flushed and then the FIN; `reset` sends a RST whatever was flushed.
#[test]
fn letting_go_ends_with_a_fin_and_reset_with_a_rst() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            let Some(order) = connection.read().await? else { return io::Result::Ok(()) };
            stage(&mut connection, b"bye")?;
            connection.flush().await?;
            if order.first() == Some(&b'r') {
                connection.reset();
            }
            Ok(())
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"f").unwrap();
    assert_eq!(peer.read_to_end(SOON), (b"bye".to_vec(), Ending::Eof));
    let mut peer = Peer::connect(server.addr());
    peer.send(b"r").unwrap();
    assert_eq!(peer.ending(SOON), Ending::Reset);
}

/// Bytes that were staged and never flushed are discarded, not sent: they belong to the writer.
#[test]
fn staged_bytes_that_were_not_flushed_are_not_sent() {
    let case = Case::start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), |mut connection: Connection| async move {
            drop(connection.read().await?);
            stage(&mut connection, b"flushed")?;
            connection.flush().await?;
            stage(&mut connection, b"only staged")
        });
    });
    let mut peer = Peer::connect(server.addr());
    peer.send(b"x").unwrap();
    assert_eq!(peer.read_to_end(SOON), (b"flushed".to_vec(), Ending::Eof));
}

/// Closing behind a queue: `close` from any thread lets what is queued go out, then the FIN, and the
/// handler's reads end.
#[test]
fn a_close_behind_a_queued_response_delivers_it_whole() {
    let case = Case::start();
    let (handles, handle) = channel();
    let (done, dones) = channel();
    let body = pattern(6 << 20);
    let expected = body.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (handles, done, body) = (handles.clone(), done.clone(), body.clone());
            async move {
                drop(connection.read().await?);
                stage(&mut connection, &body)?;
                let _ = handles.send(connection.close_handle());
                let flushed = connection.flush().await.map_err(|e| e.kind());
                let read = connection.read().await.map(|b| b.map(|b| b.len())).map_err(|e| e.kind());
                let _ = done.send((flushed, read));
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"x").unwrap();
    let handle = handle.recv_timeout(SOON).unwrap();
    let parked = dones.recv_timeout(Duration::from_millis(300));
    assert!(parked.is_err(), "vacuity: the flush never parked");
    handle.close();
    let (received, ending) = peer.read_to_end(Duration::from_secs(30));
    assert_eq!((received.len(), ending), (expected.len(), Ending::Eof));
    assert!(received == expected, "bytes differ");
    drop(peer);
    let (flushed, read) = dones.recv_timeout(SOON).expect("the handler hangs");
    assert_eq!(flushed, Ok(()), "what was queued did go out");
    assert!(!matches!(read, Ok(Some(_))), "a read after close returned bytes: {read:?}");
}

/// A flush that is cancelled goes on without its future, and letting go puts the FIN behind it.
#[test]
fn letting_go_behind_a_cancelled_flush_delivers_it_whole() {
    let case = Case::start();
    let (gone, gones) = channel();
    let body = pattern(6 << 20);
    let expected = body.clone();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), move |mut connection: Connection| {
            let (gone, body) = (gone.clone(), body.clone());
            async move {
                drop(connection.read().await?);
                stage(&mut connection, &body)?;
                let first_poll = {
                    let mut flush = pin!(connection.flush());
                    poll_fn(|cx| Poll::Ready(flush.as_mut().poll(cx).is_pending())).await
                };
                drop(connection);
                let _ = gone.send(first_poll);
                io::Result::Ok(())
            }
        });
    });
    let mut peer = Peer::connect_stalling(server.addr());
    peer.send(b"x").unwrap();
    assert_eq!(gones.recv_timeout(SOON), Ok(true), "vacuity: the flush was not pending");
    let (received, ending) = peer.read_to_end(Duration::from_secs(30));
    assert_eq!((received.len(), ending), (expected.len(), Ending::Eof));
    assert!(received == expected, "bytes differ");
}
