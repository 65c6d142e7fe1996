//! Identities: small copyable numbers that name a task, a table slot or a listener.
//!
//! Job: pack and unpack (slot, generation). State: none. Thread class: pure. Laws: 1 (a task id fits the read
//! word), 4 (event data is a key, never an fd), 9 (foreign hands hold ids).

/// Names a task of one reactor: slot in its task table and the slot's generation (24 bits), 56 bits in all.
///
/// A stale id names nothing: at worst it causes one spurious poll after the generation has wrapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TaskId(u64);

impl TaskId {
    /// No task has it: the slot is one past the largest that is handed out.
    pub(crate) const NONE: Self = Self(u32::MAX as u64);
    const GENERATION_MASK: u32 = 0x00ff_ffff;

    pub(crate) fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation & Self::GENERATION_MASK) << 32 | u64::from(slot))
    }

    /// From the 56 bits that [`TaskId::bits`] gave.
    #[inline]
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline]
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(crate) fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    /// Does this id belong to a slot that is in `generation` (at most 24 bits) now?
    #[inline]
    pub(crate) fn is_generation(self, generation: u32) -> bool {
        (self.0 >> 32) as u32 == generation
    }

    /// The generation of the slot's next user.
    pub(crate) fn next_generation(self) -> u32 {
        ((self.0 >> 32) as u32 + 1) & Self::GENERATION_MASK
    }
}

/// Names a slot of a reactor's connection table in epoll's event data: slot in the low half, generation above.
///
/// Generations start at 1 and skip 0, so 0 is never a connection's key. Those of watched descriptors, which have a table
/// of their own, carry the top bit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    pub(crate) const NONE: Self = Self(0);

    pub(crate) fn new(slot: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(slot))
    }

    #[inline]
    pub(crate) fn slot(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }

    #[inline]
    pub(crate) fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The bit of generations that are not a connection's.
    pub(crate) const WATCH: u32 = 1 << 31;

    /// Does it name a watched descriptor?
    pub(crate) fn is_watch(self) -> bool {
        self.generation() & Self::WATCH != 0
    }

    /// The generation of a slot's next user, of the same kind. Skips 0: generation 0 is the listeners'.
    pub(crate) fn next_generation(generation: u32) -> u32 {
        let next = (generation & !Self::WATCH).wrapping_add(1) & !Self::WATCH;
        next.max(1) | generation & Self::WATCH
    }
}

/// Names a listener of a runtime: what `listen` returned, and what an accepted connection reports.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// # let mut server = epoxide::Runtime::builder();
/// # server.reactors(1);
/// let web = server.listen("127.0.0.1:0", |_conn| async {});
/// let admin = server.listen("127.0.0.1:0", |_conn| async {});
/// let addrs = server.build()?.local_addrs();
/// assert_ne!(addrs[web.index()], addrs[admin.index()]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub struct ListenerId(pub(crate) u32);

impl ListenerId {
    /// What a connection that no listener accepted (an outbound one) reports.
    pub const OUTBOUND: Self = Self(u32::MAX);

    /// What a connection reports that was accepted by a [`Listener`](crate::Listener) or handed in ready-made.
    pub const HANDED_IN: Self = Self(u32::MAX - 1);

    /// Position of the listener in the order in which the builder's `listen*` methods were called.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, TaskId};

    #[test]
    fn ids_survive_packing_and_stale_generations_are_seen() {
        for (slot, generation) in [(0, 0), (1, 1), (u32::MAX - 1, 0x00ff_ffff), (7, 0x00f0_0003)] {
            let id = TaskId::new(slot, generation);
            assert!(id.bits() < 1 << 56, "fits above the read word's flags");
            let back = TaskId::from_bits(id.bits());
            assert_eq!(back.slot(), slot as usize);
            assert!(back.is_generation(generation));
            assert!(!back.is_generation(generation.wrapping_add(1)));
            assert!(TaskId::new(slot, back.next_generation()).bits() < 1 << 56, "wraps within its bits");
        }
        let key = Key::new(3, 9);
        assert_eq!((key.slot(), key.generation()), (3, 9));
        assert_ne!(key, Key::NONE);
    }
}
