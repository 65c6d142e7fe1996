//! The cross-thread loop: connections whose halves live on threads of any kind, that move between reactors and end in every
//! way at every moment. EPOXIDE_STRESS_SECONDS (20) says for how long; every tenth of it a line tells how far it is.
//! EPOXIDE_STRESS_SEED repeats a run.

use std::io::Write;
use std::net::Shutdown;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use epoxide::{CloseReason, Connection, ReactorConfig, ReactorHandle, ReadHalf, WriteHalf};
use epoxide_tests_e2e::{Case, Ending, Peer, Place, Rng, Server, asked_for, handing_over, run_at};

const HANG: Duration = Duration::from_secs(30);
const AT_ONCE: usize = 4;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// Both sides say all they have; every byte must be there.
    InGoodOrder,
    Close,
    Reset,
    PeerReset,
    Deadline,
    /// The halves are dropped wherever they are.
    LetGo,
}

const WAYS: [How; 6] = [How::InGoodOrder, How::Close, How::Reset, How::PeerReset, How::Deadline, How::LetGo];

/// Byte `at` of a stream, as both ends know it.
fn byte(seed: u64, at: usize) -> u8 {
    let x = (at as u64 / 7).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed;
    ((x >> 29) as usize + at) as u8
}

fn stream(seed: u64, from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(|at| byte(seed, at)).collect()
}

/// One connection under way.
struct Run {
    how: How,
    seed: u64,
    up: usize,
    down: usize,
    reading: Receiver<(usize, bool, Option<CloseReason>)>,
    writing: Receiver<(usize, Option<CloseReason>)>,
    peer: thread::JoinHandle<(Vec<u8>, Option<Ending>)>,
    third: Option<thread::JoinHandle<()>>,
}

async fn read_all(mut reader: ReadHalf, seed: u64, mut rng: Rng, give_up: bool) -> (usize, bool, Option<CloseReason>) {
    let (mut total, mut whole) = (0, true);
    let limit = if give_up { rng.below(30_000) as usize } else { usize::MAX };
    loop {
        match reader.read().await {
            Ok(Some(received)) => {
                whole &= *received == *stream(seed, total, received.len());
                total += received.len();
                if total > limit {
                    return (total, whole, None);
                }
                if rng.below(8) == 0 {
                    epoxide::yield_now().await;
                }
            }
            Ok(None) => return (total, whole, None),
            Err(error) => return (total, whole, CloseReason::of(&error)),
        }
    }
}

async fn write_all(
    mut writer: WriteHalf,
    seed: u64,
    down: usize,
    mut rng: Rng,
    how: How,
) -> (usize, Option<CloseReason>) {
    let mut at = 0;
    while at < down {
        let len = (1 + rng.below(20_000) as usize).min(down - at);
        if writer.send_all(&stream(seed, at, len)).await.is_err() {
            return (at, writer.close_reason());
        }
        at += len;
        if how == How::LetGo && rng.below(4) == 0 {
            return (at, None);
        }
    }
    let _ = writer.shutdown().await;
    (at, writer.close_reason())
}

fn begin(server: &Server, accepted: &Receiver<Connection>, rng: &mut Rng) -> Run {
    let seed = rng.next_u64();
    let mut rng = Rng::new(seed);
    let how = WAYS[rng.below(WAYS.len() as u64) as usize];
    let mut peer = if rng.below(2) == 0 { Peer::connect(server.addr()) } else { Peer::connect_stalling(server.addr()) };
    let mut connection = accepted.recv_timeout(HANG).expect("handed over");
    let mut reactors: Vec<ReactorHandle> = server.runtime().handles();
    reactors.sort_by_key(|reactor| *reactor != connection.reactor());
    let (up, down) = (rng.below(60_000) as usize, rng.below(60_000) as usize);
    let mut uplink = peer.stream().try_clone().unwrap();
    let (skew, upload) = (rng.below(50_000), stream(seed, 0, up));
    let peer = thread::spawn(move || {
        let uploading = thread::spawn(move || {
            let _ = uplink.write_all(&upload);
            let _ = uplink.shutdown(Shutdown::Write);
        });
        if how == How::PeerReset {
            Rng::new(seed).skew(1 + skew);
            let mut some = vec![0; 1 + skew as usize];
            let received = peer.read(&mut some, Duration::from_millis(1)).unwrap_or(0);
            some.truncate(received);
            peer.reset();
            uploading.join().unwrap();
            return (some, None);
        }
        let (received, ending) = peer.read_to_end(HANG);
        uploading.join().unwrap();
        (received, Some(ending))
    });
    let handle = connection.close_handle();
    if how == How::Deadline {
        connection.set_deadline(Some(Instant::now() + Duration::from_micros(skew / 20)), "stress");
    }
    let third = matches!(how, How::Close | How::Reset).then(|| {
        thread::spawn(move || {
            Rng::new(seed).skew(1 + skew);
            if how == How::Reset { handle.reset() } else { handle.close() }
        })
    });
    // Some move first, perhaps there and back, while the peer sends and others end them.
    for hop in 0..rng.below(4) {
        let target = &reactors[(hop as usize + 1) % 2];
        let moved = epoxide_tests_e2e::block_within(connection.rehome(target), HANG).expect("a move ends");
        assert!(moved.is_ok() || how != How::InGoodOrder, "{moved:?}");
    }
    let (reader, writer) = connection.into_split();
    let reader = read_all(reader, seed, rng.clone(), how == How::LetGo);
    let reading = run_at(Place::any(&mut rng), &reactors, HANG, reader);
    let writer = write_all(writer, seed, down, rng.clone(), how);
    let writing = run_at(Place::any(&mut rng), &reactors, HANG, writer);
    Run { how, seed, up, down, reading, writing, peer, third }
}

