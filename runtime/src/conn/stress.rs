//! Stress: the real words, bodies and halves on real threads and a real socket, where loom cannot go.
//!
//! State: none. Thread class: tests. Laws: 3 (a flush that parks against a close), 1 and 12 (a read that parks against
//! one), 7 (the wake flag). A wake that is lost here is a handler that hangs for ever.
//!
//! Each race is run many times, with head starts of a few spins. What must not happen is counted, and so is how
//! often the window was really entered: a race that is never close proves nothing.

use crate::config::ReactorConfig;
use crate::conn::body::Body;
use crate::conn::read_half::ReadHalf;
use crate::conn::write_half::WriteHalf;
use crate::error::CloseReason;
use crate::exec::home::Home;
use crate::id::ListenerId;
use crate::sync::lock;
use crate::sync::plain::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::wake::WakeFlag;
use crate::sys::affinity;
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;

const ROUNDS: usize = 200_000;
/// The least number of closes that must land within the racing poll.
const INSIDE: usize = 1000;
const RACES: usize = 1_000_000;

/// Own cache lines: sharing them would order the two sides more than the protocol does.
#[repr(align(128))]
struct Padded<T>(T);

/// xorshift: the head starts are the same in every run.
struct Random(u32);

impl Random {
    fn skew(&mut self, below: u32) {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        for _ in 0..self.0 % below {
            std::hint::spin_loop();
        }
    }
}

/// Spins, and lets others run when it takes long.
fn until(mut done: impl FnMut() -> bool) {
    let mut turns = 0_u32;
    while !done() {
        turns = turns.wrapping_add(1);
        if turns.is_multiple_of(1000) { thread::yield_now() } else { std::hint::spin_loop() }
    }
}

fn at_least(word: &AtomicUsize, round: usize) {
    until(|| word.load(Ordering::Acquire) >= round);
}

/// Runs both sides at once, each on a CPU of its own; not beside another race of this file. False, with a word about
/// it, where there is one CPU only.
fn on_two_cpus(a: impl FnOnce() + Send, b: impl FnOnce() + Send) -> bool {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = lock(&ALONE);
    let cpus = affinity::allowed_cpus().unwrap();
    let [first, second, ..] = cpus[..] else {
        eprintln!("skipped: a race needs two CPUs");
        return false;
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            affinity::pin_current(&[first]).unwrap();
            a();
        });
        scope.spawn(move || {
            affinity::pin_current(&[second]).unwrap();
            b();
        });
    });
    true
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

/// Connections over one socket that takes nothing and brings nothing.
struct Bodies {
    socket: UnixStream,
    _peer: UnixStream,
    home: Arc<Home>,
}

impl Bodies {
    fn new() -> Self {
        let (mut socket, peer) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        while match socket.write(&[0; 4096]) {
            Ok(n) => n > 0,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        } {}
        Self { socket, _peer: peer, home: Arc::new(Home::new(0, ReactorConfig::default()).unwrap()) }
    }

    fn body(&self) -> Arc<Body> {
        let fd = self.socket.try_clone().unwrap().into();
        Arc::new(Body::new(fd, false, self.home.clone(), ListenerId(0), [None, None]))
    }
}

/// How often what happened.
#[derive(Default, Debug)]
struct Tally {
    /// The close began and ended within the racing poll.
    inside: usize,
    /// The racing poll was pending, and the close woke it.
    woken: usize,
    /// The racing poll saw the close itself.
    refused: usize,
    /// Neither: the future would hang for ever.
    lost: usize,
    /// A poll returned something else than the close's reason.
    wrong: usize,
}

const REASON: Poll<Option<ErrorKind>> = Poll::Ready(Some(ErrorKind::ConnectionAborted));

