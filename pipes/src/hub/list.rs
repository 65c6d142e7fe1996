//! The list of members: a snapshot is one reference, and a change copies one chunk at most.
//!
//! State: chunks of up to 64 members, in the order of their numbers, shared with the snapshots. Thread class: pure (the
//! roster's lock guards it). Law 10: nothing is dropped here that the caller does not get.

use std::sync::Arc;

/// Members of a chunk. A change of a list that somebody iterates copies one chunk and the list of chunks, which for
/// 4096 members is 64 references each.
const CHUNK: usize = 64;

/// Members and their numbers, ascending.
pub(super) type Chunk<T> = Vec<(u64, T)>;

/// What a broadcast goes through.
pub(super) type Snapshot<T> = Arc<Vec<Arc<Chunk<T>>>>;

/// See the module's text.
#[derive(Debug)]
pub(super) struct List<T> {
    chunks: Snapshot<T>,
    len: usize,
}

impl<T: Clone> List<T> {
    pub(super) fn new() -> Self {
        Self { chunks: Arc::new(Vec::new()), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn snapshot(&self) -> Snapshot<T> {
        self.chunks.clone()
    }

    /// Adds a member with a number above all others.
    pub(super) fn push(&mut self, number: u64, member: T) {
        let chunks = Arc::make_mut(&mut self.chunks);
        match chunks.last_mut() {
            Some(last) if last.len() < CHUNK => Arc::make_mut(last).push((number, member)),
            _ => chunks.push(Arc::new(vec![(number, member)])),
        }
        self.len += 1;
    }

    /// Takes a member out.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.chunks.partition_point(|chunk| chunk[0].0 <= number).checked_sub(1)?;
        let inside = self.chunks[at].binary_search_by_key(&number, |(number, _)| *number).ok()?;
        let chunks = Arc::make_mut(&mut self.chunks);
        let (_, member) = Arc::make_mut(&mut chunks[at]).remove(inside);
        if chunks[at].is_empty() {
            chunks.remove(at);
        } else if let Some(next) = chunks.get(at + 1)
            && chunks[at].len() + next.len() <= CHUNK / 2
        {
            // Or members that stay for long would end up with a chunk each.
            let next = chunks.remove(at + 1);
            Arc::make_mut(&mut chunks[at]).extend(next.iter().cloned());
        }
        self.len -= 1;
        Some(member)
    }

    /// Takes everybody out.
    pub(super) fn take(&mut self) -> Snapshot<T> {
        std::mem::replace(self, Self::new()).chunks
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn numbers(list: &List<u64>) -> Vec<u64> {
        let snapshot = list.snapshot();
        assert!(snapshot.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
        snapshot
            .iter()
            .flat_map(|chunk| chunk.iter())
            .map(|(number, member)| {
                assert_eq!(number, member);
                *number
            })
            .collect()
    }

    #[test]
    fn members_come_and_go_in_any_order_and_chunks_stay_few() {
        let mut list = List::new();
        let mut expected = Vec::new();
        let mut seed = 1_u64;
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            seed >> 33
        };
        for number in 0..5000 {
            list.push(number, number);
            expected.push(number);
            // Half of them leave again, of any age.
            if next() % 2 == 0 {
                let gone = expected.remove(next() as usize % expected.len());
                assert_eq!(list.remove(gone), Some(gone));
                assert_eq!(list.remove(gone), None);
            }
        }
        assert_eq!((numbers(&list), list.len()), (expected.clone(), expected.len()));
        while expected.len() > 40 {
            let gone = expected.remove(next() as usize % expected.len());
            assert_eq!(list.remove(gone), Some(gone));
        }
        assert_eq!(numbers(&list), expected);
        assert!(list.snapshot().len() <= 4, "{} chunks for 40 members", list.snapshot().len());
        assert_eq!(list.remove(99_999), None);
        assert_eq!((list.take().iter().map(|chunk| chunk.len()).sum::<usize>(), list.len()), (40, 0));
    }

    #[test]
    fn a_snapshot_is_one_reference_and_does_not_change() {
        let mut list = List::new();
        (0..1000).for_each(|number| list.push(number, number));
        let before = list.snapshot();
        assert!(Arc::ptr_eq(&before, &list.snapshot()), "a snapshot is a copy");
        list.remove(500);
        list.push(1000, 1000);
        assert_eq!(before.iter().map(|chunk| chunk.len()).sum::<usize>(), 1000);
        let now = list.snapshot();
        let copied = now.iter().filter(|chunk| !before.iter().any(|old| Arc::ptr_eq(old, chunk))).count();
        assert_eq!(copied, 2, "a change copied more than its own chunk");
        // With nobody looking, a change copies nothing.
        drop(before);
        let places: Vec<_> = now.iter().map(Arc::as_ptr).collect();
        drop(now);
        list.remove(501);
        let now: Vec<_> = list.snapshot().iter().map(Arc::as_ptr).collect();
        assert_eq!(places, now, "a chunk was copied for nobody");
    }
}
