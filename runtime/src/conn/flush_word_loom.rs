//! Loom: the flush word between a writer, the reactor, a second writer, closers, and a socket that fills and drains.
//!
//! State: none; `model` has the stand-in. Thread class: tests. Laws: 3, 6 (FIN behind the queue), 8 (Owed), 11 (the
//! reason before the word). What is asserted: every piece sent once and in order, or the connection closed and its
//! queue freed once; the FIN once and last; nobody stuck with unsent pieces, room and no one to act.

mod model;
mod writer;

use self::model::{Act, FIN, Shared, Twin};
use self::writer::Writer;
use crate::sync::atomic::Ordering;
use loom::sync::Arc;
use loom::thread;

#[derive(Clone, Copy)]
struct Scenario {
    room: usize,
    /// Pieces that the writer may send by one poll of its flush.
    budget: usize,
    /// One thread each, beside the writer and the reactor.
    others: [&'static [Act]; 2],
    twin: Twin,
}

fn run(scenario: Scenario) {
    loom::model(move || {
        let asked = scenario.others.concat();
        let shared = asked.iter().any(|act| matches!(act, Act::Append(_)));
        let s = Arc::new(Shared::new(scenario.room, scenario.budget, shared, scenario.twin));
        let mut threads = Vec::new();
        let on = s.clone();
        threads.push(thread::spawn(move || {
            on.pass();
            on.pass();
        }));
        for acts in scenario.others.into_iter().filter(|acts| !acts.is_empty()) {
            let on = s.clone();
            threads.push(thread::spawn(move || acts.iter().for_each(|act| on.act(*act))));
        }
        // One flush, whose future is dropped if it waits, and a second one behind it.
        let mut writer = Writer::default();
        writer.staged.extend([1, 2]);
        writer.poll_flush(&s, 1);
        writer.staged.push(3);
        writer.poll_flush(&s, 2);
        for thread in threads {
            thread.join().unwrap();
        }
        settle(&s, &mut writer);
        judge(&s, &writer, asked.contains(&Act::Fin));
    });
}

/// Nobody else acts any more: the peer takes everything, the reactor serves what is there, a woken writer looks.
fn settle(s: &Shared, writer: &mut Writer) {
    s.peer_gives(9);
    while s.pass() || writer.is_woken(s) {
        if writer.is_woken(s) {
            writer.poll_flush(s, 2);
        }
    }
}

fn judge(s: &Shared, writer: &Writer, fin: bool) {
    let slow = s.slow.lock().unwrap();
    let appended = s.appended.lock().unwrap();
    let mut sent = s.socket.lock().unwrap().wire.clone();
    let fins = sent.iter().filter(|piece| **piece == FIN).count();
    assert!(s.word.is_idle(), "stuck: the word is not idle");
    assert!(slow.out.is_empty(), "stuck: {:?} are queued", slow.out);
    assert_eq!(writer.asleep, None, "stuck: the writer sleeps");
    if fins > 0 {
        assert_eq!((fins, sent.pop()), (1, Some(FIN)), "the FIN is not the last");
    }
    assert!(appended.starts_with(&sent), "sent {sent:?} of {appended:?}");
    if s.word.is_closed() {
        assert_eq!(s.freed.load(Ordering::Relaxed), 1, "the queue is freed once");
        return;
    }
    assert_eq!(fins, usize::from(fin), "stuck: the FIN was asked for and nobody sends it");
    if !fin {
        assert_eq!(sent, *appended, "stuck: unsent");
        assert!(!writer.refused);
    }
}

fn check(room: usize, budget: usize, others: [&'static [Act]; 2]) {
    run(Scenario { room, budget, others, twin: Twin::Right });
}

const ALL: usize = usize::MAX;

#[test]
fn loom_blocked_until_the_peer_makes_room() {
    check(0, ALL, [&[Act::Room, Act::Room], &[]]);
    check(1, ALL, [&[Act::Room], &[]]);
    check(2, ALL, [&[Act::Room], &[]]);
}

#[test]
fn loom_out_of_budget() {
    check(9, 1, [&[], &[]]);
    check(1, 1, [&[Act::Room], &[]]);
}

#[test]
fn loom_fin_follows_the_queue() {
    check(9, ALL, [&[Act::Fin], &[]]);
    check(9, 1, [&[Act::Fin], &[]]);
    check(1, ALL, [&[Act::Room, Act::Fin], &[]]);
    check(1, ALL, [&[Act::Fin, Act::Room], &[]]);
}

#[test]
fn loom_close_at_any_moment() {
    check(9, ALL, [&[Act::Close], &[]]);
    check(9, 1, [&[Act::Close], &[]]);
    check(1, ALL, [&[Act::Room], &[Act::Close]]);
    check(0, 1, [&[Act::Room, Act::Close], &[]]);
}

#[test]
fn loom_two_ends_at_once() {
    check(1, ALL, [&[Act::Fin], &[Act::Close]]);
    check(1, ALL, [&[Act::Close], &[Act::Close]]);
}

#[test]
fn loom_a_failed_send_closes() {
    check(1, ALL, [&[Act::Break], &[]]);
    check(1, 1, [&[Act::Break, Act::Close], &[]]);
    check(1, ALL, [&[Act::Close, Act::Break], &[]]);
}

#[test]
fn loom_two_writers_share() {
    check(9, ALL, [&[Act::Append(4)], &[]]);
    check(9, 1, [&[Act::Append(4)], &[]]);
    check(1, ALL, [&[Act::Append(4), Act::Room], &[]]);
    check(1, ALL, [&[Act::Room, Act::Append(4)], &[]]);
    check(1, ALL, [&[Act::Append(4), Act::Close], &[]]);
    check(9, ALL, [&[Act::Append(4), Act::Fin], &[]]);
}

fn twin(twin: Twin, room: usize, budget: usize, others: [&'static [Act]; 2]) {
    run(Scenario { room, budget, others, twin });
}

#[test]
#[should_panic(expected = "stuck")]
fn loom_twin_an_edge_during_the_flush_is_ignored() {
    twin(Twin::EdgeIgnored, 1, ALL, [&[Act::Room, Act::Room], &[]]);
}

#[test]
#[should_panic(expected = "stuck")]
fn loom_twin_the_budget_keeps_ownership_in_a_dropped_future() {
    twin(Twin::BudgetKeepsOwnership, 9, 1, [&[], &[]]);
}

#[test]
#[should_panic(expected = "its owner")]
fn loom_twin_closed_as_a_state() {
    twin(Twin::ClosedAsState, 9, ALL, [&[Act::Close], &[]]);
}

#[test]
#[should_panic(expected = "over too early")]
fn loom_twin_the_remainder_is_put_back_late() {
    twin(Twin::LatePutBack, 1, ALL, [&[Act::Room], &[]]);
}

#[test]
#[should_panic(expected = "stuck")]
fn loom_twin_finish_does_not_look_again() {
    twin(Twin::NoAgainCheck, 9, ALL, [&[Act::Append(4)], &[]]);
}

#[test]
#[should_panic(expected = "the FIN was asked for and nobody sends it")]
fn loom_twin_the_fin_flag_is_looked_at_before_the_word_is_idle() {
    twin(Twin::EarlyFinFlag, 9, 1, [&[Act::Fin], &[]]);
}

#[test]
#[should_panic(expected = "the writer sleeps")]
fn loom_twin_the_waiter_is_registered_after_the_look() {
    twin(Twin::RegisterAfterLook, 1, ALL, [&[Act::Room, Act::Room], &[]]);
}

/// A flush whose bytes a close discards must not say that they went out.
#[test]
#[should_panic(expected = "a flush is over too early")]
fn loom_twin_closed_is_looked_at_before_idle() {
    twin(Twin::ClosedBeforeIdle, 1, ALL, [&[Act::Close], &[]]);
}

/// A writer that is refused is not the owner: the reactor may be inside a send.
#[test]
#[should_panic(expected = "the flush was taken from its owner")]
fn loom_twin_a_refused_writer_makes_the_word_idle() {
    twin(Twin::RefusedLeaves, 1, ALL, [&[Act::Room], &[Act::Close]]);
}

#[test]
#[should_panic(expected = "closed without a reason")]
fn loom_twin_the_reason_after_the_close() {
    twin(Twin::ReasonAfterClose, 1, ALL, [&[Act::Break], &[]]);
}
