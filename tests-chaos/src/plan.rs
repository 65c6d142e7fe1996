//! Job: what a seed means: which faults, how often, and how many at most.
//! State owned: counters of what was met. Thread class: any thread (the doors ask on their callers' threads).
//!
//! A fault hits by the number of the call at its door, so that a plan is the same in every run; which thread makes
//! that call is up to the scheduler.

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use epoxide::chaos::{self, Call, EventFault, Fault, Faults};
use epoxide_tests_e2e::Rng;

macro_rules! kinds {
    (gentle { $($(#[doc = $gentle_doc:literal])* $gentle:ident)+ } harsh { $($harsh:ident)+ }) => {
        /// A kind of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Kind { $($(#[doc = $gentle_doc])* $gentle,)+ $($harsh,)+ }

        use Kind::{$($gentle,)+ $($harsh,)+};

        /// Faults that a correct runtime hides altogether.
        pub const GENTLE: &[Kind] = &[$($gentle,)+];

        /// Faults that somebody must be told of.
        pub const HARSH: &[Kind] = &[$($harsh,)+];

        /// How often each kind has hit in this process.
        static HITS: [AtomicU64; KINDS] = [const { AtomicU64::new(0) }; KINDS];
    };
}

const KINDS: usize = GENTLE.len() + HARSH.len();

kinds! {
    gentle {
        RecvShort
        RecvAgain
        /// The event comes while the recv that found nothing is still under way.
        RecvAgainEarly
        RecvInterrupted
        RecvLate
        SendShort
        SendAgain
        /// The event comes while the send that was refused is still under way.
        SendAgainEarly
        SendInterrupted
        SendLate
        FileShort
        FileAgain
        AcceptAgain
        AcceptInterrupted
        AcceptAborted
        ConnectUndecided
        WakeLate
        WaitInterrupted
        WaitLate
        /// A moment passes before a reactor says that it sleeps.
        SleepLate
        EventLate
        EventTwice
        EventSplit
        Spurious
        Reorder
        ClockJump
    }
    harsh {
        RecvReset
        SendReset
        SendBroken
        RecvNoMemory
        SendNoBuffers
        AcceptStarved
        AddNoMemory
        SocketStarved
        ConnectFails
    }
}

impl Kind {
    fn call(self) -> Option<Call> {
        Some(match self {
            RecvShort | RecvAgain | RecvAgainEarly | RecvInterrupted | RecvLate | RecvReset | RecvNoMemory => {
                Call::Recv
            }
            SendShort | SendAgain | SendAgainEarly | SendInterrupted | SendLate | SendReset | SendBroken
            | SendNoBuffers => Call::Send,
            FileShort | FileAgain => Call::SendFile,
            AcceptAgain | AcceptInterrupted | AcceptAborted | AcceptStarved => Call::Accept,
            ConnectUndecided | ConnectFails => Call::Connect,
            SocketStarved => Call::Socket,
            AddNoMemory => Call::Add,
            WakeLate => Call::Wake,
            SleepLate => Call::Sleep,
            WaitInterrupted | WaitLate | ClockJump => Call::Wait,
            EventLate | EventTwice | EventSplit | Spurious | Reorder => return None,
        })
    }
}

/// One kind of fault in a plan.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// What happens.
    pub kind: Kind,
    /// To one in so many calls.
    pub one_in: u64,
    /// But not more often than this.
    pub most: u64,
}

/// What a seed does to a workload.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The rules that are left.
    pub rules: Vec<(usize, Rule)>,
}

impl Plan {
    /// The plan of `seed`, less the rules with these numbers.
    pub fn new(seed: u64, without: &[usize]) -> Self {
        let mut rng = Rng::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xC0FFEE);
        let mut rules = Vec::new();
        for &kind in GENTLE {
            let often = [1, 2, 3, 5, 10, 30][rng.below(6) as usize];
            let (one_in, most) = match kind {
                // Nothing but them would mean no progress.
                RecvInterrupted | SendInterrupted | AcceptAgain | AcceptInterrupted | WaitInterrupted => {
                    (often + 1, u64::MAX)
                }
                // These cost time, so there is an end of them.
                RecvAgain | SendAgain | FileAgain | EventLate => (often + 1, 600),
                RecvAgainEarly | SendAgainEarly => (often + 1, 400),
                RecvLate | SendLate | WaitLate | SleepLate => (often * 10, 200),
                RecvShort | SendShort | FileShort => (often, 4000),
                ClockJump => (50 * often, 8),
                _ => (often, 5000),
            };
            if rng.below(3) == 0 {
                rules.push(Rule { kind, one_in, most });
            }
        }
        // Every second seed loses nothing, so that everything must arrive.
        if seed % 2 == 1 {
            for _ in 0..=rng.below(2) {
                let kind = HARSH[rng.below(HARSH.len() as u64) as usize];
                let rare = matches!(kind, AcceptStarved | AddNoMemory | SocketStarved | ConnectFails);
                // There are few connects and many reads.
                let one_in = if rare { [1, 2, 3, 6] } else { [3, 10, 30, 100] }[rng.below(4) as usize];
                rules.push(Rule { kind, one_in, most: 1 + rng.below(3) });
            }
        }
        let left = |(i, _): &(usize, Rule)| !without.contains(i);
        Self { seed, rules: rules.into_iter().enumerate().filter(left).collect() }
    }

    /// A plan with just these rules, which stays what it is when kinds are added: kind, one in so many, at most.
    pub fn of(seed: u64, rules: &[(Kind, u64, u64)]) -> Self {
        let rules = rules.iter().map(|&(kind, one_in, most)| Rule { kind, one_in, most });
        Self { seed, rules: rules.enumerate().collect() }
    }

    /// May anything be lost?
    pub fn is_harsh(&self) -> bool {
        self.rules.iter().any(|(_, rule)| HARSH.contains(&rule.kind))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}:", self.seed)?;
        for (i, rule) in &self.rules {
            write!(f, " {i}={:?}/{}", rule.kind, rule.one_in)?;
            if rule.most < u64::MAX {
                write!(f, "(max {})", rule.most)?;
            }
        }
        Ok(())
    }
}

