//! Loom: the shared writer. Appends and kicks against edges, FIN and close, and the wait by ticket.
//!
//! State: none; `model` has the stand-in. Thread class: tests. Laws 3, 6, 12.

mod model;

use self::model::{FRAME, Model, Twin, WIRE};
use crate::conn::frames::END;
use crate::sync::atomic::Ordering;
use loom::thread;

/// Two threads send while an edge comes; a socket with room for a frame and a half. Nothing is lost or cut.
fn senders_and_edges(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin, 3);
        let other = model.clone();
        let sender = thread::spawn(move || assert!(other.send(1)));
        let reactor = model.clone();
        let reactor = thread::spawn(move || reactor.edge());
        assert!(model.send(2));
        sender.join().unwrap();
        reactor.join().unwrap();
        // The one edge made room for everything: whoever met the full socket before has seen it.
        assert!(model.word.is_idle(), "a frame is left behind: no owner, no edge to come");
        let mut frames = model.frames_on_the_wire();
        frames.sort_unstable();
        assert_eq!(frames, [1, 2], "a frame is left behind");
    });
}

#[test]
fn loom_shared_frames_are_whole_and_none_is_left_behind() {
    senders_and_edges(Twin::Right);
}

#[test]
#[should_panic(expected = "left behind")]
fn loom_twin_shared_kick_before_the_append() {
    senders_and_edges(Twin::KickBeforeAppend);
}

#[test]
#[should_panic]
fn loom_twin_shared_remainder_put_back_after_leaving() {
    senders_and_edges(Twin::LeaveBeforePutBack);
}

/// A waiter by ticket against the sender that brings it, and the edge if the socket has too little room: whoever is
/// pending is woken.
fn tickets(twin: Twin, room: usize) {
    loom::model(move || {
        let model = Model::new(twin, room);
        let other = model.clone();
        let sender = thread::spawn(move || assert!(other.send(1)));
        let reactor = model.clone();
        let reactor = (room < FRAME).then(|| thread::spawn(move || reactor.edge()));
        let ticket = model.ticket();
        let pending = model.poll(ticket);
        sender.join().unwrap();
        reactor.into_iter().for_each(|reactor| reactor.join().unwrap());
        assert_eq!(model.frames_on_the_wire(), [1]);
        if let Some(flag) = pending {
            assert!(flag.0.load(Ordering::Acquire), "a waiter is left behind");
        }
    });
}

#[test]
fn loom_shared_ticket_is_never_left_behind() {
    tickets(Twin::Right, 1);
    tickets(Twin::Right, WIRE);
}

#[test]
#[should_panic(expected = "a waiter is left behind")]
fn loom_twin_shared_look_before_the_registration() {
    tickets(Twin::LookBeforeRegister, 1);
}

#[test]
#[should_panic(expected = "a waiter is left behind")]
fn loom_twin_shared_no_wake_after_progress() {
    tickets(Twin::NoWakeAfterProgress, 1);
}

#[test]
#[should_panic(expected = "a waiter is left behind")]
fn loom_twin_shared_a_quiet_owner_does_not_know_the_waiter() {
    tickets(Twin::WaitWithoutAMark, WIRE);
}

/// Frames past the queue against one that is in it: each ends on the wire where its sender was told.
fn ends_are_true(twin: Twin) {
    loom::model(move || {
        let model = Model::new(twin, WIRE);
        let other = model.clone();
        let sender = thread::spawn(move || other.send_to(1).unwrap());
        let mut ends = [2, 3].map(|frame| (model.send_to(frame).unwrap(), frame)).to_vec();
        ends.push((sender.join().unwrap(), 1));
        ends.sort_unstable();
        let told: Vec<_> = ends.into_iter().map(|(_, frame)| frame).collect();
        assert_eq!(model.frames_on_the_wire(), told, "out before it is: its place was taken");
    });
}

#[test]
fn loom_shared_frames_past_the_queue_keep_the_count() {
    ends_are_true(Twin::Right);
}

#[test]
#[should_panic(expected = "its place was taken")]
fn loom_twin_shared_a_frame_overtakes_the_queue() {
    ends_are_true(Twin::OvertakeTheQueue);
}

/// Senders and waiters against this side's FIN or reset: what was accepted is out before the FIN, what was refused is not
/// there, nothing stays queued, everybody is woken, and the word has one owner throughout.
fn senders_and_end(twin: Twin, fin: bool, room: usize) {
    loom::model(move || {
        let model = Model::new(twin, room);
        let other = model.clone();
        let sender = thread::spawn(move || other.send(1));
        let closer = model.clone();
        let closer = thread::spawn(move || if fin { closer.fin() } else { closer.close() });
        let mut accepted = Vec::new();
        if model.send(2) {
            accepted.push(2);
        }
        let pending = [model.poll(model.ticket()), model.poll(END)];
        if sender.join().unwrap() {
            accepted.push(1);
        }
        closer.join().unwrap();
        model.edge();
        assert!(model.word.is_over() && model.word.is_idle());
        assert!(model.slow.lock().unwrap().out.is_empty(), "something stays queued");
        if fin {
            let mut frames = model.frames_on_the_wire();
            frames.sort_unstable();
            accepted.sort_unstable();
            assert_eq!(frames, accepted, "accepted and sent differ");
            assert_ne!(model.socket.fin_at.load(Ordering::Relaxed), usize::MAX, "no FIN");
        }
        for flag in pending.into_iter().flatten() {
            assert!(flag.0.load(Ordering::Acquire), "a waiter is left behind");
        }
        assert!(!model.send(3), "sent after the end");
    });
}

#[test]
fn loom_shared_send_against_fin() {
    senders_and_end(Twin::Right, true, 1);
    senders_and_end(Twin::Right, true, WIRE);
}

#[test]
fn loom_shared_send_against_reset() {
    senders_and_end(Twin::Right, false, 3);
}

#[test]
#[should_panic]
fn loom_twin_shared_send_behind_the_fin() {
    // The FIN goes between an append and its kick: whoever sent meanwhile has room for all.
    senders_and_end(Twin::SendBehindTheFin, true, WIRE);
}

#[test]
#[should_panic(expected = "the owner has lost its word")]
fn loom_twin_shared_a_refused_writer_leaves_the_word() {
    senders_and_end(Twin::RefusedLeavesTheWord, false, 3);
}
