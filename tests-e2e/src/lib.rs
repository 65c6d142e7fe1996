//! The harness of epoxide's end-to-end tests. The tests are in `tests/`, one file per behaviour.
//!
//! Every test begins with [`Case::start`] and speaks to a [`Server`] through a scripted [`Peer`] or
//! the [`Http`] client. What the harness promises so that a test means something:
//!
//! - the end of every test checks that descriptors, threads and pooled buffers are back at the
//!   baseline and names what is left over ([`Case`]);
//! - a reactor that dies, or a handler that panics, fails the test unless the test claims it;
//! - a test that hangs is named and aborted by a [`Watchdog`];
//! - nothing waits on a clock where a signal can be had: [`Gate`], [`hold_reactor`] and
//!   [`SockDiag`] tell a test when a window is really entered;
//! - a known defect is marked with [`pending!`] and fails the run once it is gone.
//!
//! Thread class: any thread, blocking. Nothing here runs inside a reactor except what a test posts.
//!
//! `EPOXIDE_ROUNDS` sets how often the racing loops go round (see [`rounds`]); `EPOXIDE_MIB` and `EPOXIDE_STRESS_SECONDS`
//! make the large and the long tests larger and longer.

/// The programs in it are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../PORTING.md")]
struct Porting;

/// The same.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod baseline;
pub mod broadcast;
mod case;
mod diag;
mod exec;
mod gate;
mod hand_over;
mod handlers;
mod hold;
mod http;
pub mod limits_table;
mod moving;
mod peer;
mod pending;
mod places;
mod pool;
mod proc;
mod rng;
mod server;
mod sharing;
mod watchdog;

pub use baseline::Baseline;
pub use case::{Case, asked_for, rounds};
pub use diag::{SockDiag, TcpRow, TcpState};
pub use exec::{Parker, block_within, poll_once};
pub use gate::{Gate, GateWait};
pub use hand_over::{hand_over, nameless_file};
pub use handlers::{echo, find_head_end, http_ok, http_reply, provoke_panic, read_to_end, serve_requests, stage};
pub use hold::{Held, echo_in_one_wait, hold_reactor};
pub use http::{Http, Response};
pub use moving::{moved, pair, ping, several};
pub use peer::{Ending, Peer, PeerOptions, Unconnected, pattern, set_send_buffer, tcp_pair, wait_until};
pub use pending::run_pending;
pub use places::{Place, run_at};
pub use pool::{assert_pool_quiet, moved_to_workers};
pub use proc::{FdLimit, ThreadCpu, current_tid, free_fd_limit, our_fds, resident_bytes};
pub use rng::Rng;
pub use server::{Server, begin_drain, handing_over, loopback, telling};
pub use sharing::{sharing, sharing_with};
pub use watchdog::Watchdog;