/// Every kind with how often it has hit in this process.
pub fn hits() -> Vec<(Kind, u64)> {
    let all = GENTLE.iter().chain(HARSH);
    all.map(|&kind| (kind, HITS[kind as usize].load(Ordering::Relaxed))).collect()
}

/// The plan as the doors ask it.
#[derive(Debug)]
pub struct Director {
    plan: Plan,
    met: Vec<[AtomicU64; 2]>,
    /// For what has no door of its own: lengths and times.
    rng: Mutex<Rng>,
}

impl Director {
    /// Carries out `plan`.
    pub fn new(plan: &Plan) -> Self {
        let met = plan.rules.iter().map(|_| Default::default()).collect();
        Self { plan: plan.clone(), met, rng: Mutex::new(Rng::new(plan.seed)) }
    }

    fn below(&self, bound: u64) -> u64 {
        let mut rng = self.rng.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        rng.next_u64() / 7 % bound
    }

    fn micros(&self, most: u64) -> Duration {
        // Short ones are the interesting ones.
        let most = 1 + self.below(most);
        Duration::from_micros(self.below(most))
    }

    /// Does rule number `at` hit this time?
    fn hits(&self, at: usize) -> bool {
        let (index, rule) = self.plan.rules[at];
        let number = self.met[at][0].fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::new(self.plan.seed ^ (index as u64) << 48 ^ number << 8);
        let _ = rng.next_u64();
        let hit = (rng.next_u64() / 11).is_multiple_of(rule.one_in)
            && self.met[at][1].fetch_add(1, Ordering::Relaxed) < rule.most;
        if hit {
            HITS[rule.kind as usize].fetch_add(1, Ordering::Relaxed);
        }
        hit
    }

    fn first(&self, matches: impl Fn(Kind) -> bool) -> Option<Kind> {
        let rules = self.plan.rules.iter().enumerate();
        rules.filter(|(_, (_, rule))| matches(rule.kind)).find(|(at, _)| self.hits(*at)).map(|(_, (_, rule))| rule.kind)
    }
}

