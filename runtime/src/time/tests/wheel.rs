//! The wheel against a plain list. Thread class: pure.

use super::{KEEP, Key, SCAN, Wheel};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use proptest::{prop_assert, prop_assert_eq};

#[derive(Clone, Debug)]
enum Step {
    Insert(u64),
    /// Due before the present.
    InsertPast(u64),
    Cancel(usize),
    Rearm(usize, u64),
    RearmPast(usize, u64),
    /// Expire this much later, so many entries at a time.
    Advance(u64, usize),
    /// Only the clock moves: nobody expires.
    Pass(u64),
    /// Expire at the tick that `next_due` names.
    ToNext,
    /// Begin to expire and stop when the budget is used up.
    Half(u64),
}

/// Waits of all sizes: every bit length is as likely as any other.
fn wait() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..70_u64, 4 => (0..20_u32, 0..u64::MAX).prop_map(|(bits, x)| x >> (63 - bits)),
        2 => (0..64_u32, 0..u64::MAX).prop_map(|(bits, x)| x >> bits), 1 => Just(u64::MAX)]
}

fn step() -> impl Strategy<Value = Step> {
    let index = || 0..1_000_usize;
    prop_oneof![
        8 => wait().prop_map(Step::Insert),
        1 => wait().prop_map(Step::InsertPast),
        1 => (index(), wait()).prop_map(|(i, w)| Step::RearmPast(i, w)),
        2 => index().prop_map(Step::Cancel),
        3 => (index(), wait()).prop_map(|(i, w)| Step::Rearm(i, w)),
        2 => ((0..14_u32, 0..u64::MAX), 1..9_usize).prop_map(|((bits, x), b)| Step::Advance(x >> (63 - bits), b)),
        1 => (wait(), 1..9_usize).prop_map(|(by, b)| Step::Advance(by >> 1, b)),
        2 => (0..300_u64).prop_map(Step::Pass),
        3 => Just(Step::ToNext),
        1 => (0..10_000_u64).prop_map(Step::Half),
    ]
}

/// The list: an entry is its key, its deadline and its name.
#[derive(Default)]
struct List {
    waiting: Vec<(Key, u64, u32)>,
    gone: Vec<Key>,
    fired: usize,
}

impl List {
    /// What came out must be what is due, each once; with `all`, nothing that is due may be left.
    fn take(&mut self, now: u64, out: &[u32], all: bool) -> Result<(), TestCaseError> {
        for name in out {
            let at = self.waiting.iter().position(|(.., n)| n == name);
            prop_assert!(at.is_some(), "{} came out twice or after its cancel", name);
            let (key, due, _) = self.waiting.swap_remove(at.unwrap());
            prop_assert!(due <= now, "{} is early: due {} at {}", name, due, now);
            self.gone.push(key);
            self.fired += 1;
        }
        prop_assert!(!all || self.waiting.iter().all(|(_, due, _)| *due > now), "late at {}: {:?}", now, self.waiting);
        Ok(())
    }
}

fn follow(steps: &[Step]) -> Result<usize, TestCaseError> {
    let (mut wheel, mut list, mut now, mut names) = (Wheel::new(), List::default(), 0_u64, 0_u32);
    for step in steps {
        let mut out = Vec::new();
        match *step {
            Step::Insert(wait) | Step::InsertPast(wait) => {
                names += 1;
                let past = matches!(step, Step::InsertPast(_));
                let due = if past { now.saturating_sub(wait) } else { now.saturating_add(wait) };
                list.waiting.push((wheel.insert(now, due, names), due, names));
            }
            Step::Cancel(i) if !list.waiting.is_empty() => {
                let at = i % list.waiting.len();
                let (key, due, name) = list.waiting.swap_remove(at);
                prop_assert_eq!(wheel.cancel(key), Some((due, name)));
                list.gone.push(key);
            }
            Step::Rearm(i, wait) | Step::RearmPast(i, wait) if !list.waiting.is_empty() => {
                let at = i % list.waiting.len();
                let past = matches!(step, Step::RearmPast(..));
                list.waiting[at].1 = if past { now.saturating_sub(wait) } else { now.saturating_add(wait) };
                prop_assert!(wheel.rearm(list.waiting[at].0, list.waiting[at].1));
            }
            Step::Cancel(_) | Step::Rearm(..) | Step::RearmPast(..) => {}
            Step::Pass(by) => now = now.saturating_add(by),
            Step::Half(by) => {
                now = now.saturating_add(by);
                let done = wheel.expire(now, 1, &mut out);
                list.take(now, &out, done)?;
                prop_assert!(done || wheel.next_due().is_some_and(|next| next <= now), "unfinished, but not due");
            }
            Step::Advance(..) | Step::ToNext => {
                let budget = if let Step::Advance(by, budget) = *step {
                    now = now.saturating_add(by);
                    budget
                } else {
                    now = wheel.next_due().map_or(now, |next| next.max(now));
                    usize::MAX
                };
                // Every call but the last moves `budget` entries, and each moves at most once per level and comes out.
                let calls = list.waiting.len() * 12 + 1;
                prop_assert!((0..calls).any(|_| wheel.expire(now, budget, &mut out)), "expire does not end");
                list.take(now, &out, true)?;
                prop_assert!(now == u64::MAX || wheel.next_due().is_none_or(|next| next > now), "it would spin");
            }
        }
        prop_assert_eq!(wheel.len(), list.waiting.len());
        prop_assert_eq!(wheel.is_empty(), wheel.next_due().is_none());
        if let (Some(next), Some(start)) = (wheel.next_due(), wheel.next_start()) {
            let earliest = list.waiting.iter().map(|(_, due, _)| *due).min().unwrap_or(u64::MAX);
            // A deadline that has passed comes out at `elapsed`, which is not after the present.
            prop_assert!(next <= earliest.max(now), "next_due {} would oversleep {}", next, earliest);
            prop_assert!(start <= next);
        }
        for key in &list.gone {
            prop_assert!(wheel.payload(*key).is_none() && !wheel.rearm(*key, 0) && wheel.cancel(*key).is_none());
        }
    }
    let mut rest = Vec::new();
    wheel.drain(&mut rest);
    rest.sort_unstable();
    let mut names: Vec<u32> = list.waiting.iter().map(|(.., name)| *name).collect();
    names.sort_unstable();
    prop_assert_eq!(rest, names);
    prop_assert!(wheel.is_empty() && wheel.next_due().is_none());
    Ok(list.fired)
}

