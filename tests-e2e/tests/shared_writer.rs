//! Shared writers: whole frames from many threads, in order per publisher, whatever the peers do.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use epoxide::{Refusal, SendOutcome, SharedLimits, SharedWriter};
use epoxide_tests_e2e::{Case, Ending, Gate, Peer, Server, block_within, sharing, wait_until};

const HANG: Duration = Duration::from_secs(30);
const CLIENTS: usize = 32;
const FRAMES: usize = 400;
const LEN: usize = 8192;

/// Room for everything that a test sends, whatever the socket holds.
fn roomy() -> SharedLimits {
    SharedLimits { bytes: 2 * FRAMES * LEN, age: Duration::ZERO, ..SharedLimits::default() }
}

fn connect(server: &Server, shared: &Receiver<SharedWriter>) -> (Peer, SharedWriter) {
    let peer = Peer::connect_stalling(server.addr());
    (peer, shared.recv_timeout(HANG).expect("the connection is accepted"))
}

/// Publisher, sequence number, and a body that depends on both.
fn frame(publisher: usize, seq: usize) -> Bytes {
    let mut frame = Vec::with_capacity(LEN);
    frame.push(publisher as u8);
    frame.extend_from_slice(&(seq as u32).to_be_bytes());
    frame.extend((5..LEN).map(|j| (publisher * 41 + seq * 7 + j * 3) as u8));
    Bytes::from(frame)
}

/// What a client found.
#[derive(Default, Debug, PartialEq, Eq)]
struct Found {
    corrupt: usize,
    reordered: usize,
    /// In the order of arrival.
    frames: Vec<(usize, usize)>,
}

/// Takes bytes apart into frames and looks at every one of them.
#[derive(Default)]
struct Checker {
    partial: Vec<u8>,
    last: HashMap<usize, usize>,
    found: Found,
}

impl Checker {
    fn feed(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        let whole = self.partial.len() / LEN * LEN;
        for at in (0..whole).step_by(LEN) {
            let got = &self.partial[at..at + LEN];
            let (publisher, seq) = (got[0] as usize, u32::from_be_bytes([got[1], got[2], got[3], got[4]]) as usize);
            self.found.corrupt += usize::from(*got != frame(publisher, seq));
            let last = self.last.insert(publisher, seq);
            self.found.reordered += usize::from(last.is_some_and(|last| last >= seq));
            self.found.frames.push((publisher, seq));
        }
        self.partial.drain(..whole);
    }
}

/// Reads `frames` frames in pieces of `size` (growing after a while), on a thread of its own.
fn read_frames(peer: Peer, frames: usize, size: usize) -> JoinHandle<(Peer, Found)> {
    let now = Gate::new();
    now.open();
    read_frames_from(now, peer, frames, size)
}

/// The same, once the gate is open.
fn read_frames_from(begin: Gate, mut peer: Peer, frames: usize, size: usize) -> JoinHandle<(Peer, Found)> {
    std::thread::spawn(move || {
        assert!(begin.wait_blocking(HANG));
        let mut checker = Checker::default();
        let (mut space, mut total) = (vec![0; 65_536], 0);
        while total < frames * LEN {
            let size = if total < 8 * LEN { size } else { space.len() };
            let want = size.min(frames * LEN - total);
            match peer.read(&mut space[..want], HANG) {
                Ok(n @ 1..) => {
                    checker.feed(&space[..n]);
                    total += n;
                }
                other => panic!("{other:?} after {total} bytes, {} frames", checker.found.frames.len()),
            }
        }
        assert!(checker.partial.is_empty());
        (peer, checker.found)
    })
}

/// Sends every frame to every writer from plain threads; `outcome` hears what became of each.
fn publish(publishers: usize, writers: &[SharedWriter], outcome: impl Fn(usize, (usize, usize), SendOutcome) + Sync) {
    std::thread::scope(|scope| {
        for publisher in 0..publishers {
            let outcome = &outcome;
            scope.spawn(move || {
                for seq in 0..FRAMES / publishers {
                    let frame = frame(publisher, seq);
                    for (client, writer) in writers.iter().enumerate() {
                        outcome(client, (publisher, seq), writer.send(frame.clone()));
                    }
                }
            });
        }
    });
}

fn accepted(outcome: SendOutcome) {
    assert!(!matches!(outcome, SendOutcome::Refused(..)), "{outcome:?}");
}

