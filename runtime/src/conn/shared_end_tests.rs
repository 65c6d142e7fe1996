//! Unit tests of the shared writer's end: FIN, reset, close, the peer's leave; as in `shared_tests`, without a reactor.

use super::tests::{Setup, block, flag};
use super::*;
use crate::buf::Outgoing;
use crate::conn::drive::{self, Batch, Drive};
use crate::conn::flush_word::Kick;
use crate::conn::shared_limits::Refusal;
use std::future::Future;
use std::io::Write;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};

/// The append of a frame whose kick is still to come, as behind a layer.
fn append_only(writer: &SharedWriter, frame: &Bytes) {
    writer.append(frame, &writer.core.limits, 0).unwrap();
}

#[test]
fn a_frame_that_comes_too_late_for_the_fin_is_refused_whole() {
    let (mut setup, _reader, writer) = Setup::shared(SharedLimits::default());
    let body = &setup.body;
    // Between its append and its kick, this side's FIN was asked for.
    let frame = Bytes::from(vec![1; 5000]);
    append_only(&writer, &frame);
    let mut flush = pin!(writer.flush());
    let (woken, waker) = flag();
    assert!(flush.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    writer.close_handle().close();
    assert_eq!(writer.kick(local::here(&body.home)), Drive::Closed);
    assert_eq!(writer.queued_len(), 0);
    assert!(woken.0.load(SeqCst) >= 1, "who waits for that frame is left behind");
    let result = flush.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(matches!(result, Poll::Ready(Err(_))), "{result:?}");
    assert!(matches!(writer.send(frame), SendOutcome::Refused(Refusal::Closed(CloseReason::Local), _)));
    assert!(body.flush.is_over() && !body.flush.is_closed());
    setup.ends();
}

/// A writer that is refused owns nothing: the thread inside a send still does.
#[test]
fn a_refused_frame_leaves_the_owner_its_word() {
    let (setup, _reader, writer) = Setup::shared(SharedLimits::default());
    let body = &setup.body;
    assert_eq!(body.flush.kick(), Kick::Own);
    let frame = Bytes::from(vec![1; 5000]);
    append_only(&writer, &frame);
    writer.close_handle().reset();
    assert_eq!(writer.kick(local::here(&body.home)), Drive::Closed);
    assert!(body.flush.is_flushing(), "the owner's word is gone");
    let mut batch = Outgoing::new();
    batch.stage(b"in hand");
    body.queued.fetch_add(7, Ordering::Relaxed);
    let end = drive::drive(body, Batch { bytes: &mut batch, counted: true }, 1 << 20, None);
    assert_eq!((end, writer.queued_len()), (Drive::Closed, 0));
    assert!(body.flush.is_idle());
}

#[test]
fn dropping_the_last_clone_sends_what_was_queued_and_then_the_fin() {
    let (mut setup, _reader, writer) = Setup::shared(SharedLimits::default());
    let accepted = block(&writer);
    let other = writer.clone();
    drop(writer);
    assert!(!setup.body.flush.has_fin());
    drop(other);
    assert!(setup.body.flush.has_fin() && !setup.body.flush.is_idle());
    assert!(setup.read(accepted.len()) == accepted);
    setup.ends();
}

#[test]
fn the_peers_fin_lets_what_was_accepted_go_out() {
    for half_open in [false, true] {
        let (mut setup, reader, writer) = Setup::shared(SharedLimits { half_open, ..SharedLimits::default() });
        let accepted = block(&writer);
        let (woken, waker) = flag();
        let mut cx = Context::from_waker(&waker);
        let mut closed = pin!(writer.closed());
        assert!(closed.as_mut().poll(&mut cx).is_pending());
        setup.peer.shutdown(std::net::Shutdown::Write).unwrap();
        ending::peer_edge(&setup.body, true, false);
        assert!(closed.as_mut().poll(&mut cx).is_pending(), "somebody reads");
        drop(reader);
        if half_open {
            assert!(closed.as_mut().poll(&mut cx).is_pending());
            assert!(setup.read(accepted.len()) == accepted);
            assert!(matches!(writer.send(&b"on"[..]), SendOutcome::Sent));
            assert_eq!(setup.read(2), b"on");
        } else {
            assert_eq!(woken.0.load(SeqCst), 1);
            assert!(matches!(closed.as_mut().poll(&mut cx), Poll::Ready(CloseReason::PeerFin)));
            assert!(matches!(writer.send(&b"on"[..]), SendOutcome::Refused(Refusal::Closed(CloseReason::PeerFin), _)));
            assert!(setup.read(accepted.len()) == accepted);
            setup.ends();
        }
    }
}

#[test]
fn a_reset_is_seen_without_a_send_also_when_half_open() {
    for reads in [false, true] {
        let (setup, reader, writer) = Setup::shared(SharedLimits { half_open: true, ..SharedLimits::default() });
        let reader = reads.then_some(reader);
        let (woken, waker) = flag();
        let mut cx = Context::from_waker(&waker);
        let mut closed = pin!(writer.closed());
        assert!(closed.as_mut().poll(&mut cx).is_pending());
        // Unread input at close(2): a reset.
        (&setup.peer).write_all(b"x").unwrap();
        let _ = writer.send(&b"unread"[..]);
        let Setup { body, peer } = setup;
        peer.peek(&mut [0; 6]).unwrap();
        drop(peer);
        let state = || matches!(crate::sys::socket::tcp_state(body.as_fd()), Ok(crate::sys::socket::CLOSE));
        assert!(
            (0..100_000).any(|_| {
                std::thread::yield_now();
                state()
            }),
            "vacuity: no reset came"
        );
        ending::peer_edge(&body, true, true);
        assert_eq!(woken.0.load(SeqCst), 1, "left behind");
        let end = closed.as_mut().poll(&mut cx);
        assert!(matches!(end, Poll::Ready(CloseReason::PeerReset { errno: 104 })), "{end:?}");
        drop(reader);
    }
}

#[test]
fn a_close_on_this_side_resolves_every_wait() {
    type Close = fn(&CloseHandle);
    for (close, drained) in [(CloseHandle::close as Close, true), (CloseHandle::reset, false)] {
        let (mut setup, _reader, writer) = Setup::shared(SharedLimits::default());
        let accepted = block(&writer);
        let (woken, waker) = flag();
        let mut cx = Context::from_waker(&waker);
        let (mut flush, mut closed) = (pin!(writer.flush()), pin!(writer.closed()));
        assert!(flush.as_mut().poll(&mut cx).is_pending());
        assert!(closed.as_mut().poll(&mut cx).is_pending());
        close(&writer.close_handle());
        assert!(matches!(closed.as_mut().poll(&mut cx), Poll::Ready(CloseReason::Local)));
        if drained {
            assert_eq!(woken.0.load(SeqCst), 1, "the bytes are not out yet");
            assert!(setup.read(accepted.len()) == accepted);
            assert_eq!(woken.0.load(SeqCst), 2);
            assert!(matches!(flush.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
        } else {
            assert_eq!(woken.0.load(SeqCst), 2);
            assert!(matches!(flush.as_mut().poll(&mut cx), Poll::Ready(Err(_))));
        }
        assert_eq!(writer.queued_len(), 0);
    }
}

/// A goodbye goes out to a peer that reads no data: behind what waits, within a margin of its own.
#[test]
fn control_frames_have_a_margin_above_the_limits() {
    let limits = SharedLimits { bytes: 64 * 1024, age: std::time::Duration::from_millis(1), ..SharedLimits::default() };
    let (mut setup, _reader, writer) = Setup::shared(limits);
    let mut expected = block_with(&writer, 8192);
    let began = std::time::Instant::now();
    while !matches!(writer.send(vec![1; 8192]), SendOutcome::Refused(Refusal::Age, _)) {
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "vacuity: data are not refused by age");
        // sleep: age is time.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for i in 0..CONTROL_BYTES / 256 {
        let frame = vec![i as u8; 256];
        expected.extend_from_slice(&frame);
        assert!(matches!(writer.send_control(frame), SendOutcome::Queued), "{i}");
    }
    expected.extend(fill_up(&writer));
    assert!(matches!(writer.send_control(vec![0; 8192]), SendOutcome::Refused(..)), "not bounded");
    assert!(setup.read(expected.len()) == expected);
}

/// Control frames of one byte until one is refused.
fn fill_up(writer: &SharedWriter) -> Vec<u8> {
    let mut taken = Vec::new();
    while !matches!(writer.send_control(vec![9]), SendOutcome::Refused(..)) {
        taken.push(9);
        assert!(taken.len() < 100_000, "not bounded");
    }
    taken
}

/// Sends frames of this size until one is refused; returns what was accepted.
fn block_with(writer: &SharedWriter, size: usize) -> Vec<u8> {
    let mut accepted = Vec::new();
    loop {
        let frame = vec![accepted.len() as u8; size];
        match writer.send(frame.clone()) {
            SendOutcome::Refused(..) => return accepted,
            _ => accepted.extend(frame),
        }
    }
}

#[test]
#[allow(
    clippy::mutable_key_type,
    reason = "the hash is that of the connection's place in memory, which does not change"
)]
fn writers_are_equal_if_they_write_to_one_connection() {
    let (_setup, _reader, writer) = Setup::shared(SharedLimits::default());
    let (_other_setup, _other_reader, other) = Setup::shared(SharedLimits::default());
    assert!(writer == writer.clone() && writer != other);
    let set: std::collections::HashSet<_> = [writer.clone(), other, writer].into_iter().collect();
    assert_eq!(set.len(), 2);
}