impl Faults for Director {
    fn call(&self, call: Call) -> Fault {
        let Some(kind) = self.first(|kind| kind.call() == Some(call)) else { return Fault::None };
        match kind {
            RecvShort | SendShort | FileShort => {
                Fault::Short(1 + self.below([1, 16, 300, 5000][self.below(4) as usize]) as usize)
            }
            RecvAgain | SendAgain | FileAgain | AcceptAgain | WakeLate | ConnectUndecided => {
                Fault::Again { event: self.micros(2000), hold: Duration::ZERO }
            }
            RecvAgainEarly | SendAgainEarly => Fault::Again { event: Duration::ZERO, hold: self.micros(2500) },
            RecvInterrupted | SendInterrupted | AcceptInterrupted | WaitInterrupted => Fault::Interrupted,
            RecvLate | SendLate | WaitLate | SleepLate => Fault::Late(self.micros(2000)),
            AcceptAborted => Fault::Errno(libc::ECONNABORTED),
            AcceptStarved => {
                Fault::Errno([libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM][self.below(4) as usize])
            }
            AddNoMemory => Fault::Errno([libc::ENOMEM, libc::ENOSPC][self.below(2) as usize]),
            SocketStarved => {
                Fault::Errno([libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM][self.below(4) as usize])
            }
            ConnectFails => Fault::Errno(
                [libc::ECONNREFUSED, libc::EADDRNOTAVAIL, libc::ENOBUFS, libc::ENETUNREACH][self.below(4) as usize],
            ),
            RecvReset => Fault::Reset(libc::ECONNRESET),
            SendReset => Fault::Reset(libc::ECONNRESET),
            SendBroken => Fault::Reset(libc::EPIPE),
            RecvNoMemory => Fault::Errno([libc::ENOMEM, libc::ENOBUFS, libc::ETIMEDOUT][self.below(3) as usize]),
            SendNoBuffers => Fault::Errno([libc::ENOMEM, libc::ENOBUFS, libc::ETIMEDOUT][self.below(3) as usize]),
            ClockJump => {
                chaos::skip(Duration::from_millis(1 + self.below(2000)));
                Fault::None
            }
            EventLate | EventTwice | EventSplit | Spurious | Reorder => Fault::None,
        }
    }

    fn event(&self) -> EventFault {
        match self.first(|kind| matches!(kind, EventLate | EventTwice | EventSplit)) {
            Some(EventLate) => EventFault::Later(self.micros(3000)),
            Some(EventTwice) => EventFault::Twice(self.micros(3000)),
            Some(EventSplit) => EventFault::Split(self.micros(3000)),
            _ => EventFault::None,
        }
    }

    fn spurious(&self) -> Option<u64> {
        self.first(|kind| kind == Spurious).map(|_| self.below(1 << 20))
    }

    fn order(&self) -> u64 {
        // The same for all: as they came.
        self.first(|kind| kind == Reorder).map_or(1 << 19, |_| self.below(1 << 20))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_plan_and_every_kind_is_in_one() {
        assert_eq!(Plan::new(7, &[]).to_string(), Plan::new(7, &[]).to_string());
        assert_ne!(Plan::new(7, &[]).to_string(), Plan::new(8, &[]).to_string());
        for &kind in GENTLE.iter().chain(HARSH) {
            let has = |seed: &u64| Plan::new(*seed, &[]).rules.iter().any(|(_, rule)| rule.kind == kind);
            assert!((0..200).any(|seed| has(&seed)), "{kind:?} is in no plan");
        }
        assert!((0..200).step_by(2).all(|seed| !Plan::new(seed, &[]).is_harsh()));
    }

    #[test]
    fn a_rule_that_is_left_out_leaves_the_others_as_they_are() {
        let (all, less) = (Plan::new(9, &[]), Plan::new(9, &[1]));
        assert_eq!(less.rules.len() + 1, all.rules.len());
        assert!(less.rules.iter().all(|(i, rule)| *i != 1 && all.rules[*i].1.kind == rule.kind));
    }

    #[test]
    fn a_rule_hits_as_often_as_it_says_and_not_more_than_it_may() {
        let rule = |one_in, most| Plan { seed: 3, rules: vec![(0, Rule { kind: RecvShort, one_in, most })] };
        let count = |plan: &Plan| {
            let director = Director::new(plan);
            (0..10_000).filter(|_| director.call(Call::Recv) != Fault::None).count()
        };
        assert_eq!(count(&rule(1, u64::MAX)), 10_000);
        assert!((2000..3000).contains(&count(&rule(4, u64::MAX))), "{}", count(&rule(4, u64::MAX)));
        assert_eq!(count(&rule(4, 7)), 7);
    }
}
