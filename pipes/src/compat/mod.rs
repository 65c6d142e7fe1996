//! The traits of other crates, each behind the feature of its name.
//!
//! Job: impls only. State owned: none. Thread class: any thread.

#[cfg(feature = "futures-io")]
mod futures_io;
#[cfg(feature = "tokio")]
mod tokio;
