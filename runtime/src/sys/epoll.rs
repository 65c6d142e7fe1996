//! epoll(7): one instance per reactor.
//!
//! Job: create, add, delete, wait. There is no MOD: a connection is registered once (law 4).
//! State owned: the epoll descriptor; [`Events`] owns the array that `epoll_wait` fills.
//! Thread class: any thread may add and delete; only the reactor waits.
//! Laws kept: 4 (event data is the caller's u64, never an fd), 5 (CLOEXEC).
//!
//! rustix's, for the reason that `io` gives: libc's epoll_wait costs 35 instructions more, a pass. The kernel sees
//! epoll_pwait without a signal mask, which is the same.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Readable.
pub(crate) const IN: u32 = libc::EPOLLIN as u32;
/// Writable.
pub(crate) const OUT: u32 = libc::EPOLLOUT as u32;
/// The peer's FIN (or our own `shutdown(SHUT_RD)`).
pub(crate) const RDHUP: u32 = libc::EPOLLRDHUP as u32;
/// Both directions have ended.
pub(crate) const HUP: u32 = libc::EPOLLHUP as u32;
/// An error is stored on the socket.
pub(crate) const ERR: u32 = libc::EPOLLERR as u32;
/// Out-of-band data.
pub(crate) const PRI: u32 = libc::EPOLLPRI as u32;
/// Edge-triggered.
pub(crate) const ET: u32 = libc::EPOLLET as u32;
/// Of several epolls that watch one listener, wake one (or a few), not all.
pub(crate) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// The one registration of a connection (law 4).
pub(crate) const CONN_INTEREST: u32 = IN | OUT | RDHUP | PRI | ET;
/// After one of these a short recv no longer means "drained" (law 2).
pub(crate) const ENDING: u32 = RDHUP | HUP | ERR | PRI;

/// The most events one wait may ask for: epoll_wait(2) refuses more than INT_MAX bytes of them.
pub(crate) const MAX_EVENTS: usize = i32::MAX as usize / size_of::<libc::epoll_event>();

/// Events there is room for at first.
const FIRST_EVENTS: usize = 1024;

const NO_EVENT: epoll::Event = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// One event: what happened and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// `IN`, `OUT` and so on.
    pub(crate) flags: u32,
    /// The data given to [`Epoll::add`].
    pub(crate) data: u64,
}

/// Room for the events of one wait. It begins small and doubles whenever a wait fills it, up to its limit: a limit of
/// 2 GiB (which is what epoll_wait(2) allows) costs nothing before so many events come.
pub(crate) struct Events {
    list: Vec<epoll::Event>,
    max: usize,
}

impl Events {
    /// Room for up to `max` events, clamped to `1..=MAX_EVENTS`.
    pub(crate) fn with_capacity(max: usize) -> Self {
        let max = max.clamp(1, MAX_EVENTS);
        Self { list: vec![NO_EVENT; max.min(FIRST_EVENTS)], max }
    }

    /// A wait filled it: the next one may bring more. What is in it stays.
    #[cold]
    fn grow(&mut self) {
        let more = self.list.len().min(self.max - self.list.len());
        // No memory: the room stays as it is, and the rest comes with the next wait.
        if self.list.try_reserve_exact(more).is_ok() {
            self.list.resize(self.list.len() + more, NO_EVENT);
        }
    }

    /// The fault seam: these are the events of the last wait, as many as there is room for.
    #[cfg(epoxide_chaos)]
    pub(super) fn replace(&mut self, events: &[Event]) -> usize {
        for (place, event) in self.list.iter_mut().zip(events) {
            *place = epoll::Event {
                flags: epoll::EventFlags::from_bits_retain(event.flags),
                data: epoll::EventData::new_u64(event.data),
            };
        }
        events.len().min(self.list.len())
    }

    /// Event number `i` of the last wait; past what it returned, stale or empty events.
    ///
    /// # Panics
    /// When `i` is not below the capacity.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Event {
        let event = self.list[i];
        Event { flags: { event.flags }.bits(), data: { event.data }.u64() }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("capacity", &self.list.len()).finish()
    }
}

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll {
    fd: OwnedFd,
}