#[test]
fn any_sequence_gives_what_a_sorted_list_gives() {
    let config = Config { cases: 2_000, failure_persistence: None, ..Config::default() };
    // The same sequences in every run.
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let fired = std::cell::Cell::new(0);
    let result = TestRunner::new_with_rng(config, rng).run(&vec(step(), 1..120), |steps| {
        fired.set(fired.get() + follow(&steps)?);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    assert!(fired.get() > 10_000, "hardly anything fired: {}", fired.get());
}

/// What a loop sees that sleeps until `next_due`: exact for few entries, a bounded number of wakes for nothing else.
#[test]
fn a_sleeping_loop_wakes_at_the_deadline_and_seldom_before() {
    for due in [1, 63, 64, 65, 4_095, 4_097, 300_000, 1 << 40, (1 << 60) + 7, u64::MAX - 1] {
        for crowd in [1, SCAN as u64, SCAN as u64 + 1] {
            let (mut wheel, mut out, mut wakes) = (Wheel::new(), Vec::new(), 0);
            for _ in 0..crowd {
                wheel.insert(0, due, ());
            }
            while let Some(next) = wheel.next_due() {
                assert!(next <= due, "overslept");
                wakes += 1;
                assert!(wheel.expire(next, usize::MAX, &mut out));
            }
            assert_eq!(out.len() as u64, crowd);
            assert!(wakes <= if crowd > SCAN as u64 { 11 } else { 1 }, "{wakes} wakes for {crowd} timers at {due}");
        }
    }
}

#[test]
fn what_is_due_comes_out_in_order_whatever_the_jump() {
    for jump in [1, 17, 1_000, 1_000_000] {
        let (mut wheel, mut out) = (Wheel::new(), Vec::new());
        // A fixed shuffle of 1..=9973.
        for i in 1..=9_973_u64 {
            let due = i * 5_003 % 9_973 + 1;
            wheel.insert(0, due, due);
        }
        let mut now = 0;
        while !wheel.is_empty() {
            now += jump;
            while !wheel.expire(now, 100, &mut out) {}
        }
        assert!(out.is_sorted() && out.len() == 9_973, "jump {jump}");
    }
}

#[test]
fn a_table_that_has_grown_is_given_back_and_old_keys_stay_dead() {
    let mut wheel = Wheel::new();
    let keys: Vec<Key> = (0..2 * KEEP as u64).map(|i| wheel.insert(0, i, i)).collect();
    for key in &keys {
        assert!(wheel.cancel(*key).is_some());
    }
    assert!(wheel.entries.capacity() == 0 && wheel.next_due().is_none());
    let key = wheel.insert(5, 9, 1);
    assert!(keys.iter().all(|old| wheel.payload(*old).is_none()));
    assert_eq!(wheel.payload(key), Some(&mut 1));
    let (mut drained, mut out) = (Wheel::new(), Vec::new());
    let key = drained.insert(5, 9, 1);
    drained.drain(&mut out);
    drained.insert(5, 9, 2);
    assert!(out == [1] && drained.payload(key).is_none());
}

#[test]
fn moving_later_does_not_link_and_moving_back_is_kept() {
    let (mut wheel, mut out) = (Wheel::new(), Vec::new());
    let key = wheel.insert(0, 10, ());
    assert!(wheel.rearm(key, 900) && wheel.rearm(key, 5_000));
    assert_eq!(wheel.next_start(), Some(10), "still in its first slot");
    assert!(wheel.rearm(key, 700));
    for now in [10, 699] {
        assert!(wheel.expire(now, usize::MAX, &mut out) && out.is_empty(), "early");
    }
    assert!(wheel.expire(700, usize::MAX, &mut out));
    assert_eq!(out.len(), 1);
}