#[test]
fn every_frame_reaches_every_client_whole_and_in_order() {
    let case = Case::start();
    for publishers in 1..=4 {
        let (server, shared) = sharing(&case, roomy());
        let (peers, writers): (Vec<_>, Vec<_>) = (0..CLIENTS).map(|_| connect(&server, &shared)).unzip();
        let total = FRAMES / publishers * publishers;
        let begin = Gate::new();
        let read = |peer| read_frames_from(begin.clone(), peer, total, 65_536);
        let readers: Vec<_> = peers.into_iter().map(read).collect();
        publish(publishers, &writers, |_, (_, seq), outcome| {
            accepted(outcome);
            if seq == 20 {
                begin.open();
            }
        });
        for reader in readers {
            let (mut peer, mut found) = reader.join().unwrap();
            found.frames.sort_unstable();
            let all: Vec<_> = (0..publishers).flat_map(|p| (0..FRAMES / publishers).map(move |s| (p, s))).collect();
            assert_eq!(found, Found { corrupt: 0, reordered: 0, frames: all });
            // Nothing comes behind the last one.
            assert_eq!(peer.read(&mut [0], Duration::from_millis(1)), Err(Ending::Timeout));
        }
        let stats = server.stats();
        assert!(stats.send_eagain >= CLIENTS as u64, "vacuity: {} sends were refused", stats.send_eagain);
        eprintln!("{publishers} publishers: {} sends, {} refused", stats.sends, stats.send_eagain);
        drop(writers);
    }
}

/// One client stalls, one resets, one reads a byte at a time: the others notice nothing, and the stalled one gets exactly
/// what was accepted for it.
#[test]
fn misbehaving_clients_cost_the_others_no_frame() {
    let case = Case::start();
    let publishers = 4;
    let limits = SharedLimits { bytes: 64 * LEN, age: Duration::ZERO, ..SharedLimits::default() };
    let (server, shared) = sharing(&case, roomy());
    let (tight_server, tight_shared) = sharing(&case, limits);
    let (peers, mut writers): (Vec<_>, Vec<_>) = (0..CLIENTS - 2).map(|_| connect(&server, &shared)).unzip();
    let (mut stalled, writer) = connect(&tight_server, &tight_shared);
    writers.push(writer);
    let (resetting, writer) = connect(&server, &shared);
    writers.push(writer);
    let (stall, reset) = (CLIENTS - 2, CLIENTS - 1);
    let sizes = (0..).map(|i| if i == 0 { 1 } else { 65_536 });
    let readers: Vec<_> = peers.into_iter().zip(sizes).map(|(peer, size)| read_frames(peer, FRAMES, size)).collect();
    let resetting = Mutex::new(Some(resetting));
    let taken: Mutex<Vec<Vec<usize>>> = Mutex::new(vec![Vec::new(); publishers]);
    let refused = Mutex::new((0, 0));
    publish(publishers, &writers, |client, (publisher, seq), outcome| match outcome {
        SendOutcome::Refused(Refusal::Bytes, back) if client == stall => {
            assert_eq!(back, frame(publisher, seq), "another frame came back");
            refused.lock().unwrap().0 += 1;
        }
        SendOutcome::Refused(Refusal::Closed(_), _) if client == reset => refused.lock().unwrap().1 += 1,
        outcome => {
            accepted(outcome);
            if client == stall {
                taken.lock().unwrap()[publisher].push(seq);
            }
            if client == reset
                && seq == FRAMES / publishers / 4
                && let Some(peer) = resetting.lock().unwrap().take()
            {
                peer.reset();
                // The reactor sees it without a send; this thread's next frames come after it.
                let gone = || writers[reset].close_reason().is_some();
                assert!(wait_until(HANG, gone), "the reset is not seen");
            }
        }
    });
    for reader in readers {
        let (_, found) = reader.join().unwrap();
        assert_eq!((found.corrupt, found.reordered, found.frames.len()), (0, 0, FRAMES));
    }
    let (by_limit, by_reset) = *refused.lock().unwrap();
    assert!(by_limit > 0, "vacuity: the stalled client's limit was never reached");
    assert!(by_reset > 0, "vacuity: no send met the reset");
    // The stalled one wakes up: what was accepted is there, whole, and nothing else.
    let taken = taken.into_inner().unwrap();
    let count: usize = taken.iter().map(Vec::len).sum();
    let (peer, found) = read_frames(stalled, count, 65_536).join().unwrap();
    stalled = peer;
    assert_eq!((found.corrupt, found.reordered), (0, 0));
    for (publisher, taken) in taken.iter().enumerate() {
        let got: Vec<_> = found.frames.iter().filter(|(p, _)| *p == publisher).map(|(_, seq)| *seq).collect();
        assert_eq!(&got, taken, "accepted and delivered differ");
    }
    drop(writers);
    assert_eq!(stalled.ending(HANG), Ending::Eof);
}

