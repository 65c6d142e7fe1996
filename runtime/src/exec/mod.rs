//! The executor of a reactor: tasks, their wakers and handles, and the home that other threads reach it through.
//!
//! Job: table of contents. Laws: 7 (wake), 9 (foreign hands hold ids), 10 (no user code under a borrow).
//!
//! | file | job | thread class |
//! |---|---|---|
//! | `home` | what other threads see of a reactor: inbox, wake, stop flag, counters | any thread |
//! | `header` | a task's waker | any thread |
//! | `marks` | what other threads tell a task: woken, aborted; its id | any thread |
//! | `spare` | headers of tasks that have ended, for the next ones | reactor only |
//! | `task` | a future, its waker and its header in one box | reactor only |
//! | `tasks` | the task table and its run queue | pure |
//! | `local` | the reactor thread's own state: tasks, messages to itself | reactor only |
//! | `late` | one wake of workers for all events of a wait | any thread |
//! | `run` | polls tasks within a budget, catches panics | reactor only |
//! | `spawn` | `spawn_local`, `yield_now`, what a future may return | reactor only |
//! | `job` | closures for a pool of threads | any thread |
//! | `join` | `JoinHandle`, `AbortHandle` | any thread |
//! | `join_error` | why a task has no result | any thread |
//! | `draining` | waiting for a drain | any thread |
//! | `company` | none of a runtime's reactors is through with a drain before all have everything out | any thread |
//! | `handle` | `ReactorHandle` | any thread |
//! | `enter` | user code around the life of a thread | any thread |
//! | `ambient` | what kind of thread this is, which reactor it has entered | any thread |
//! | `watched` | what the thread notes of user code, for stalls and for the end | reactor only |
//! | `erased` | what rooms above hang on a home | any thread |

pub(crate) mod ambient;
pub(crate) mod company;
pub(crate) mod draining;
pub(crate) mod enter;
pub(crate) mod erased;
pub(crate) mod handle;
pub(crate) mod header;
pub(crate) mod home;
pub(crate) mod job;
pub(crate) mod join;
pub(crate) mod join_error;
pub(crate) mod late;
pub(crate) mod local;
pub(crate) mod marks;
pub(crate) mod run;
pub(crate) mod spare;
pub(crate) mod spawn;
pub(crate) mod task;
pub(crate) mod tasks;
#[cfg(all(test, loom))]
mod wake_order_loom;
pub(crate) mod watched;
