//! Watched descriptors: slots with generations, and their edges.
//!
//! State: the slots and the free list. Thread class: reactor only. Laws: 4 (data is a key; a stale one finds nothing),
//! 9, 10 (wakers run with no borrow that they could meet), 12.

use crate::conn::watch::Watch;
use crate::error::CloseReason;
use crate::id::Key;
use std::sync::Arc;

struct Slot {
    generation: u32,
    watch: Option<Arc<Watch>>,
}

/// See the module's text.
pub(super) struct Watches {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Watches {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Gives it a slot and tells it its key; the caller registers it AFTERWARDS.
    pub(super) fn insert(&mut self, watch: Arc<Watch>) -> Key {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: Key::next_generation(Key::WATCH), watch: None });
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 descriptors")
        });
        let slot = &mut self.slots[index as usize];
        let key = Key::new(index, slot.generation);
        watch.set_key(key);
        slot.watch = Some(watch);
        key
    }

    /// Frees the slot; events and messages that still carry the key find nothing.
    pub(super) fn remove(&mut self, key: Key) -> Option<Arc<Watch>> {
        let slot = self.slots.get_mut(key.slot()).filter(|slot| slot.generation == key.generation())?;
        let watch = slot.watch.take()?;
        slot.generation = Key::next_generation(slot.generation);
        self.free.push(key.slot() as u32);
        Some(watch)
    }

    /// An event that is no connection's.
    #[cold]
    pub(super) fn edge(&self, key: Key, flags: u32) {
        let slot = self.slots.get(key.slot()).filter(|slot| slot.generation == key.generation());
        if let Some(Slot { watch: Some(watch), .. }) = slot {
            watch.edge(flags);
        }
    }

    /// A drain: nobody accepts any more.
    pub(super) fn end_listeners(&self, reason: CloseReason) {
        self.slots.iter().filter_map(|slot| slot.watch.as_ref()).filter(|w| w.listens).for_each(|w| w.end(reason));
    }

    /// The end of the reactor: every wait settles.
    pub(super) fn end_all(&mut self, reason: CloseReason) {
        for slot in std::mem::take(&mut self.slots) {
            if let Some(watch) = slot.watch {
                watch.end(reason);
            }
        }
        self.free.clear();
    }
}
