//! The traits of other crates, each behind the feature of its name.
//!
//! Job: impls only. State owned: none. Thread class: any thread.

#[cfg(feature = "futures-io")]
mod futures_io;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "tower")]
pub(crate) mod tower;
