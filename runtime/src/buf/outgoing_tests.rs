//! Tests of the outgoing queue, against a plain byte vector and a real socket.

use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use proptest::prelude::*;

use super::*;
use crate::sys::socket::set_send_buffer_size;

/// A socket that takes few bytes at a time, and its peer; both non-blocking.
fn narrow() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    set_send_buffer_size(ours.as_fd(), 1).unwrap();
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

/// Everything the peer can read now, `limit` bytes at most.
fn read_some(theirs: &mut UnixStream, into: &mut Vec<u8>, limit: usize) -> usize {
    let mut got = 0;
    let mut space = [0; 4096];
    while got < limit {
        let room = space.len().min(limit - got);
        match theirs.read(&mut space[..room]) {
            Ok(0) => break,
            Ok(n) => {
                into.extend_from_slice(&space[..n]);
                got += n;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                break;
            }
        }
    }
    got
}

fn drain(out: &mut Outgoing, ours: &UnixStream, theirs: &mut UnixStream) -> Vec<u8> {
    let mut got = Vec::new();
    for _ in 0..1_000_000 {
        let sent = out.send(ours.as_fd(), usize::MAX);
        read_some(theirs, &mut got, usize::MAX);
        match sent.end {
            SendEnd::Empty => return got,
            SendEnd::Blocked => {}
            end => panic!("{end:?}"),
        }
    }
    panic!("it never became empty");
}

#[derive(Debug, Clone)]
enum Step {
    Stage(usize),
    StageBytes(usize),
    TailMut(usize),
    Append(Vec<(bool, usize)>),
    Prepend(Vec<(bool, usize)>),
    Send(usize),
    TakeAndPutBack,
    Read(usize),
    Spare,
}

fn lengths() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(1), 2..50usize, 1000..9000usize]
}

fn others() -> impl Strategy<Value = Vec<(bool, usize)>> {
    prop::collection::vec((any::<bool>(), lengths()), 0..5)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => lengths().prop_map(Step::Stage),
        3 => lengths().prop_map(Step::StageBytes),
        1 => lengths().prop_map(Step::TailMut),
        2 => others().prop_map(Step::Append),
        2 => others().prop_map(Step::Prepend),
        4 => prop_oneof![Just(0), Just(1), 2..9000usize, Just(usize::MAX)].prop_map(Step::Send),
        1 => Just(Step::TakeAndPutBack),
        3 => prop_oneof![1..9000usize, Just(usize::MAX)].prop_map(Step::Read),
        1 => Just(Step::Spare),
    ];
    prop::collection::vec(step, 1..60)
}

/// Bytes that never repeat within a run of 251: a piece out of place is seen.
struct Source(u64);

impl Source {
    fn next(&mut self, n: usize) -> Vec<u8> {
        (0..n)
            .map(|_| {
                self.0 += 1;
                (self.0 % 251) as u8
            })
            .collect()
    }

    fn other(&mut self, parts: &[(bool, usize)]) -> (Outgoing, Vec<u8>) {
        let mut other = Outgoing::new();
        let mut model = Vec::new();
        for &(bytes, n) in parts {
            let data = self.next(n);
            model.extend_from_slice(&data);
            if bytes {
                other.stage_bytes(data.into());
            } else {
                other.stage(&data);
            }
        }
        (other, model)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_sends_what_a_plain_vector_holds(steps in steps()) {
        let (ours, mut theirs) = narrow();
        let mut source = Source(0);
        let mut out = Outgoing::new();
        // The model: what is still to be sent, what has been sent, what was read.
        let (mut pending, mut sent, mut got) = (Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Stage(n) => {
                    let data = source.next(n);
                    out.stage(&data);
                    pending.extend(data);
                }
                Step::StageBytes(n) => {
                    let data = source.next(n);
                    pending.extend_from_slice(&data);
                    out.stage_bytes(data.into());
                }
                Step::TailMut(n) => {
                    let data = source.next(n);
                    out.tail_mut().extend_from_slice(&data);
                    pending.extend(data);
                }
                Step::Append(parts) => {
                    let (mut other, model) = source.other(&parts);
                    out.append(&mut other);
                    prop_assert!(other.is_empty());
                    pending.extend(model);
                }
                Step::Prepend(parts) => {
                    let (mut other, model) = source.other(&parts);
                    out.prepend(&mut other);
                    prop_assert!(other.is_empty());
                    pending.splice(0..0, model);
                }
                Step::Send(budget) => {
                    let result = out.send(ours.as_fd(), budget);
                    prop_assert!(result.bytes <= budget);
                    sent.extend(pending.drain(..result.bytes));
                    match result.end {
                        SendEnd::Empty => prop_assert!(pending.is_empty()),
                        SendEnd::Blocked => prop_assert!(!pending.is_empty()),
                        SendEnd::Budget => prop_assert!(result.bytes == budget && !pending.is_empty()),
                        SendEnd::Error(error) => prop_assert!(false, "{error}"),
                    }
                }
                Step::TakeAndPutBack => {
                    // What a flush owner does with a remainder while others stage.
                    let mut batch = out.take();
                    prop_assert!(out.is_empty());
                    let data = source.next(7);
                    out.stage(&data);
                    pending.extend(data);
                    out.prepend(&mut batch);
                }
                Step::Read(limit) => {
                    read_some(&mut theirs, &mut got, limit);
                }
                Step::Spare => {
                    if out.is_empty() {
                        out.clear();
                    }
                }
            }
            prop_assert_eq!(out.len(), pending.len());
            prop_assert_eq!(out.is_empty(), pending.is_empty());
        }
        got.extend(drain_with(&mut out, &ours, &mut theirs));
        sent.append(&mut pending);
        prop_assert_eq!(got, sent);
    }
}