/// Races `poll` against the close of the same body on another thread. `prepare` makes what is polled; `poll` says how
/// it ended: `None` is a success, which cannot be. Goes on for longer where the window is seldom entered. `None`: this
/// machine cannot race.
fn against_close<T>(
    prepare: impl Fn(usize, Arc<Body>) -> T + Sync,
    poll: impl Fn(&mut T, &mut Context<'_>) -> Poll<Option<ErrorKind>> + Sync,
) -> Option<Tally> {
    let bodies = Bodies::new();
    let (ready, go, done) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let slot: Mutex<Option<Arc<Body>>> = Mutex::new(None);
    let polling = Padded(AtomicBool::new(false));
    let (inside, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut tally = Tally::default();
    let closer = || {
        let mut random = Random(41);
        for round in 1.. {
            let mut next = None;
            until(|| {
                next = lock(&slot).take();
                next.is_some() || over.load(Ordering::Acquire)
            });
            let Some(body) = next else { return };
            ready.store(round, Ordering::Release);
            at_least(&go, round);
            random.skew(8);
            let before = polling.0.load(Ordering::SeqCst);
            body.end(CloseReason::Local);
            if before && polling.0.load(Ordering::SeqCst) {
                inside.fetch_add(1, Ordering::Relaxed);
            }
            drop(body);
            done.store(round, Ordering::Release);
        }
    };
    let poller = || {
        let mut random = Random(14);
        for round in 1..=5 * ROUNDS {
            if round > ROUNDS && inside.load(Ordering::Relaxed) >= INSIDE {
                break;
            }
            let body = bodies.body();
            let mut polled = prepare(round, body.clone());
            *lock(&slot) = Some(body);
            let woken = Arc::new(Woken::default());
            let waker = Waker::from(woken.clone());
            let cx = &mut Context::from_waker(&waker);
            at_least(&ready, round);
            go.store(round, Ordering::Release);
            random.skew(8);
            polling.0.store(true, Ordering::SeqCst);
            let first = poll(&mut polled, cx);
            polling.0.store(false, Ordering::SeqCst);
            at_least(&done, round);
            // Counted, not asserted: a panic here would leave the other thread spinning.
            match first {
                REASON => tally.refused += 1,
                Poll::Pending if !woken.0.load(Ordering::Acquire) => tally.lost += 1,
                Poll::Pending if poll(&mut polled, cx) == REASON => tally.woken += 1,
                _ => tally.wrong += 1,
            }
        }
        over.store(true, Ordering::Release);
    };
    if !on_two_cpus(closer, poller) {
        return None;
    }
    tally.inside = inside.into_inner();
    eprintln!("{tally:?}");
    Some(tally)
}

fn poll_flush(half: &mut WriteHalf, cx: &mut Context<'_>) -> Poll<Option<ErrorKind>> {
    half.poll_flush(cx).map(|result| result.err().map(|error| error.kind()))
}

/// A flush that meets a full socket: EAGAIN, the remainder put back with its waker, Flushing -> Blocked. In every
/// second round an earlier flush has blocked already, and the race is between registering a waker and the close.
#[test]
fn a_flush_that_parks_against_a_close_always_completes() {
    let prepare = |round: usize, body: Arc<Body>| {
        let mut half = WriteHalf::new(body);
        half.stage(b"x").unwrap();
        if round.is_multiple_of(2) {
            let _ = poll_flush(&mut half, &mut Context::from_waker(Waker::noop()));
        }
        half
    };
    let Some(tally) = against_close(prepare, poll_flush) else { return };
    assert_eq!(tally.lost, 0, "a flush waits for ever");
    assert_eq!(tally.wrong, 0, "a flush whose bytes were discarded says that they went out");
    assert!(tally.inside >= INSIDE, "the window was hardly entered: {tally:?}");
}

#[test]
fn a_read_that_parks_against_a_close_always_completes() {
    let poll = |half: &mut ReadHalf, cx: &mut Context<'_>| {
        half.poll_read(cx).map(|result| result.err().map(|error| error.kind()))
    };
    let Some(tally) = against_close(|_, body| ReadHalf::new(body), poll) else { return };
    assert_eq!(tally.lost, 0, "a read waits for ever");
    assert_eq!(tally.wrong, 0, "a read does not say why the connection ended");
    assert!(tally.inside >= INSIDE, "the window was hardly entered: {tally:?}");
}

/// A post against a reactor that is about to sleep: the post is seen by the re-check, or its producer is told to
/// write the eventfd. Vacuity: each of the two happened.
#[test]
fn a_post_against_a_falling_asleep_is_never_left_behind() {
    let (flag, queue) = (Padded(WakeFlag::new()), Padded(AtomicBool::new(false)));
    let (go, done) = (Padded(AtomicUsize::new(0)), Padded(AtomicUsize::new(0)));
    let claimed = Padded(AtomicBool::new(false));
    let (mut missed, mut left) = (0, 0);
    let poster = || {
        let mut random = Random(7);
        for race in 1..=RACES {
            at_least(&go.0, race);
            random.skew(250);
            queue.0.store(true, Ordering::Release);
            let claims = flag.0.claim_wake();
            claimed.0.store(claims, Ordering::Relaxed);
            done.0.store(race, Ordering::Release);
        }
    };
    let reactor = || {
        let mut random = Random(77);
        for race in 1..=RACES {
            go.0.store(race, Ordering::Release);
            random.skew(250);
            flag.0.announce_sleep();
            let found = queue.0.load(Ordering::Acquire);
            at_least(&done.0, race);
            let claims = claimed.0.load(Ordering::Relaxed);
            missed += usize::from(!claims);
            left += usize::from(!found && !claims);
            flag.0.awake();
            queue.0.store(false, Ordering::Relaxed);
        }
    };
    if !on_two_cpus(poster, reactor) {
        return;
    }
    eprintln!("{missed} of {RACES} posts wrote no eventfd");
    assert_eq!(left, 0, "a post is queued and the reactor sleeps");
    assert!(0 < missed && missed < RACES, "one side was always first: {missed}");
}
