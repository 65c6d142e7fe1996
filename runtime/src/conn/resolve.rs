//! Host names: looked up on two threads of their own, because getaddrinfo(3) blocks.
//!
//! State: one queue a process, bounded, and the threads that serve it, which are started when a look-up finds nobody
//! idle and leave when nothing has come for two seconds. Who touches it: any thread asks, the two answer. Thread class:
//! any thread. Laws: 10 (wakers are woken after unlock), 13, 16.

use crate::exec::run;
use crate::sync::lock;
use crate::sys::error::SysError;
use crate::sys::{affinity, schedule};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

/// Look-ups at a time.
const THREADS: usize = 2;
/// Look-ups that may wait for a thread.
const WAITING: usize = 1024;
/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(2);

/// Looks a name up; the answer is in the order in which the addresses are to be tried.
pub(crate) fn resolve(name: &str, port: u16) -> Resolve {
    let answer = Arc::new(Answer::default());
    let job = Job { name: name.to_owned(), port, answer: answer.clone() };
    if let Err(error) = submit(job) {
        lock(&answer.0).result = Some(Err(error));
    }
    Resolve { answer }
}

/// The future of [`resolve`]. Dropped, its look-up is left out if it has not begun.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Resolve {
    answer: Arc<Answer>,
}

impl Future for Resolve {
    type Output = io::Result<Vec<SocketAddr>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let waker = cx.waker().clone();
        let mut state = lock(&self.answer.0);
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        let old = state.waiter.replace(waker);
        drop(state);
        drop(old);
        Poll::Pending
    }
}

#[derive(Default)]
struct Answer(Mutex<AnswerState>);

#[derive(Default)]
struct AnswerState {
    result: Option<io::Result<Vec<SocketAddr>>>,
    waiter: Option<Waker>,
}

struct Job {
    name: String,
    port: u16,
    answer: Arc<Answer>,
}

struct Pool {
    queue: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

static POOL: Mutex<Pool> = Mutex::new(Pool { queue: VecDeque::new(), threads: 0, idle: 0 });
static WORK: Condvar = Condvar::new();

fn submit(job: Job) -> io::Result<()> {
    let mut pool = lock(&POOL);
    if pool.queue.len() >= WAITING {
        let text = format!("{WAITING} look-ups of names wait already");
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
    }
    pool.queue.push_back(job);
    // An idle thread that was called and has not come yet still counts: so they are compared, not looked for.
    if pool.queue.len() > pool.idle && pool.threads < THREADS {
        match thread::Builder::new().name("epoxide-names".into()).spawn(serve) {
            Ok(_) => pool.threads += 1,
            Err(error) if pool.threads == 0 => {
                pool.queue.pop_back();
                return Err(SysError::wrap("start", "the thread that looks names up", error));
            }
            // The other one will come to it.
            Err(_) => {}
        }
    }
    drop(pool);
    WORK.notify_one();
    Ok(())
}

/// A thread's life.
fn serve() {
    // Whoever started it may be pinned; it looks names up for all.
    affinity::unpin_current();
    schedule::inherit_nothing();
    let mut pool = lock(&POOL);
    loop {
        while let Some(job) = pool.queue.pop_front() {
            drop(pool);
            answer(job);
            pool = lock(&POOL);
        }
        let over;
        (pool, over) = wait(pool);
        if over && pool.queue.is_empty() {
            pool.threads -= 1;
            return;
        }
    }
}

fn wait(mut pool: MutexGuard<'_, Pool>) -> (MutexGuard<'_, Pool>, bool) {
    pool.idle += 1;
    let (mut pool, timeout) = WORK.wait_timeout(pool, IDLE).unwrap_or_else(PoisonError::into_inner);
    pool.idle -= 1;
    (pool, timeout.timed_out())
}

fn answer(Job { name, port, answer }: Job) {
    if Arc::strong_count(&answer) == 1 {
        // Nobody waits for it any more.
        return;
    }
    let result = (name.as_str(), port).to_socket_addrs();
    let result = result.map(|found| order(found.collect())).map_err(|e| SysError::wrap("look up", &name, e));
    let mut state = lock(&answer.0);
    state.result = Some(result);
    let waiter = state.waiter.take();
    drop(state);
    if let Some(waiter) = waiter {
        run::caught(|| waiter.wake());
    }
}

/// RFC 8305, section 4: getaddrinfo's order (RFC 6724), with the families taking turns, the first one's first.
fn order(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let Some(first) = found.first().map(SocketAddr::is_ipv4) else { return found };
    let (ours, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|addr| addr.is_ipv4() == first);
    let mut ordered = Vec::with_capacity(ours.len() + others.len());
    let (mut ours, mut others) = (ours.into_iter(), others.into_iter());
    loop {
        let (one, other) = (ours.next(), others.next());
        if one.is_none() && other.is_none() {
            return ordered;
        }
        for addr in [one, other].into_iter().flatten() {
            if !ordered.contains(&addr) {
                ordered.push(addr);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn addrs(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn families_take_turns_and_nothing_is_tried_twice() {
        let found = addrs(&["[::1]:1", "[::2]:1", "[::1]:1", "[::3]:1", "1.1.1.1:1", "2.2.2.2:1"]);
        let expected = addrs(&["[::1]:1", "1.1.1.1:1", "[::2]:1", "2.2.2.2:1", "[::3]:1"]);
        assert_eq!(order(found), expected);
        let v4_first = addrs(&["1.1.1.1:1", "2.2.2.2:1", "[::1]:1"]);
        assert_eq!(order(v4_first), addrs(&["1.1.1.1:1", "[::1]:1", "2.2.2.2:1"]));
        assert!(order(Vec::new()).is_empty());
    }

    /// Both threads are held by the answers that they are about to give, so that nothing leaves the queue.
    #[test]
    fn past_the_limit_a_look_up_fails_at_once_and_those_given_up_are_skipped() {
        let held: Vec<_> = (0..THREADS).map(|_| Arc::new(Answer::default())).collect();
        // Before a thread can give them.
        let answers: Vec<_> = held.iter().map(|answer| lock(&answer.0)).collect();
        for answer in &held {
            submit(Job { name: "127.0.0.1".to_owned(), port: 1, answer: answer.clone() }).unwrap();
        }
        let mut waiting = Vec::new();
        let refused = loop {
            let look_up = resolve("127.0.0.1", 2);
            if let Some(result) = lock(&look_up.answer.0).result.take() {
                break result.unwrap_err();
            }
            waiting.push(look_up);
            assert!(waiting.len() <= WAITING + THREADS, "nobody is refused");
        };
        assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
        assert!(refused.to_string().contains("1024 look-ups"), "{refused}");
        assert!(waiting.len() >= WAITING - THREADS, "vacuity: {} waited", waiting.len());
        let last = waiting.pop().expect("many wait");
        drop((waiting, answers));
        let held = held.iter().map(|answer| Resolve { answer: answer.clone() });
        for look_up in held.chain([last]) {
            let found = crate::runtime::single::block_on(look_up).unwrap();
            assert!(found[0].ip().is_loopback());
        }
    }
}
