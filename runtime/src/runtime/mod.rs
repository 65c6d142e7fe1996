//! The runtime: reactors on threads, listeners, start, drain, stop.
//!
//! Job: table of contents. Thread class: any thread. Laws: 4, 12, 16, section "drain".
//!
//! | file | job |
//! |---|---|
//! | `listen` | addresses, and the sockets behind them |
//! | `listen_options` | how a listener listens |
//! | `listener` | accepting by hand |
//! | `builder` | what is to run: reactors, listeners, hooks |
//! | `launch` | threads, pinning, the start that waits for every reactor |
//! | `control` | who still runs, what was cut |
//! | `running` | the running runtime: addresses, handles, shutdown |
//! | `signal` | waiting for signals as a future |
//! | `single` | one reactor on the calling thread, and `block_on` |

pub(crate) mod builder;
mod control;
mod launch;
pub(crate) mod listen;
pub(crate) mod listen_options;
pub(crate) mod listener;
pub(crate) mod running;
pub(crate) mod signal;
pub(crate) mod single;

#[cfg(all(test, not(loom)))]
mod tests;
