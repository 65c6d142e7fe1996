//! eventfd(2): how a foreign thread ends a reactor's `epoll_wait`.
//!
//! Job: one descriptor to write to. It is registered edge-triggered and not read: every write is a new edge.
//! State owned: the descriptor. Thread class: any thread signals.
//! Laws kept: 5 (CLOEXEC), 7 (wake: the write).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};

/// The descriptor that wakes a reactor. Held in an `Arc` by everyone who may signal, so that its
/// number is never somebody else's.
#[derive(Debug)]
pub(crate) struct WakeFd {
    inner: EventFd,
}

impl WakeFd {
    /// A new eventfd, non-blocking and CLOEXEC.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Self { inner: EventFd::from_flags(flags)? })
    }

    /// Makes an edge. Never fails: the only expected refusal is a full counter (after 2^64 - 2 unread
    /// writes), which one read empties.
    pub(crate) fn signal(&self) {
        #[cfg(epoxide_chaos)]
        if super::chaos::is_wake_late(self.as_fd()) {
            return;
        }
        if self.write(1) == Err(Errno::EAGAIN) {
            let _ = self.read();
            // EAGAIN again: others filled it in between, and their writes were the edge.
            let _ = self.write(1);
        }
    }

    fn write(&self, value: u64) -> nix::Result<usize> {
        loop {
            match self.inner.write(value) {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }

    fn read(&self) -> nix::Result<u64> {
        loop {
            match self.inner.read() {
                Err(Errno::EINTR) => {}
                other => return other,
            }
        }
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::epoll::{ET, Epoll, Event, Events, IN};

    const NOW: Option<u64> = Some(0);

    #[test]
    fn every_write_is_an_edge_though_nobody_reads() {
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(4);
        let wake = WakeFd::new().unwrap();
        epoll.add(wake.as_fd(), IN | ET, 9).unwrap();
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        for _ in 0..3 {
            wake.signal();
            assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 1);
            assert_eq!(events.get(0), Event { flags: IN, data: 9 });
        }
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        assert_eq!(wake.read(), Ok(3));
    }

    #[test]
    fn a_full_counter_still_makes_an_edge() {
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(4);
        let wake = WakeFd::new().unwrap();
        wake.write(u64::MAX - 1).unwrap();
        // Control: the counter is full indeed.
        assert_eq!(wake.write(1), Err(Errno::EAGAIN));
        epoll.add(wake.as_fd(), IN | ET, 1).unwrap();
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 1);
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        wake.signal();
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 1);
        assert_eq!(wake.read(), Ok(1));
    }
}
