//! The ends of a hub's promises under races: the last words of a member whose frames are in several hands, and a mover whose
//! reactor takes no posts.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use epoxide::{Connection, ReactorConfig, SharedLimits};
use epoxide_pipes::hub::{BacklogLimits, Hub, HubOptions, websocket_close};
use epoxide_tests_e2e::broadcast::{FRAME, frame, hub, join, numbers, roomy, tight};
use epoxide_tests_e2e::{Case, Ending, Gate, Peer, Server, hold_reactor, loopback, rounds, sharing, wait_until};

const HANG: Duration = Duration::from_secs(60);
/// Frames of a publisher are numbered from a multiple of this.
const MANY: usize = 1_000_000;

/// The frames of each publisher come once each, in its order. How many publishers there are.
fn in_order(numbers: &[usize], publishers: usize) -> usize {
    let of = |publisher| numbers.iter().filter(move |number| **number / MANY == publisher);
    (0..publishers)
        .filter(|publisher| {
            assert!(of(*publisher).is_sorted_by(|a, b| a < b), "a frame came twice or too early: {numbers:?}");
            of(*publisher).next().is_some()
        })
        .count()
}

/// Four publishers while a member is disconnected, whose peer reads only then: whole frames, the close frame, the end; and
/// nothing behind it, whoever had a frame in hand.
#[test]
fn last_words_come_behind_every_frame_in_whoevers_hands() {
    const PUBLISHERS: usize = 4;
    let case = Case::start_rounds();
    for round in 0..rounds().min(60) {
        // Room for what all of them send together, below.
        let (server, shared) = sharing(&case, SharedLimits { bytes: 256 * 1024, ..tight() });
        let backlog = BacklogLimits { bytes: 256 * 1024, age: Duration::ZERO, ..BacklogLimits::default() };
        let hub = hub(HubOptions { sequenced: round % 2 == 0, backlog, grace: HANG, ..HubOptions::websocket() });
        let mut slow = join(&hub, &server, &shared);
        let start = Barrier::new(PUBLISHERS);
        std::thread::scope(|scope| {
            for publisher in 0..PUBLISHERS {
                let (hub, start) = (&hub, &start);
                scope.spawn(move || {
                    for seq in 0.. {
                        assert!(seq < MANY, "never disconnected");
                        if seq < 2 {
                            // Together, whatever the scheduler does.
                            start.wait();
                        }
                        hub.broadcast(frame(publisher * MANY + seq)).unwrap();
                        if hub.is_empty() {
                            return;
                        }
                    }
                });
            }
        });
        let (bytes, ending) = slow.peer.read_to_end(HANG);
        assert_eq!(ending, Ending::Eof, "round {round}");
        let (frames, close) = bytes.split_at(bytes.len() - 4);
        assert_eq!(close, &websocket_close(1013)[..], "round {round}");
        assert_eq!(in_order(&numbers(frames), PUBLISHERS), PUBLISHERS, "vacuity: the publishers did not race");
        assert_eq!((hub.stats().disconnected, hub.stats().left), (1, 1));
    }
}

/// A server whose kernel takes megabytes, and whose reactor takes one post.
fn roomy_server(case: &Case, writers: std::sync::mpsc::Sender<epoxide::SharedWriter>) -> Server {
    Server::start(case, |b| {
        b.config(ReactorConfig { max_posts: 1, ..ReactorConfig::default() });
        b.listen(loopback(), move |connection: Connection| {
            let writers = writers.clone();
            async move {
                let (mut reader, writer) = connection.into_shared(roomy());
                let _ = writers.send(writer);
                while reader.read().await?.is_some() {}
                std::io::Result::Ok(())
            }
        });
    })
}

/// Also when the test fails: the reader must not wait for more.
struct SetAtDrop<'a>(&'a AtomicBool);

impl Drop for SetAtDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Publishers who have moved enough want to hand over to a reactor that takes no post: one of them works off what waits,
/// who finds no room meanwhile is told, and everything that was taken arrives in order, with the reactor held still.
#[test]
fn a_mover_without_a_reactor_works_off_what_waits() {
    const PUBLISHERS: usize = 8;
    const EACH: usize = 16;
    let case = Case::start();
    let (writers, shared) = std::sync::mpsc::channel();
    let server = roomy_server(&case, writers);
    let hub = Hub::new(HubOptions { sequenced: true, ..HubOptions::default() }).unwrap();
    let mut peer = Peer::connect(server.addr());
    let member = hub.join(shared.recv_timeout(HANG).unwrap()).unwrap();
    let (taken, got, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let log = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut log = Vec::new();
            while !done.load(Ordering::SeqCst) || log.len() < taken.load(Ordering::SeqCst) {
                if log.len() == taken.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                    continue;
                }
                log.extend(numbers(&peer.read_exactly(FRAME, HANG).unwrap()));
                got.store(log.len(), Ordering::SeqCst);
            }
            log
        });
        let over = SetAtDrop(&done);
        let mut refused = 0;
        for round in 0..2000 {
            // The posts of the last round are done.
            let ran = Gate::new();
            let post = || {
                server.reactor().run_here({
                    let ran = ran.clone();
                    move || ran.open()
                })
            };
            assert!(wait_until(HANG, || post().is_ok()) && ran.wait_blocking(HANG), "no room for a post");
            let held = hold_reactor(&server.reactor());
            while server.reactor().run_here(|| ()).is_ok() {}
            let before = server.stats().posts_refused;
            let start = Barrier::new(PUBLISHERS);
            std::thread::scope(|scope| {
                for publisher in 0..PUBLISHERS {
                    let (hub, start, taken) = (&hub, &start, &taken);
                    scope.spawn(move || {
                        start.wait();
                        for seq in 0..EACH {
                            let tally = hub.broadcast(frame(publisher * MANY + round * EACH + seq)).unwrap();
                            assert_eq!(tally.ended, 0);
                            taken.fetch_add(tally.sent + tally.queued, Ordering::SeqCst);
                        }
                    });
                }
            });
            refused += server.stats().posts_refused - before;
            held.release();
            assert!(wait_until(HANG, || got.load(Ordering::SeqCst) == taken.load(Ordering::SeqCst)), "frames are left");
            if refused > 2 {
                eprintln!("{refused} movers without a reactor in {} rounds", round + 1);
                break;
            }
        }
        assert!(refused > 0, "vacuity: no mover met a full reactor");
        drop(over);
        reader.join().unwrap()
    });
    assert_eq!(log.len(), taken.load(Ordering::SeqCst), "taken and received differ");
    assert_eq!(in_order(&log, PUBLISHERS), PUBLISHERS);
    assert!(member.is_member());
}
