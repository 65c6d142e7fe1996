//! Shared writers at their end: sends from several threads race close, reset, the peer's leave, the last drop and the stop.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use epoxide::{Connection, Refusal, SendOutcome, SharedLimits, SharedWriter};
use epoxide_tests_e2e::{Case, Ending, Peer, Rng, Server, block_within, loopback, rounds, sharing};

const HANG: Duration = Duration::from_secs(30);
const SENDERS: usize = 3;
const LIMITS: SharedLimits = SharedLimits { frames: 4096, bytes: 64 << 20, age: Duration::ZERO, half_open: false };

/// Length (2), publisher (1), sequence (1), body: all bytes of a frame follow from its head.
fn frame(publisher: usize, seq: usize, len: usize) -> Bytes {
    let mut frame = (len as u16).to_be_bytes().to_vec();
    frame.extend([publisher as u8, seq as u8]);
    frame.resize(len, (publisher * 50 + seq) as u8);
    Bytes::from(frame)
}

/// Whole frames in `bytes`: per publisher their sequence numbers; the rest is a cut frame.
fn parse(bytes: &[u8]) -> ([Vec<usize>; SENDERS], usize) {
    let mut frames = [const { Vec::new() }; SENDERS];
    let mut at = 0;
    while let Some(head) = bytes.get(at..at + 4) {
        let len = usize::from(u16::from_be_bytes([head[0], head[1]]));
        let Some(got) = bytes.get(at..at + len) else { break };
        let (publisher, seq) = (head[2] as usize, head[3] as usize);
        assert!(*got == frame(publisher, seq, len), "a frame is cut or mixed at byte {at}");
        frames[publisher].push(seq);
        at += len;
    }
    (frames, bytes.len() - at)
}

#[derive(Default, Debug)]
struct Windows {
    accepted: AtomicUsize,
    refused: AtomicUsize,
    /// Rounds in which both happened: the end came in the middle.
    middle: AtomicUsize,
    blocked: AtomicUsize,
}

/// One round: senders against `end`. Returns what each had accepted, and what the peer received.
fn race(
    server: &Server,
    shared: &Receiver<SharedWriter>,
    rng: &mut Rng,
    windows: &Windows,
    end: impl FnOnce(&SharedWriter, &Mutex<Option<Peer>>) + Send,
) -> ([Vec<usize>; SENDERS], Vec<u8>, Option<Ending>) {
    let small = rng.below(2) == 0;
    let peer = if small { Peer::connect_stalling(server.addr()) } else { Peer::connect(server.addr()) };
    let writer = shared.recv_timeout(HANG).expect("the connection is accepted");
    let peer = Mutex::new(Some(peer));
    let accepted = Mutex::new([const { Vec::new() }; SENDERS]);
    let seeds: Vec<_> = (0..SENDERS).map(|_| rng.next_u64()).collect();
    let (refused, count) = (AtomicUsize::new(0), AtomicUsize::new(0));
    // One of the senders ends it, in the middle of its own frames: the others are in the middle of theirs.
    let (ender, after) = (rng.below(SENDERS as u64) as usize, rng.below(30) as usize);
    let mut end = Some(end);
    std::thread::scope(|scope| {
        for (publisher, &seed) in seeds.iter().enumerate() {
            let (writer, peer, accepted, refused, count) = (writer.clone(), &peer, &accepted, &refused, &count);
            let mut end = end.take_if(|_| publisher == ender);
            let mut rng = Rng::new(seed);
            scope.spawn(move || {
                let mut mine = Vec::new();
                for seq in 0..30 {
                    if seq == after
                        && let Some(end) = end.take()
                    {
                        end(&writer, peer);
                    }
                    let most = if rng.below(3) == 0 { 20_000 } else { 400 };
                    let len = 4 + rng.below(most) as usize;
                    match writer.send(frame(publisher, seq, len)) {
                        SendOutcome::Refused(Refusal::Closed(_), _) => {
                            refused.fetch_add(1, Ordering::Relaxed);
                            break;
                        }
                        SendOutcome::Refused(why, _) => panic!("{why}"),
                        SendOutcome::Queued => {
                            windows.blocked.fetch_add(1, Ordering::Relaxed);
                            mine.push(seq);
                        }
                        SendOutcome::Sent => mine.push(seq),
                    }
                    count.fetch_add(1, Ordering::Relaxed);
                    rng.skew(500);
                }
                accepted.lock().unwrap()[publisher] = mine;
            });
        }
        drop(writer);
    });
    let accepted = accepted.into_inner().unwrap();
    let (count, refused) = (count.into_inner(), refused.into_inner());
    windows.accepted.fetch_add(count, Ordering::Relaxed);
    windows.refused.fetch_add(refused, Ordering::Relaxed);
    windows.middle.fetch_add(usize::from(count > 0 && refused > 0), Ordering::Relaxed);
    let (received, ending) = match peer.into_inner().unwrap() {
        Some(mut peer) => {
            let (received, ending) = peer.read_to_end(HANG);
            (received, Some(ending))
        }
        None => (Vec::new(), None),
    };
    (accepted, received, ending)
}

