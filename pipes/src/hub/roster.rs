//! Who is a member, which broadcasts are under way, and whether the hub is closed.
//!
//! State: all three, behind one lock; what is promised about joins, leaves and the close is decided here and nowhere else.
//! Who touches it: joins, leaves, the begin and the end of every broadcast. Thread class: any thread. Laws: 10 (members and
//! wakers are dropped and woken by the caller, after the lock), 16 (members are bounded).
//!
//! A broadcast that begins after a join returned has the member in its snapshot; one that begins after a leave returned
//! has not. Who waits for a leave waits for the broadcasts that had begun before it. Whoever comes last, the close or the
//! last broadcast, is given the members, once.

use crate::hub::list::{List, Snapshot};
use crate::hub::sync::{Mutex, lock};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::task::Waker;

/// Why there is no such membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoEntry {
    Closed,
    Full,
}

/// A broadcast that has begun.
#[derive(Debug)]
pub(super) struct Begun<T> {
    pub(super) number: u64,
    pub(super) members: Snapshot<T>,
}

/// What the end of a broadcast, or the close, leaves to its caller.
#[derive(Debug)]
#[must_use = "somebody waits for it"]
pub(super) struct Ended<K, T> {
    /// They wait for leaves.
    pub(super) wakers: Vec<Waker>,
    /// The hub is closed and nothing is under way any more: these are to be told.
    pub(super) last: Option<(Snapshot<T>, ByKey<K, T>)>,
}

/// Numbers and members by their keys.
type ByKey<K, T> = HashMap<K, (u64, T)>;

/// See the module's text. `K` tells members apart, `T` is a reference to one.
#[derive(Debug)]
pub(super) struct Roster<K, T> {
    state: Mutex<State<K, T>>,
    limit: usize,
}

#[derive(Debug)]
struct State<K, T> {
    list: List<T>,
    by_key: ByKey<K, T>,
    next_member: u64,
    /// The number of the latest broadcast.
    latest: u64,
    /// Those under way.
    running: Vec<u64>,
    /// By the broadcast up to which they wait, then by their own number.
    waiters: BTreeMap<(u64, u64), Waker>,
    next_waiter: u64,
    closed: bool,
    taken: bool,
}

impl<K: Eq + Hash + Clone, T: Clone> Roster<K, T> {
    pub(super) fn new(limit: usize) -> Self {
        let state = State {
            list: List::new(),
            by_key: HashMap::new(),
            next_member: 1,
            latest: 0,
            running: Vec::new(),
            waiters: BTreeMap::new(),
            next_waiter: 0,
            closed: false,
            taken: false,
        };
        Self { state: Mutex::new(state), limit }
    }

    /// Makes a membership with a number of its own, or finds the one that `key` has: that one is shown to `found`.
    pub(super) fn join(&self, key: K, make: impl FnOnce(u64) -> T, found: impl FnOnce(&T)) -> Result<T, NoEntry> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(NoEntry::Closed);
        }
        if let Some((_, member)) = state.by_key.get(&key) {
            found(member);
            return Ok(member.clone());
        }
        if state.list.len() >= self.limit {
            return Err(NoEntry::Full);
        }
        let number = state.next_member;
        state.next_member += 1;
        let member = make(number);
        state.list.push(number, member.clone());
        state.by_key.insert(key, (number, member.clone()));
        Ok(member)
    }

    /// Ends a membership if `really` agrees; what held it comes out, to be dropped after the lock. It comes out once.
    pub(super) fn leave(&self, number: u64, key: &K, really: impl FnOnce() -> bool) -> Option<(K, T)> {
        let mut state = lock(&self.state);
        if state.by_key.get(key)?.0 != number || !really() {
            return None;
        }
        let (key, (_, member)) = state.by_key.remove_entry(key)?;
        let same = state.list.remove(number);
        drop(state);
        drop(same);
        Some((key, member))
    }

    /// Begins a broadcast, unless the hub is closed. `under_lock` sees it before any other broadcast begins.
    pub(super) fn begin(&self, under_lock: impl FnOnce(&Begun<T>)) -> Option<Begun<T>> {
        let mut state = lock(&self.state);
        if state.closed {
            return None;
        }
        state.latest += 1;
        let begun = Begun { number: state.latest, members: state.list.snapshot() };
        state.running.push(begun.number);
        under_lock(&begun);
        Some(begun)
    }

    /// Ends a broadcast.
    pub(super) fn end(&self, number: u64) -> Ended<K, T> {
        let mut state = lock(&self.state);
        if let Some(at) = state.running.iter().position(|running| *running == number) {
            state.running.swap_remove(at);
        }
        state.settle()
    }

    /// Closes: from now on nobody joins and no broadcast begins.
    pub(super) fn close(&self) -> Ended<K, T> {
        let mut state = lock(&self.state);
        state.closed = true;
        state.settle()
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.state).closed
    }

    pub(super) fn len(&self) -> usize {
        lock(&self.state).list.len()
    }

    /// The latest broadcast that has begun.
    pub(super) fn latest(&self) -> u64 {
        lock(&self.state).latest
    }

    /// True once no broadcast up to this one is under way. Otherwise the waker is kept, in place of the one under the same
    /// `id`.
    pub(super) fn poll_past(&self, number: u64, id: &mut Option<u64>, waker: &Waker) -> bool {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        if state.oldest_running() > number {
            return true;
        }
        let key = *id.get_or_insert_with(|| {
            state.next_waiter += 1;
            state.next_waiter
        });
        let old = state.waiters.insert((number, key), waker);
        drop(state);
        drop(old);
        false
    }

    /// Nobody waits under this id any more.
    pub(super) fn forget(&self, number: u64, id: u64) {
        let old = lock(&self.state).waiters.remove(&(number, id));
        drop(old);
    }
}

impl<K, T: Clone> State<K, T> {
    fn oldest_running(&self) -> u64 {
        self.running.iter().copied().min().unwrap_or(u64::MAX)
    }

    /// After one thing less is under way, or the close.
    fn settle(&mut self) -> Ended<K, T> {
        let oldest = self.oldest_running();
        let mut wakers = Vec::new();
        while let Some(first) = self.waiters.first_entry()
            && first.key().0 < oldest
        {
            wakers.push(first.remove());
        }
        let last = (self.closed && !self.taken && self.running.is_empty()).then(|| {
            self.taken = true;
            (self.list.take(), std::mem::take(&mut self.by_key))
        });
        Ended { wakers, last }
    }
}

#[cfg(all(test, loom))]
#[path = "roster_loom.rs"]
mod roster_loom;
