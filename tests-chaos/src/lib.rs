//! Chaos: a seeded plan of faults, workloads that it attacks, and an oracle.
//!
//! The suite needs `RUSTFLAGS="--cfg epoxide_chaos"`, which compiles the fault seam into the runtime; `ci/test chaos` and
//! `ci/chaos` set it. Without it this library is empty, and only the hostile peers of `tests/hostile_*.rs` are left,
//! which need no seam.
//!
//! | file | job |
//! |---|---|
//! | `plan` | what a seed means: which faults, how often |
//! | `trial` | one run: the runtime, the parties and where they run, the watch over them, the accounts at the end |
//! | `stream` | bytes that are known in advance, ways to send and to receive them |
//! | `verdict` | what one connection's ends must agree about |
//! | `suite` | many trials, the report, the shrinking of a failure |
//! | `workloads` | what is attacked; with the feature `tls` also sessions of `epoxide-tls` |
//! | `identity` | a certificate for them |
//!
//! `bin/chaos` is the driver of `ci/chaos`; `bin/soak` is a mixed load without faults, for `ci/soak`.
//!
//! The oracle: every byte equal and in order; every future settled in time, else the parties that hang are named with
//! what they were doing; nothing that was cut looks whole; connections, tasks, buffers, descriptors and threads are back
//! where they were.
#![doc = include_str!("../MUTATIONS.md")]

#[cfg(feature = "tls")]
pub mod identity;
#[cfg(epoxide_chaos)]
pub mod plan;
#[cfg(epoxide_chaos)]
pub mod stream;
#[cfg(epoxide_chaos)]
pub mod suite;
#[cfg(epoxide_chaos)]
pub mod trial;
#[cfg(epoxide_chaos)]
pub mod verdict;
#[cfg(epoxide_chaos)]
pub mod workloads;
