//! Idle connections of a client, by host.
//!
//! Job: hand out the one used last, forget the dead and the old. State owned: the idle ones. Thread class: pure; the
//! client keeps it behind a mutex, and passes the time in. Laws kept: 16 (so many a host at most, and so many in all).

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

/// What an idle connection is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Health {
    Ready,
    /// Not now: what it carried last is not over yet on the connection's own thread.
    NotYet,
    Dead,
}

/// What [`Pool::take`] found.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Found<C> {
    pub(super) connection: C,
    /// When it came back to the pool.
    pub(super) since: Instant,
    pub(super) is_ready: bool,
}

/// See the module's text. The newest of a host is at the back; no host is there without one.
#[derive(Debug)]
pub(super) struct Pool<C> {
    hosts: HashMap<String, VecDeque<(Instant, C)>>,
    timeout: Duration,
    max_per_host: usize,
    max: usize,
    /// How many there are, over all hosts.
    len: usize,
    closed: bool,
    /// Of the task that looks for old ones, while it has nothing to wait for.
    keeper: Option<Waker>,
}

impl<C> Pool<C> {
    pub(super) fn new(timeout: Duration, max_per_host: usize, max: usize) -> Self {
        Self { hosts: HashMap::new(), timeout, max_per_host, max, len: 0, closed: false, keeper: None }
    }

    /// One to `host` that can be used at once, or else the newest of those that are about to be, as they came back less than
    /// `grace` ago; and what is to be dropped (by the caller, outside of its lock).
    pub(super) fn take(
        &mut self,
        host: &str,
        now: Instant,
        grace: Duration,
        health: impl Fn(&C) -> Health,
    ) -> (Option<Found<C>>, Vec<C>) {
        let mut dead = Vec::new();
        let Some(idle) = self.hosts.get_mut(host) else { return (None, dead) };
        let mut kept = VecDeque::new();
        let mut found = None;
        while let Some((since, connection)) = idle.pop_back() {
            match health(&connection) {
                Health::Dead => dead.push(connection),
                _ if is_old(since, now, self.timeout) => dead.push(connection),
                Health::NotYet => kept.push_front((since, connection)),
                Health::Ready => {
                    found = Some(Found { connection, since, is_ready: true });
                    break;
                }
            }
        }
        if found.is_none() && kept.back().is_some_and(|(since, _)| now.saturating_duration_since(*since) < grace) {
            found = kept.pop_back().map(|(since, connection)| Found { connection, since, is_ready: false });
        }
        idle.append(&mut kept);
        if idle.is_empty() {
            self.hosts.remove(host);
        }
        self.len -= dead.len() + usize::from(found.is_some());
        (found, dead)
    }

    /// Keeps one that is idle since then. What comes back is to be dropped: the oldest of its host, or of all, where there are too many; itself, where
    /// none is kept or the pool was closed. A waker is to be woken.
    pub(super) fn put(&mut self, host: &str, since: Instant, connection: C) -> (Option<C>, Option<Waker>) {
        if self.closed || self.max_per_host == 0 || self.max == 0 {
            return (Some(connection), None);
        }
        let over = if self.hosts.get(host).is_some_and(|idle| idle.len() >= self.max_per_host) {
            self.take_oldest(host)
        } else if self.len >= self.max {
            // The first of a host is its oldest. As many hosts as connections at most: it is looked for one by one.
            let oldest = self.hosts.iter().min_by_key(|(_, idle)| idle.front().map(|(since, _)| *since));
            let host = oldest.map(|(host, _)| host.clone());
            host.and_then(|host| self.take_oldest(&host))
        } else {
            None
        };
        let idle = self.hosts.entry(host.to_owned()).or_default();
        // The newest of all, unless somebody waited for it in vain.
        let at = idle.iter().rposition(|(other, _)| *other <= since).map_or(0, |at| at + 1);
        idle.insert(at, (since, connection));
        self.len += 1;
        (over, self.keeper.take())
    }