impl Epoll {
    /// epoll_create1(2), CLOEXEC.
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = Self { fd: epoll::create(epoll::CreateFlags::CLOEXEC)? };
        #[cfg(epoxide_chaos)]
        super::chaos::born(&epoll);
        Ok(epoll)
    }

    /// Registers `fd`. A descriptor that is ready already is reported by the next wait.
    pub(crate) fn add(&self, fd: BorrowedFd<'_>, interest: u32, data: u64) -> io::Result<()> {
        #[cfg(epoxide_chaos)]
        super::chaos::add(self, fd, data)?;
        let flags = epoll::EventFlags::from_bits_retain(interest);
        Ok(epoll::add(&self.fd, fd, epoll::EventData::new_u64(data), flags)?)
    }

    /// Deregisters `fd`. Events that a wait has already returned are not taken back.
    pub(crate) fn delete(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        #[cfg(epoxide_chaos)]
        super::chaos::delete(fd);
        Ok(epoll::delete(&self.fd, fd)?)
    }

    /// Waits for events and returns how many came. `None` waits for ever, zero only looks; the timeout is in
    /// milliseconds. A signal ends the wait with `Ok(0)`.
    #[inline(always)]
    pub(crate) fn wait(&self, events: &mut Events, timeout: Option<u64>) -> io::Result<usize> {
        #[cfg(epoxide_chaos)]
        return super::chaos::wait(self, events, timeout, |events, timeout| self.wait_once(events, timeout));
        #[cfg(not(epoxide_chaos))]
        self.wait_once(events, timeout)
    }

    #[inline(always)]
    fn wait_once(&self, events: &mut Events, timeout: Option<u64>) -> io::Result<usize> {
        let timeout = timeout.map(|ms| {
            let ms = ms.min(i32::MAX as u64) as i64;
            if ms < 1000 {
                // A tick, nearly always; no division.
                Timespec { tv_sec: 0, tv_nsec: ms * 1_000_000 }
            } else {
                Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 }
            }
        });
        match epoll::wait(&self.fd, events.list.as_mut_slice(), timeout.as_ref()) {
            Ok(n) => {
                if n == events.list.len() {
                    events.grow();
                }
                Ok(n)
            }
            Err(Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;

    const NOW: Option<u64> = Some(0);

    #[test]
    fn a_ready_descriptor_is_reported_once_at_add_with_its_data() {
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(4);
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"x").unwrap();
        let data = u64::MAX - 7;
        epoll.add(ours.as_fd(), CONN_INTEREST, data).unwrap();
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 1);
        let event = events.get(0);
        assert_eq!(event.data, data);
        assert_eq!(event.flags, IN | OUT);
        // Edge-triggered: nothing new, nothing reported.
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 0);
        drop(theirs);
        assert_eq!(epoll.wait(&mut events, NOW).unwrap(), 1);
        assert_ne!(events.get(0).flags & ENDING, 0);
        epoll.delete(ours.as_fd()).unwrap();
        let again = epoll.delete(ours.as_fd()).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn a_descriptor_is_registered_once() {
        let epoll = Epoll::new().unwrap();
        let (ours, _theirs) = UnixStream::pair().unwrap();
        epoll.add(ours.as_fd(), CONN_INTEREST, 1).unwrap();
        let error = epoll.add(ours.as_fd(), CONN_INTEREST, 2).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
    }

    #[test]
    fn a_wait_never_ends_early() {
        let epoll = Epoll::new().unwrap();
        let mut events = Events::with_capacity(1);
        let start = Instant::now();
        assert_eq!(epoll.wait(&mut events, Some(3)).unwrap(), 0);
        assert!(start.elapsed() >= Duration::from_millis(3));
    }

    #[test]
    fn capacities_are_clamped() {
        assert_eq!(Events::with_capacity(0).list.len(), 1);
        let mut largest = Events::with_capacity(usize::MAX);
        assert_eq!((largest.list.len(), largest.max), (FIRST_EVENTS, MAX_EVENTS), "paid for before they come");
        largest.grow();
        assert_eq!(largest.list.len(), 2 * FIRST_EVENTS);
        let mut small = Events::with_capacity(FIRST_EVENTS + 1);
        small.grow();
        small.grow();
        assert_eq!(small.list.len(), FIRST_EVENTS + 1);
        assert_eq!(Events::with_capacity(3).list.len(), 3);
        assert_eq!(Events::with_capacity(3).get(2), Event { flags: 0, data: 0 });
    }

    #[test]
    fn the_instance_is_not_inherited() {
        use nix::fcntl::{FcntlArg, FdFlag, fcntl};
        let epoll = Epoll::new().unwrap();
        let flags = fcntl(epoll.as_fd(), FcntlArg::F_GETFD).unwrap();
        assert!(FdFlag::from_bits_retain(flags).contains(FdFlag::FD_CLOEXEC));
    }
}