fn drain_with(out: &mut Outgoing, ours: &UnixStream, theirs: &mut UnixStream) -> Vec<u8> {
    let mut got = Vec::new();
    read_some(theirs, &mut got, usize::MAX);
    got.extend(drain(out, ours, theirs));
    got
}

#[test]
fn the_narrow_socket_does_cut_sends() {
    // Guard of the property above: without partial sends it would show little.
    let (ours, _theirs) = narrow();
    let mut out = Outgoing::new();
    out.stage(&[1; 100_000]);
    let sent = out.send(ours.as_fd(), usize::MAX);
    assert!(matches!(sent.end, SendEnd::Blocked));
    assert!(sent.bytes > 0 && sent.bytes < 100_000);
    assert_eq!(out.len(), 100_000 - sent.bytes);
}

#[test]
fn more_pieces_than_one_sendmsg_takes_go_out_in_order() {
    let (ours, mut theirs) = narrow();
    let mut out = Outgoing::new();
    let mut model = Vec::new();
    let mut source = Source(0);
    for i in 0..3 * sys::io::IOV_MAX + 5 {
        let data = source.next(i % 7);
        model.extend_from_slice(&data);
        out.stage_bytes(data.into());
    }
    out.stage(b"end");
    model.extend_from_slice(b"end");
    // Empty pieces are skipped, the rest are more than fit.
    assert!(out.front.as_ref().unwrap().queue.len() > 2 * sys::io::IOV_MAX);
    assert_eq!(drain(&mut out, &ours, &mut theirs), model);
    assert!(out.front.is_none() && out.tail.is_none(), "everything is given back");
}

#[test]
fn nothing_to_send_is_empty_and_no_budget_is_budget() {
    let (ours, _theirs) = narrow();
    let mut out = Outgoing::new();
    out.stage(b"");
    out.stage_bytes(Bytes::new());
    assert!(matches!(out.send(ours.as_fd(), 0), Sent { bytes: 0, end: SendEnd::Empty, .. }));
    out.stage(b"x");
    assert!(matches!(out.send(ours.as_fd(), 0), Sent { bytes: 0, end: SendEnd::Budget, .. }));
    assert!(matches!(out.send(ours.as_fd(), 1), Sent { bytes: 1, end: SendEnd::Empty, .. }));
}

#[test]
fn an_error_keeps_its_errno_and_the_bytes() {
    let (ours, theirs) = narrow();
    drop(theirs);
    for pieces in [false, true] {
        let mut out = Outgoing::new();
        if pieces {
            out.stage_bytes(Bytes::from_static(b"front"));
        }
        out.stage(b"bytes");
        let before = out.len();
        let sent = out.send(ours.as_fd(), usize::MAX);
        let SendEnd::Error(error) = sent.end else { panic!("{sent:?}") };
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        assert_eq!((sent.bytes, out.len()), (0, before));
        out.clear();
        assert!(out.is_empty());
    }
}

#[test]
fn moving_copies_nothing() {
    let mut first = Outgoing::new();
    first.stage(b"first");
    let place = tail_ptr(&first);
    let mut all = Outgoing::new();
    all.append(&mut first);
    assert_eq!(tail_ptr(&all), place);
    let mut second = Outgoing::new();
    second.stage(b"second");
    let second_place = tail_ptr(&second);
    all.append(&mut second);
    assert_eq!(all.front.as_ref().unwrap().queue[0].as_slice().as_ptr(), place);
    assert_eq!(tail_ptr(&all), second_place);
    let bytes = Bytes::from(vec![1, 2, 3]);
    let bytes_place = bytes.as_ptr();
    let mut front = Outgoing::new();
    front.stage_bytes(bytes);
    all.prepend(&mut front);
    assert_eq!(all.front.as_ref().unwrap().queue[0].as_slice().as_ptr(), bytes_place);
    assert_eq!(all.len(), 3 + 5 + 6);
}

#[test]
fn a_tail_that_is_never_empty_does_not_grow() {
    let (ours, mut theirs) = narrow();
    let mut out = Outgoing::new();
    let (mut model, mut got) = (Vec::new(), Vec::new());
    let mut source = Source(0);
    let data = source.next(100);
    out.stage(&data);
    model.extend(data);
    for _ in 0..1000 {
        let data = source.next(100);
        out.stage(&data);
        model.extend(data);
        assert!(matches!(out.send(ours.as_fd(), 100), Sent { bytes: 100, end: SendEnd::Budget, .. }));
        read_some(&mut theirs, &mut got, usize::MAX);
    }
    let capacity = out.tail.as_ref().unwrap().data.capacity();
    assert!(capacity < 2000, "{capacity}");
    got.extend(drain_with(&mut out, &ours, &mut theirs));
    assert_eq!(got, model);
}

fn tail_ptr(out: &Outgoing) -> *const u8 {
    out.tail.as_ref().unwrap().data.as_ptr()
}

#[test]
fn an_idle_one_holds_nothing_and_the_buffer_comes_back() {
    let (ours, _theirs) = narrow();
    let mut out = Outgoing::new();
    out.stage_bytes(Bytes::from_static(b"x"));
    out.stage(b"y");
    let place = tail_ptr(&out);
    assert!(matches!(out.send(ours.as_fd(), usize::MAX), Sent { bytes: 2, end: SendEnd::Empty, .. }));
    assert!(out.tail.is_none() && out.front.is_none());
    assert_eq!(size_of::<Outgoing>(), 2 * size_of::<usize>());
    out.stage(b"z");
    assert_eq!(tail_ptr(&out), place);
}
