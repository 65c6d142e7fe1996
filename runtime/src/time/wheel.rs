//! A hierarchical timing wheel: where deadlines wait, in ticks.
//!
//! Job: insert, cancel and re-arm in O(1); hand out what is due; say when to look again. State: the entries, in a
//! table with one doubly linked list per slot. Thread class: pure; the present is passed in.
//!
//! Eleven levels of 64 slots: a slot of level 0 is one tick wide, one of level `n` is 64^n ticks. Together they span
//! all of u64, so no deadline lies beyond the top. An entry waits at the level of the highest bit in which its
//! tick differs from `elapsed`; when `elapsed` reaches its slot it is taken down to a lower level, at most once per
//! level. Rules:
//!
//! 1. `elapsed` never goes back, and no slot begins before it.
//! 2. Above level 0 the slot that holds `elapsed` is empty. So in every level the occupied slots lie ahead, without
//!    wrapping around, and a lower level is always due before a higher one: the next slot is two bit scans away.
//! 3. An entry waits no later than its `due`. Moving `due` later therefore only stores a number: the entry is linked
//!    again when its old slot comes up.
//! 4. A list may be longer than one caller wants to hold a lock for. `expire` takes a whole slot down into the list
//!    TAKEN (O(1)) and works through that within a budget; `elapsed` stands still until TAKEN is empty.

/// 64 slots per level.
const BITS: u32 = 6;
const SLOTS: u32 = 1 << BITS;
/// 11 * 6 = 66 bits: all of u64.
const LEVELS: u32 = 64_u32.div_ceil(BITS);
/// List heads come first in `links`: one per slot, then TAKEN.
const TAKEN: u32 = LEVELS * SLOTS;
const HEADS: u32 = TAKEN + 1;
const NONE: u32 = u32::MAX;
/// `next_due` looks at this many entries of a slot for the exact tick before it settles for the slot's beginning.
const SCAN: usize = 8;
/// A table that has grown past this many entries is given back once it is empty.
const KEEP: usize = 4096;

/// Names an entry. A key whose entry has gone names nothing: the number is never used twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    node: u32,
    number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Debug)]