/// Everything has come to its end, as its way of ending allows.
fn end(run: Run) {
    let Run { how, seed, up, down, reading, writing, peer, third } = run;
    let case = format!("{how:?}, seed {seed:#x}");
    let (read, whole, read_end) = reading.recv_timeout(HANG).unwrap_or_else(|_| panic!("the reader hangs: {case}"));
    let (written, write_end) = writing.recv_timeout(HANG).unwrap_or_else(|_| panic!("the writer hangs: {case}"));
    let (received, ending) = peer.join().unwrap();
    if let Some(third) = third {
        third.join().unwrap();
    }
    assert!(whole && read <= up, "{read} of {up} bytes: {case}");
    assert!(received == stream(seed, 0, received.len()) && received.len() <= down, "wrong bytes arrived: {case}");
    match how {
        How::InGoodOrder => {
            let seen = (read, read_end, written, write_end, received.len(), ending);
            assert_eq!(seen, (up, None, down, None, down, Some(Ending::Eof)), "{case}");
        }
        How::Close => {
            let ended = ending.expect("it reads to the end");
            assert!(ended == Ending::Eof && received.len() >= written, "{ended:?}, {written} written: {case}");
        }
        How::LetGo => {
            let ended = ending.expect("it reads to the end");
            assert!(ended.is_closed(), "{ended:?}: {case}");
            assert!(ended != Ending::Eof || received.len() == written, "{written} written: {case}");
        }
        How::Reset | How::Deadline => assert!(ending.is_some_and(Ending::is_closed), "{ending:?}: {case}"),
        How::PeerReset => {}
    }
}

#[test]
fn the_cross_thread_loop() {
    let seconds = asked_for("EPOXIDE_STRESS_SECONDS", 20) as u64;
    let seed = asked_for("EPOXIDE_STRESS_SEED", 1) as u64;
    let case = Case::start_within(Duration::from_secs(2 * seconds + 120));
    let (server, accepted) = handing_over(&case, |b| {
        b.reactors(2);
        b.config(ReactorConfig { linger: Duration::from_millis(500), ..ReactorConfig::default() });
    });
    let mut rng = Rng::new(seed);
    let (begun, mut rounds, mut told) = (Instant::now(), 0_u64, 0);
    let mut ways = [0_u64; WAYS.len()];
    while begun.elapsed() < Duration::from_secs(seconds) {
        let runs: Vec<_> = (0..AT_ONCE).map(|_| begin(&server, &accepted, &mut rng)).collect();
        for run in runs {
            ways[WAYS.iter().position(|way| *way == run.how).expect("one of them")] += 1;
            end(run);
        }
        rounds += 1;
        let tenth = 10 * begun.elapsed().as_secs() / seconds.max(1);
        if tenth > told {
            told = tenth;
            println!("{rounds} rounds in {:?}, {} moves", begun.elapsed(), server.stats().rehomed);
        }
    }
    assert!(server.wait_quiet());
    let stats = server.stats();
    println!("{rounds} rounds of {AT_ONCE}: {ways:?} of {WAYS:?}, {} moves", stats.rehomed);
    assert!(ways.iter().all(|way| *way > 0) && stats.rehomed > 0, "vacuity: {ways:?}, {} moves", stats.rehomed);
    assert_eq!(stats.accepted + stats.adopted, stats.closed);
    let pool = server.reactor().workers().report();
    assert_eq!((pool.tasks, pool.panics), (0, 0));
}
