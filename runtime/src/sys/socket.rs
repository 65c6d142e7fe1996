//! Sockets: making, accepting, connecting, ending, asking and configuring them.
//!
//! Job: the front of the room; each file below holds one part of it.
//! State owned: none. Thread class: any thread.
//! Laws kept: 4 (listeners), 5 (CLOEXEC from birth, owned before configured, reset).

mod calls;
mod connect;
mod end;
mod facts;
mod listen;
mod options;
mod unix;

pub(crate) use self::connect::{ConnectSetup, connect_start};
pub(crate) use self::end::{reset, shutdown_both, shutdown_write};
#[cfg(all(test, not(loom)))]
pub(crate) use self::facts::ESTABLISHED;
pub(crate) use self::facts::{
    CLOSE, acknowledged, has_room, is_tcp, local_addr, peer_addr, set_nonblocking, take_error, tcp_state, unsent,
    written,
};
pub(crate) use self::listen::{accept, ready_made_listener, tcp_listener, tcp_listeners};
pub(crate) use self::options::{
    keepalive, nodelay, push, quickack, recv_buffer_size, send_buffer_size, set_keepalive, set_nodelay, set_quickack,
    set_recv_buffer_size, set_send_buffer_size, set_tcp_user_timeout, tcp_user_timeout,
};
pub(crate) use self::unix::{UnixPath, unix_connect, unix_listener, unix_local_addr, unix_peer_addr};
