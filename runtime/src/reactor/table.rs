//! The connection table: slots with generations, so that an event or a message names a connection and never its
//! successor.
//!
//! State: the slots and the free list. Thread class: reactor only. Laws: 4, 9.

use crate::conn::body::Body;
use crate::id::Key;
use crate::reactor::linger::Linger;
use crate::reactor::sweep::Watch;
use std::sync::Arc;

/// What the reactor knows about a connection.
pub(super) struct Entry {
    pub(super) body: Arc<Body>,
    /// Set once both halves are gone.
    pub(super) linger: Option<Linger>,
    pub(super) watch: Watch,
}

struct Slot {
    generation: u32,
    entry: Option<Entry>,
}

/// See the module's text.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    lingering: usize,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new(), lingering: 0 }
    }

    /// Connections, lingering ones included.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn lingering(&self) -> usize {
        self.lingering
    }

    /// Slots that exist, for walks.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Gives a connection a slot and tells it its key. The caller registers the socket AFTERWARDS: an event may come
    /// at once.
    pub(super) fn insert(&mut self, body: Arc<Body>) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 1, entry: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 connections: each has a descriptor")
        });
        let slot = &mut self.slots[index as usize];
        let key = Key::new(index, slot.generation);
        body.set_key(key);
        slot.entry = Some(Entry { body, linger: None, watch: Watch::default() });
        key
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Entry> {
        match self.slots.get(key.slot()) {
            Some(slot) if slot.generation == key.generation() => slot.entry.as_ref(),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Entry> {
        self.slots.get_mut(key.slot()).filter(|slot| slot.generation == key.generation())?.entry.as_mut()
    }

    /// The connection in a slot, whatever its generation, for walks.
    pub(super) fn at(&self, index: usize) -> Option<(Key, &Entry)> {
        let slot = self.slots.get(index)?;
        Some((Key::new(index as u32, slot.generation), slot.entry.as_ref()?))
    }

    /// Marks a connection as lingering.
    pub(super) fn set_lingering(&mut self, key: Key, linger: Linger) {
        if let Some(entry) = self.get_mut(key)
            && entry.linger.is_none()
        {
            entry.linger = Some(linger);
            self.lingering += 1;
        }
    }

    /// Frees the slot; events and messages that still carry the key find nothing.
    pub(super) fn remove(&mut self, key: Key) -> Option<Entry> {
        let slot = self.slots.get_mut(key.slot()).filter(|slot| slot.generation == key.generation())?;
        let entry = slot.entry.take()?;
        slot.generation = Key::next_generation(slot.generation);
        self.free.push(key.slot() as u32);
        if entry.linger.is_some() {
            self.lingering -= 1;
        }
        if self.free.len() == self.slots.len() && self.slots.capacity() > 1024 {
            // The last of a crowd left. Generations must not start anew while stale keys may be about.
            self.free.shrink_to_fit();
        }
        Some(entry)
    }
}
