//! The errnos that the crate sorts by, by name: so that libc is named in this room only.
//!
//! State owned: none. Thread class: pure.

pub(crate) use libc::{
    EAFNOSUPPORT, EAGAIN, ECONNABORTED, ECONNRESET, EHOSTDOWN, EHOSTUNREACH, EIO, EMFILE, ENETDOWN, ENETUNREACH,
    ENFILE, ENOBUFS, ENOMEM, ENONET, ENOPROTOOPT, EPERM, EPIPE, EPROTO, ETIMEDOUT,
};
#[cfg(all(test, not(loom)))]
pub(crate) use libc::{EBADF, EINVAL, ENOTSOCK, EOPNOTSUPP};
