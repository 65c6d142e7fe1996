//! Connections: what any thread may read, write, flush and close.
//!
//! Job: table of contents. Laws: 1 (read word), 2 (drained rule), 3 (flush word), 5, 6, 10, 11, 15.
//!
//! | file | job | thread class |
//! |---|---|---|
//! | `connection` | the whole connection: a read half and a write half in one | any thread |
//! | `read_half` | when to recv, when to park | any thread |
//! | `input_end` | whether no bytes mean a FIN or a reset | pure |
//! | `probe` | whether a recv before a park pays | any thread |
//! | `read_ops` | the read family: named futures | any thread |
//! | `write_half` | staging | any thread |
//! | `write_ops` | the write family: flush, send, shutdown | any thread |
//! | `write_futures` | its named futures | any thread |
//! | `shared` | whole frames from many threads | any thread |
//! | `shared_limits` | what it may queue, and what became of a frame | pure |
//! | `shared_send` | how such a frame goes out | any thread |
//! | `shared_wait` | waiting for frames to be out, for the end | any thread |
//! | `layer` | what TLS stands on | any thread |
//! | `kernel_tx` | what the kernel's TLS has taken and still holds back | any thread |
//! | `frames` | where shared frames end, who waits for them | pure |
//! | `send_file` | a range of a file, by sendfile(2) | any thread |
//! | `drive` | the flush owner's loop | any thread |
//! | `body` | what all users of a connection and its reactor share | any thread |
//! | `ending` | FIN, reset, close handle, letting go | any thread |
//! | `deadline` | deadlines, suspending the read clock | any thread |
//! | `rehome` | moving to another reactor | any thread |
//! | `locator` | where a connection is, for who holds it weakly | any thread |
//! | `address` | addresses of both families | pure |
//! | `connect` | outbound connections: what users call | any thread |
//! | `connect_addr` | where to connect, and how | pure |
//! | `attempt` | one attempt to connect, and several side by side | any thread |
//! | `resolve` | host names, on threads of their own | any thread |
//! | `ready_made` | connections from std's sockets, and back | any thread |
//! | `watch` | a watched descriptor: what its user and its reactor share | any thread |
//! | `async_fd` | any pollable descriptor | any thread |
//! | `options` | socket options by name | any thread |
//! | `read_word` | who looks at the input next | any thread |
//! | `flush_word` | who sends next | any thread |
//! | `socket_word` | may this body end the socket | any thread |

pub(crate) mod address;
pub(crate) mod async_fd;
mod attempt;
pub(crate) mod body;
pub(crate) mod connect;
pub(crate) mod connect_addr;
pub(crate) mod connection;
pub(crate) mod deadline;
#[cfg(all(test, loom))]
mod drain_loom;
pub(crate) mod drive;
pub(crate) mod ending;
#[cfg(all(test, loom))]
mod ends_loom;
pub(crate) mod flush_word;
#[cfg(all(test, loom))]
mod flush_word_loom;
pub(crate) mod frames;
mod input_end;
#[cfg(all(test, loom))]
mod input_end_loom;
pub(crate) mod kernel_tx;
pub(crate) mod layer;
#[cfg(all(test, loom))]
mod layer_loom;
pub(crate) mod locator;
mod options;
#[cfg(all(test, loom))]
mod part_way_loom;
mod probe;
pub(crate) mod read_half;
pub(crate) mod read_ops;
pub(crate) mod read_word;
#[cfg(all(test, loom))]
mod read_word_loom;
pub(crate) mod ready_made;
pub(crate) mod rehome;
#[cfg(all(test, loom))]
mod rehome_loom;
pub(crate) mod resolve;
pub(crate) mod send_file;
#[cfg(all(test, loom))]
mod send_file_loom;
pub(crate) mod shared;
pub(crate) mod shared_limits;
#[cfg(all(test, loom))]
mod shared_loom;
pub(crate) mod shared_send;
pub(crate) mod shared_wait;
pub(crate) mod socket_word;
#[cfg(all(test, not(loom)))]
mod stress;
pub(crate) mod watch;
pub(crate) mod write_futures;
pub(crate) mod write_half;
pub(crate) mod write_ops;