struct Entry<T> {
    due: u64,
    /// That of its key; 0 while the entry is free.
    number: u64,
    payload: Option<T>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Wheel<T> {
    elapsed: u64,
    /// One bit per level that holds anything.
    levels: u32,
    /// One bit per slot that holds anything.
    occupied: [u64; LEVELS as usize],
    /// Circular lists: `0..HEADS` are heads, node `HEADS + i` is entry `i`.
    links: Vec<Link>,
    entries: Vec<Entry<T>>,
    /// First free node, chained through `next`.
    free: u32,
    last_number: u64,
    len: usize,
}

impl<T> Wheel<T> {
    pub(super) fn new() -> Self {
        Self {
            elapsed: 0,
            levels: 0,
            occupied: [0; LEVELS as usize],
            links: (0..HEADS).map(|head| Link { prev: head, next: head }).collect(),
            entries: Vec::new(),
            free: NONE,
            last_number: 0,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an entry. One that is due already comes out of the next `expire`.
    pub(super) fn insert(&mut self, now: u64, due: u64, payload: T) -> Key {
        // A wheel that nobody had to expire for a while would place a near deadline in a coarse slot. While it is
        // empty it may jump. (An old `elapsed` costs moves between levels, nothing else; `now` may be a hint.)
        if self.len == 0 {
            self.elapsed = self.elapsed.max(now);
        }
        self.last_number += 1;
        let number = self.last_number;
        let entry = Entry { due, number, payload: Some(payload) };
        let node = self.free;
        let node = if node == NONE {
            let node = u32::try_from(self.links.len()).expect("2^32 timers need more than 200 GB");
            self.links.push(Link { prev: node, next: node });
            self.entries.push(entry);
            node
        } else {
            self.free = self.links[node as usize].next;
            self.entries[(node - HEADS) as usize] = entry;
            node
        };
        self.len += 1;
        self.link(node, due);
        Key { node, number }
    }

    /// Takes the entry out, with the tick at which it was due; `None` if it has gone.
    #[inline]
    pub(super) fn cancel(&mut self, key: Key) -> Option<(u64, T)> {
        let due = self.entry(key)?.due;
        Some((due, self.remove(key.node)?))
    }

    /// Moves the entry's deadline; false if it has gone. Later only stores a number (rule 3).
    pub(super) fn rearm(&mut self, key: Key, due: u64) -> bool {
        let Some(entry) = self.entry(key) else { return false };
        let earlier = due < entry.due;
        entry.due = due;
        if earlier {
            self.unlink(key.node);
            self.link(key.node, due);
        }
        true
    }

    /// What the entry carries; `None` if it has gone.
    pub(super) fn payload(&mut self, key: Key) -> Option<&mut T> {
        self.entry(key)?.payload.as_mut()
    }

    /// No entry is due before this tick, and there may be something to do at it: `expire` then. `None`: empty.
    ///
    /// Exact while the next slot holds up to 8 entries that were not moved later; else up to one slot early, at most
    /// once per level and entry. After a finished `expire(now)` it is later than `now`.
    pub(super) fn next_due(&self) -> Option<u64> {
        let start = self.next_start()?;
        if self.links[TAKEN as usize].next != TAKEN {
            return Some(start);
        }
        let (level, slot) = self.next_slot();
        let head = level * SLOTS + slot;
        // Entries of later slots are not before the end of this one.
        let mut exact = start.saturating_add(1 << (level * BITS));
        let mut node = self.links[head as usize].next;
        for _ in 0..SCAN {
            exact = exact.min(self.entries[(node - HEADS) as usize].due);
            node = self.links[node as usize].next;
            if node == head {
                return Some(exact.max(start));
            }
        }
        Some(start)
    }

    /// The beginning of the next slot: as `next_due`, cheaper and less exact.
    #[inline]
    pub(super) fn next_start(&self) -> Option<u64> {
        if self.links[TAKEN as usize].next != TAKEN {
            return Some(self.elapsed);
        }
        if self.levels == 0 {
            return None;
        }
        let (level, slot) = self.next_slot();
        let above = u64::MAX.checked_shl((level + 1) * BITS).unwrap_or(0);
        Some((self.elapsed & above) | (u64::from(slot) << (level * BITS)))
    }

    /// Appends what is due at `now` to `out`, in the order of its ticks, looking at no more than `budget` entries.
    /// False: the budget ran out first, call again.
    pub(super) fn expire(&mut self, now: u64, mut budget: usize, out: &mut Vec<T>) -> bool {
        loop {
            loop {
                let node = self.links[TAKEN as usize].next;
                if node == TAKEN {
                    break;
                }
                if budget == 0 {
                    return false;
                }
                budget -= 1;
                let due = self.entries[(node - HEADS) as usize].due;
                if due <= self.elapsed {
                    out.extend(self.remove(node));
                } else {
                    self.unlink(node);
                    self.link(node, due);
                }
            }
            match self.next_start() {
                Some(start) if start <= now => {
                    self.elapsed = start;
                    self.take_down();
                }
                _ => break,
            }
        }
        self.elapsed = self.elapsed.max(now);
        true
    }

    /// Everything out, due or not.
    pub(super) fn drain(&mut self, out: &mut Vec<T>) {
        out.extend(self.entries.iter_mut().filter_map(|entry| entry.payload.take()));
        *self = Self { elapsed: self.elapsed, last_number: self.last_number, ..Self::new() };
    }

    #[inline]
    fn entry(&mut self, key: Key) -> Option<&mut Entry<T>> {
        self.entries.get_mut((key.node - HEADS) as usize).filter(|entry| entry.number == key.number)
    }

    /// The next occupied slot (rule 2). Some level must hold something.
    #[inline]
    fn next_slot(&self) -> (u32, u32) {
        let level = self.levels.trailing_zeros();
        (level, self.occupied[level as usize].trailing_zeros())
    }

    /// Moves the next slot's list to TAKEN, which must be empty.
    fn take_down(&mut self) {
        let (level, slot) = self.next_slot();
        let head = level * SLOTS + slot;
        let Link { prev: last, next: first } = self.links[head as usize];
        self.links[head as usize] = Link { prev: head, next: head };
        self.links[TAKEN as usize] = Link { prev: last, next: first };
        self.links[first as usize].prev = TAKEN;
        self.links[last as usize].next = TAKEN;
        self.vacate(head);
    }

    /// Puts a node at the end of the list where `due` belongs.
    #[inline]
    fn link(&mut self, node: u32, due: u64) {
        let tick = due.max(self.elapsed);
        let level = (63 - ((self.elapsed ^ tick) | 1).leading_zeros()) / BITS;
        let slot = (tick >> (level * BITS)) as u32 % SLOTS;
        let head = level * SLOTS + slot;
        let last = self.links[head as usize].prev;
        self.links[node as usize] = Link { prev: last, next: head };
        self.links[last as usize].next = node;
        self.links[head as usize].prev = node;
        self.occupied[level as usize] |= 1 << slot;
        self.levels |= 1 << level;
    }

    #[inline]
    fn unlink(&mut self, node: u32) {
        let Link { prev, next } = self.links[node as usize];
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        // Both neighbours the same: only the head is left.
        if prev == next && prev != TAKEN {
            self.vacate(prev);
        }
    }

    #[inline]
    fn vacate(&mut self, head: u32) {
        let (level, slot) = (head / SLOTS, head % SLOTS);
        self.occupied[level as usize] &= !(1 << slot);
        if self.occupied[level as usize] == 0 {
            self.levels &= !(1 << level);
        }
    }

    #[inline]
    fn remove(&mut self, node: u32) -> Option<T> {
        self.unlink(node);
        self.links[node as usize].next = self.free;
        self.free = node;
        self.len -= 1;
        let entry = &mut self.entries[(node - HEADS) as usize];
        entry.number = 0;
        let payload = entry.payload.take();
        if self.len == 0 && self.entries.len() > KEEP {
            self.links.truncate(HEADS as usize);
            self.links.shrink_to_fit();
            self.entries = Vec::new();
            self.free = NONE;
        }
        payload
    }
}

#[cfg(test)]
#[path = "tests/wheel.rs"]
mod tests;