    fn take_oldest(&mut self, host: &str) -> Option<C> {
        let idle = self.hosts.get_mut(host)?;
        let (_, oldest) = idle.pop_front()?;
        if idle.is_empty() {
            self.hosts.remove(host);
        }
        self.len -= 1;
        Some(oldest)
    }

    /// Takes the dead and the old out. `None`: nothing is idle, and `waker` is kept for the next one.
    pub(super) fn sweep(
        &mut self,
        now: Instant,
        waker: &Waker,
        health: impl Fn(&C) -> Health,
    ) -> (Vec<C>, Option<Duration>) {
        let (mut dead, mut next) = (Vec::new(), None::<Duration>);
        self.hosts.retain(|_, idle| {
            for (since, connection) in std::mem::take(idle) {
                if health(&connection) == Health::Dead || is_old(since, now, self.timeout) {
                    dead.push(connection);
                } else {
                    if !self.timeout.is_zero() {
                        let left = self.timeout.saturating_sub(now.saturating_duration_since(since));
                        next = Some(next.map_or(left, |next| next.min(left)));
                    }
                    idle.push_back((since, connection));
                }
            }
            !idle.is_empty()
        });
        self.len -= dead.len();
        if next.is_none() {
            self.keeper = Some(waker.clone());
        }
        (dead, next)
    }

    /// Nothing is kept from now on; what was idle comes back.
    pub(super) fn close(&mut self) -> Vec<C> {
        self.closed = true;
        self.len = 0;
        std::mem::take(&mut self.hosts).into_values().flatten().map(|(_, connection)| connection).collect()
    }

    /// How many are idle.
    pub(super) fn len(&self) -> usize {
        debug_assert_eq!(self.len, self.hosts.values().map(VecDeque::len).sum());
        self.len
    }
}