fn assert_entered(windows: &Windows) {
    for count in [&windows.accepted, &windows.refused, &windows.middle, &windows.blocked] {
        assert!(count.load(Ordering::Relaxed) > 0, "vacuity: {windows:?}");
    }
    eprintln!("windows: {windows:?}");
}

/// Everything that was accepted arrives, whole, and then the FIN; what was refused does not.
#[test]
fn sends_against_close_and_the_last_drop() {
    let case = Case::start_rounds();
    let (server, shared) = sharing(&case, LIMITS);
    let (closes, drops) = (Windows::default(), Windows::default());
    let mut rng = Rng::new(11);
    for round in 0..rounds() {
        let close = round % 4 != 0;
        let windows = if close { &closes } else { &drops };
        let (accepted, received, ending) = race(&server, &shared, &mut rng, windows, |writer, _| {
            if close {
                writer.close_handle().close();
            }
        });
        let (frames, cut) = parse(&received);
        assert_eq!((ending, cut), (Some(Ending::Eof), 0), "round {round}: a cut frame looks whole");
        assert_eq!(frames, accepted, "round {round}: accepted and delivered differ");
    }
    assert_entered(&closes);
    assert_eq!(drops.refused.load(Ordering::Relaxed), 0, "a drop of one clone ends nothing");
}

/// What arrives before a reset are whole frames in order, but for the last; waits end; nothing stays queued.
#[test]
fn sends_against_reset_and_the_peers_leave() {
    let case = Case::start_rounds();
    let (server, shared) = sharing(&case, LIMITS);
    let (ours, theirs) = (Windows::default(), Windows::default());
    let mut rng = Rng::new(12);
    for round in 0..rounds() {
        let local = round % 2 == 0;
        let windows = if local { &ours } else { &theirs };
        let waits = Mutex::new(Vec::new());
        let kept = Mutex::new(None);
        let (accepted, received, _) = race(&server, &shared, &mut rng, windows, |writer, peer| {
            for _ in 0..2 {
                let writer = writer.clone();
                let wait = std::thread::spawn(move || {
                    let flushed = block_within(writer.flush(), HANG);
                    let closed = block_within(writer.closed(), HANG);
                    (flushed.is_some(), closed.is_some())
                });
                waits.lock().unwrap().push(wait);
            }
            *kept.lock().unwrap() = Some(writer.clone());
            if local {
                writer.close_handle().reset();
            } else if let Some(peer) = peer.lock().unwrap().take() {
                peer.reset();
            }
        });
        let (frames, _) = parse(&received);
        for (got, sent) in frames.iter().zip(&accepted) {
            // A frame that was refused by the very end may be there in whole or in part.
            let known = got.iter().zip(sent).all(|(a, b)| a == b) && got.len() <= sent.len() + 1;
            assert!(known, "round {round}: {got:?} of {sent:?}");
        }
        for wait in std::mem::take(&mut *waits.lock().unwrap()) {
            assert_eq!(wait.join().unwrap(), (true, true), "round {round}: (flush, closed) left behind");
        }
        let kept: Option<SharedWriter> = kept.into_inner().unwrap();
        let left = kept.map(|writer| writer.queued_len());
        assert_eq!(left, Some(0), "round {round}: bytes are left");
    }
    assert_entered(&ours);
    assert_entered(&theirs);
}