/// Four threads on a peer that does not read: not one system call, and every frame beyond the limit comes back.
#[test]
fn a_blocked_peer_costs_no_system_call() {
    let case = Case::start();
    let (server, shared) = sharing(&case, SharedLimits { frames: 500, ..roomy() });
    let (mut peer, writer) = connect(&server, &shared);
    let mut sent = 0;
    while matches!(writer.send(frame(0, sent)), SendOutcome::Sent) {
        sent += 1;
        assert!(sent < 10_000, "the socket never fills");
    }
    sent += 1;
    // The edge of the last acknowledgement may still be on its way: wait until nothing moves.
    let mut last = server.stats();
    let still = wait_until(HANG, || {
        // sleep: standing still is seen by looking twice.
        std::thread::sleep(Duration::from_millis(50));
        let now = server.stats();
        let stands = (now.sends, now.events) == (last.sends, last.events);
        last = now;
        stands
    });
    assert!(still && last.send_eagain > 0);
    let queued = Mutex::new(0);
    publish(4, std::slice::from_ref(&writer), |_, _, outcome| match outcome {
        SendOutcome::Queued => *queued.lock().unwrap() += 1,
        SendOutcome::Refused(Refusal::Frames, _) => {}
        other => panic!("{other:?}"),
    });
    let queued = *queued.lock().unwrap();
    assert!(queued > 300, "vacuity: {queued} were queued");
    let now = server.stats();
    assert_eq!((now.sends, now.send_eagain), (last.sends, last.send_eagain), "system calls for a blocked peer");
    assert_eq!(now.passes - last.passes, 0, "the reactor was woken for a blocked peer");
    let received = peer.read_exactly((sent + queued) * LEN, HANG).unwrap();
    assert!((0..sent).all(|i| received[i * LEN..][..LEN] == frame(0, i)));
}

/// Tasks of the reactor and plain threads wait for their tickets; nobody is left behind.
#[test]
fn flushes_of_tasks_and_threads_all_return() {
    let case = Case::start();
    let (server, shared) = sharing(&case, roomy());
    let (peer, writer) = connect(&server, &shared);
    // Enough for nobody to find nothing to wait for: the peer reads once somebody waits.
    const BEFORE: usize = 30;
    (0..BEFORE).for_each(|seq| accepted(writer.send(frame(9, seq))));
    let begin = Gate::new();
    let reader = read_frames_from(begin.clone(), peer, FRAMES + BEFORE, 512);
    let (done, dones) = channel();
    let threads: Vec<_> = (0..4)
        .map(|publisher| {
            let (writer, done, begin) = (writer.clone(), done.clone(), begin.clone());
            let reactor = server.reactor();
            std::thread::spawn(move || {
                let mut waited = 0;
                for seq in 0..FRAMES / 4 {
                    accepted(writer.send(frame(publisher, seq)));
                    if seq % 5 == publisher {
                        let (writer, done) = (writer.clone(), done.clone());
                        let task = reactor.spawn(async move {
                            let _ = done.send(writer.flush().await.is_ok());
                        });
                        assert!(task.is_ok());
                    }
                    if seq % 7 == publisher {
                        waited += usize::from(writer.queued_len() > 0);
                        begin.open();
                        let flushed = block_within(writer.flush(), HANG).expect("a flush is left behind");
                        flushed.unwrap();
                    }
                }
                waited
            })
        })
        .collect();
    let waited: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    for _ in 0..4 * FRAMES / 4 / 5 {
        assert!(dones.recv_timeout(HANG).expect("a flush is left behind"));
    }
    let (_peer, found) = reader.join().unwrap();
    assert_eq!((found.corrupt, found.reordered), (0, 0));
    assert!(waited > 0, "vacuity: no flush had anything to wait for");
}

/// The last clone goes while much is queued: everything arrives, then the FIN.
#[test]
fn the_last_clone_leaves_nothing_unsent() {
    let case = Case::start();
    let (server, shared) = sharing(&case, roomy());
    let (peer, writer) = connect(&server, &shared);
    let clones: Vec<_> = (0..8).map(|_| Arc::new(writer.clone())).collect();
    publish(4, std::slice::from_ref(&writer), |_, _, outcome| accepted(outcome));
    assert!(writer.queued_len() > 0, "vacuity: it all went");
    drop(writer);
    let threads: Vec<_> = clones.into_iter().map(|clone| std::thread::spawn(move || drop(clone))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let (mut peer, found) = read_frames(peer, FRAMES, 65_536).join().unwrap();
    assert_eq!((found.corrupt, found.reordered, found.frames.len()), (0, 0, FRAMES));
    assert_eq!(peer.ending(HANG), Ending::Eof);
}