fn is_old(since: Instant, now: Instant, timeout: Duration) -> bool {
    !timeout.is_zero() && now.saturating_duration_since(since) >= timeout
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pool(names: &[(&str, &'static str)], at: Instant) -> Pool<&'static str> {
        let mut pool = Pool::new(10 * SECOND, 2, 8);
        for (host, name) in names {
            assert!(pool.put(host, at, *name).0.is_none());
        }
        pool
    }

    /// Which one is taken, whether it is ready, and what is dead.
    fn taken(
        pool: &mut Pool<&'static str>,
        now: Instant,
        health: impl Fn(&&'static str) -> Health,
    ) -> (Option<(&'static str, bool)>, Vec<&'static str>) {
        let (found, dead) = pool.take("a", now, SECOND, health);
        (found.map(|found| (found.connection, found.is_ready)), dead)
    }

    #[test]
    fn the_newest_of_the_host_is_handed_out() {
        let now = Instant::now();
        let mut pool = pool(&[("a", "a1"), ("a", "a2"), ("b", "b1")], now);
        for expected in [Some(("a2", true)), Some(("a1", true)), None] {
            assert_eq!(taken(&mut pool, now, |_| Health::Ready).0, expected);
        }
        assert_eq!(pool.len(), 1);
    }

    #[test]
    fn neither_the_dead_nor_the_old_are_handed_out_and_the_unready_last() {
        let now = Instant::now();
        let mut pool = Pool::new(10 * SECOND, 4, 8);
        for name in ["ready", "busy1", "dead", "busy2"] {
            assert!(pool.put("a", now, name).0.is_none());
        }
        let health = |name: &&str| match *name {
            "dead" => Health::Dead,
            "ready" => Health::Ready,
            _ => Health::NotYet,
        };
        assert_eq!(taken(&mut pool, now, health), (Some(("ready", true)), vec!["dead"]));
        assert_eq!(pool.len(), 2, "what is not ready yet stays");
        assert_eq!(taken(&mut pool, now + SECOND, health), (None, vec![]), "not about to be: it came back long ago");
        assert_eq!(taken(&mut pool, now, health), (Some(("busy2", false)), vec![]), "the newest of them");
        assert_eq!(taken(&mut pool, now + 10 * SECOND, |_| Health::Ready), (None, vec!["busy1"]), "too old");
    }

    /// One that was waited for in vain is as old as it was: it neither lives longer nor in another's place.
    #[test]
    fn what_is_put_back_keeps_its_age() {
        let now = Instant::now();
        let mut pool = pool(&[("a", "busy")], now);
        let found = pool.take("a", now, SECOND, |_| Health::NotYet).0.expect("it is about to be free");
        pool.put("a", now + SECOND, "newer");
        assert!(pool.put("a", found.since, found.connection).0.is_none());
        assert_eq!(pool.put("a", now + 2 * SECOND, "newest").0, Some("busy"), "the oldest gives way");
        assert_eq!(taken(&mut pool, now + 2 * SECOND, |_| Health::Ready).0, Some(("newest", true)));
    }

    #[test]
    fn the_oldest_gives_way_and_a_closed_pool_keeps_nothing() {
        let now = Instant::now();
        let mut pool = pool(&[("a", "a1"), ("a", "a2")], now);
        assert_eq!(pool.put("a", now, "a3").0, Some("a1"));
        let mut idle = pool.close();
        idle.sort_unstable();
        assert_eq!(idle, ["a2", "a3"]);
        assert_eq!(pool.put("a", now, "a4").0, Some("a4"));
        assert_eq!(pool.len(), 0);
        for (max_per_host, max) in [(0, 8), (8, 0)] {
            let mut none = Pool::new(SECOND, max_per_host, max);
            assert_eq!(none.put("a", now, "a1").0, Some("a1"));
        }
    }

    #[test]
    fn past_the_bound_over_all_hosts_the_oldest_of_any_gives_way() {
        let start = Instant::now();
        let mut pool = Pool::new(100 * SECOND, 2, 4);
        let mut later = 0;
        let mut put = |pool: &mut Pool<&'static str>, name: &'static str| {
            later += 1;
            pool.put(&name[..1], start + later * SECOND, name).0
        };
        for name in ["a1", "b1", "a2", "c1"] {
            assert_eq!(put(&mut pool, name), None);
        }
        // A new host is no reason to keep it out: the oldest of all goes, whosever it is.
        assert_eq!(put(&mut pool, "d1"), Some("a1"));
        assert_eq!(put(&mut pool, "d2"), Some("b1"));
        // Its host's own bound first: nobody else pays for that.
        assert_eq!(put(&mut pool, "d3"), Some("d1"));
        assert_eq!(pool.len(), 4);
        assert_eq!(pool.take("b", start, SECOND, |_| Health::Ready).0, None, "a host without one is forgotten");
        // What is taken makes room, and what a sweep finds dead.
        assert_eq!(pool.take("c", start, SECOND, |_| Health::Ready).0.map(|found| found.connection), Some("c1"));
        assert_eq!(put(&mut pool, "e1"), None);
        let dead = |name: &&str| if *name == "a2" { Health::Dead } else { Health::Ready };
        assert_eq!(pool.sweep(start, Waker::noop(), dead).0, ["a2"]);
        assert_eq!(pool.len(), 3);
        assert_eq!(put(&mut pool, "f1"), None);
        assert_eq!(put(&mut pool, "g1"), Some("d2"));
    }

    #[test]
    fn a_sweep_says_when_the_next_is_due() {
        let now = Instant::now();
        let mut pool = pool(&[("a", "a1")], now);
        pool.put("b", now + 4 * SECOND, "b1");
        let waker = Waker::noop();
        assert_eq!(pool.sweep(now + 5 * SECOND, waker, |_| Health::Ready), (vec![], Some(5 * SECOND)));
        assert_eq!(pool.sweep(now + 10 * SECOND, waker, |_| Health::Ready), (vec!["a1"], Some(4 * SECOND)));
        assert_eq!(pool.sweep(now + 14 * SECOND, waker, |_| Health::Ready), (vec!["b1"], None));
        assert!(pool.put("a", now, "a2").1.is_some(), "the keeper is woken for the first one");
        assert!(pool.put("a", now, "a3").1.is_none());
    }
}