/// A drain while threads send without a pause: idle readers end although flushes are in flight, what was accepted is
/// delivered, and a writer that somebody keeps holds nothing up.
#[test]
fn sends_against_a_drain() {
    let case = Case::start_rounds();
    let windows = Windows::default();
    for round in 0..rounds() / 20 {
        let (writers, shared) = channel();
        let server = Server::start(&case, |b| {
            b.listen(loopback(), move |connection: Connection| {
                let writers = writers.clone();
                async move {
                    let limits =
                        SharedLimits { bytes: 256 << 10, half_open: round % 2 == 0, ..SharedLimits::default() };
                    let (mut reader, writer) = connection.into_shared(limits);
                    let _ = writers.send(writer);
                    while reader.read_idle().await?.is_some() {}
                    io::Result::Ok(())
                }
            });
        });
        let readers: Vec<_> = (0..6)
            .map(|_| {
                let mut peer = Peer::connect(server.addr());
                std::thread::spawn(move || peer.read_to_end(HANG))
            })
            .collect();
        let writers: Vec<SharedWriter> = (0..6).map(|_| shared.recv_timeout(HANG).unwrap()).collect();
        let accepted: [AtomicUsize; 6] = Default::default();
        let begun = epoxide_tests_e2e::Gate::new();
        std::thread::scope(|scope| {
            for publisher in 0..2 {
                let (writers, accepted, windows, begun) = (&writers, &accepted, &windows, begun.clone());
                scope.spawn(move || {
                    let mut open = [true; 6];
                    for seq in 0.. {
                        for (i, writer) in writers.iter().enumerate() {
                            if !open[i] {
                                continue;
                            }
                            match writer.send(frame(publisher, seq % 100, 700)) {
                                SendOutcome::Refused(Refusal::Closed(_), _) => {
                                    windows.refused.fetch_add(1, Ordering::Relaxed);
                                    open[i] = false;
                                }
                                SendOutcome::Refused(..) => _ = windows.blocked.fetch_add(1, Ordering::Relaxed),
                                _ => _ = accepted[i].fetch_add(1, Ordering::Relaxed),
                            }
                        }
                        if seq == 100 {
                            begun.open();
                        }
                        if open == [false; 6] {
                            break;
                        }
                    }
                });
            }
            assert!(begun.wait_blocking(HANG));
            let report = server.stop(HANG).unwrap();
            assert!(report.graceful && report.cut == 0, "round {round}: {report:?}");
        });
        // All writers are still held here.
        for reader in readers {
            let (received, ending) = reader.join().unwrap();
            let (frames, cut) = parse(&received);
            let count: usize = frames.iter().map(Vec::len).sum();
            windows.accepted.fetch_add(count, Ordering::Relaxed);
            assert_eq!((ending, cut), (Ending::Eof, 0), "round {round}");
        }
        let total: usize = accepted.iter().map(|n| n.load(Ordering::Relaxed)).sum();
        windows.middle.fetch_add(total, Ordering::Relaxed);
        assert!(writers.iter().all(|writer| writer.close_reason() == Some(epoxide::CloseReason::Draining)));
    }
    assert_eq!(
        windows.accepted.load(Ordering::Relaxed),
        windows.middle.load(Ordering::Relaxed),
        "accepted and delivered"
    );
    assert!(windows.refused.load(Ordering::Relaxed) > 0);
    eprintln!("windows: {windows:?}");
}

/// The runtime stops under the senders' feet: every send returns, every wait ends.
#[test]
fn sends_against_stop() {
    let case = Case::start_rounds();
    let windows = Windows::default();
    let mut rng = Rng::new(13);
    for round in 0..rounds() / 5 {
        let (server, shared) = sharing(&case, LIMITS);
        let peers: Vec<_> = (0..4).map(|_| Peer::connect_stalling(server.addr())).collect();
        let writers: Vec<_> = (0..4).map(|_| shared.recv_timeout(HANG).unwrap()).collect();
        let seeds: Vec<_> = (0..SENDERS).map(|_| rng.next_u64()).collect();
        std::thread::scope(|scope| {
            for (publisher, &seed) in seeds.iter().enumerate() {
                let (writers, windows) = (&writers, &windows);
                let mut rng = Rng::new(seed);
                scope.spawn(move || {
                    for seq in 0.. {
                        let writer = &writers[rng.below(4) as usize];
                        match writer.send(frame(publisher, seq % 100, 4 + rng.below(3000) as usize)) {
                            SendOutcome::Refused(Refusal::Closed(_), _) => {
                                windows.refused.fetch_add(1, Ordering::Relaxed);
                                break;
                            }
                            SendOutcome::Refused(..) => std::thread::yield_now(),
                            SendOutcome::Queued => _ = windows.blocked.fetch_add(1, Ordering::Relaxed),
                            SendOutcome::Sent => _ = windows.accepted.fetch_add(1, Ordering::Relaxed),
                        }
                    }
                });
            }
            for writer in &writers {
                scope.spawn(move || {
                    assert!(block_within(writer.flush(), HANG).is_some(), "round {round}: a flush is left behind");
                    assert!(block_within(writer.closed(), HANG).is_some(), "round {round}: closed() is left behind");
                });
            }
            rng.skew(200_000);
            server.stop(Duration::ZERO).unwrap();
        });
        assert!(writers.iter().all(|writer| writer.queued_len() == 0), "round {round}: bytes are left");
        drop(peers);
    }
    windows.middle.fetch_add(1, Ordering::Relaxed);
    assert_entered(&windows);
}
