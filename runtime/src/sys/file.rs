//! Files on their way into a socket.
//!
//! Job: sendfile(2), and whether a descriptor is a regular file. State owned: none. Thread class: any thread; both may
//! wait for the disk. Laws kept: 15 (who may call is decided by the flush word); no SIGPIPE ever.
//!
//! sendfile(2) has no MSG_NOSIGNAL, and the kernel raises SIGPIPE for it. A Rust program ignores the signal, a program in
//! another language that uses this crate may not: so it is blocked for the call and taken back.
#![allow(unsafe_code, reason = "sendfile(2) and sigtimedwait(2)")]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};
use nix::sys::stat::{SFlag, fstat};

/// The size of a regular file; `None` for anything else (a directory, a pipe, a socket, a device).
pub(crate) fn regular_size(file: BorrowedFd<'_>) -> io::Result<Option<u64>> {
    let stat = fstat(file)?;
    let regular = SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFREG;
    Ok(regular.then(|| u64::try_from(stat.st_size).unwrap_or(0)))
}

/// sendfile(2): how many bytes from `at` on the socket took, perhaps fewer than `count`. `Ok(0)`: the file ends there.
/// The socket must be non-blocking; the file's own position does not move.
pub(crate) fn sendfile(socket: BorrowedFd<'_>, file: BorrowedFd<'_>, at: u64, count: usize) -> io::Result<usize> {
    let mut offset = libc::off_t::try_from(at).map_err(|_| Errno::EOVERFLOW)?;
    let quiet = NoSigpipe::begin()?;
    let result = super::retry(|| {
        #[cfg(epoxide_chaos)]
        let count = super::seam!(SendFile, socket, count);
        // SAFETY: both descriptors are borrowed, so they are open; the offset is a live off_t of ours.
        let n = unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut offset, count) };
        // Bytes moved: not negative once errors are out.
        Errno::result(n).map(|n| n as usize)
    });
    if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EPIPE)) {
        quiet.take_back();
    }
    result
}

/// Blocks SIGPIPE on this thread while it lives.
struct NoSigpipe {
    before: SigSet,
    /// One is pending that is not ours.
    pending: bool,
}

impl NoSigpipe {
    fn begin() -> io::Result<Self> {
        let mut before = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&only()), Some(&mut before))?;
        // One that is not blocked is not pending either.
        let pending = before.contains(Signal::SIGPIPE) && is_pending();
        Ok(Self { before, pending })
    }

    /// The call has raised one: it goes nowhere.
    fn take_back(&self) {
        if !self.pending {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a whole signal set and timespec are lent for the call; null asks for no details.
            let _ = unsafe { libc::sigtimedwait(only().as_ref(), ptr::null_mut(), &raw const now) };
        }
    }
}

impl Drop for NoSigpipe {
    fn drop(&mut self) {
        if !self.before.contains(Signal::SIGPIPE) {
            let _ = pthread_sigmask(SigmaskHow::SIG_UNBLOCK, Some(&only()), None);
        }
    }
}

fn only() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGPIPE);
    set
}

fn is_pending() -> bool {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigpending(2) fills the set; it was zeroed, which is a valid set, so it may be read even if it fails.
    let set = unsafe {
        libc::sigpending(set.as_mut_ptr());
        set.assume_init()
    };
    // SAFETY: the set is initialised, and the signal's number is a valid one.
    unsafe { libc::sigismember(&raw const set, libc::SIGPIPE) == 1 }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn file(bytes: &[u8]) -> File {
        let fd = nix::sys::memfd::memfd_create(c"file", nix::sys::memfd::MFdFlags::MFD_CLOEXEC).unwrap();
        let mut file = File::from(fd);
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn a_range_goes_out_and_the_files_position_stays() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut file = file(b"0123456789");
        assert_eq!(regular_size(file.as_fd()).unwrap(), Some(10));
        assert_eq!(sendfile(ours.as_fd(), file.as_fd(), 3, 4).unwrap(), 4);
        assert_eq!(sendfile(ours.as_fd(), file.as_fd(), 8, 100).unwrap(), 2, "no more than there is");
        assert_eq!(sendfile(ours.as_fd(), file.as_fd(), 10, 1).unwrap(), 0, "the end of the file");
        let mut got = [0; 6];
        theirs.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"345689");
        assert_eq!(file.stream_position().unwrap(), 10);
    }

    #[test]
    fn a_full_socket_refuses_with_eagain() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let file = file(&[7; 65_536]);
        let error = (0..10_000).find_map(|_| sendfile(ours.as_fd(), file.as_fd(), 0, 65_536).err());
        assert_eq!(error.expect("the socket fills").raw_os_error(), Some(libc::EAGAIN));
    }

    #[test]
    fn only_a_regular_file_has_a_size() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(regular_size(ours.as_fd()).unwrap(), None);
        assert_eq!(regular_size(File::open("/dev/null").unwrap().as_fd()).unwrap(), None);
        assert_eq!(regular_size(File::open("/").unwrap().as_fd()).unwrap(), None);
    }

    /// With the signal blocked a raised one stays pending, and so can be seen.
    #[test]
    fn a_gone_peer_is_epipe_and_raises_no_signal() {
        pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&only()), None).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        drop(theirs);
        let file = file(b"x");
        let error = sendfile(ours.as_fd(), file.as_fd(), 0, 1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EPIPE));
        assert!(!is_pending());
        // Control: the bare call does raise it, and the door takes back its own only.
        let mut at = 0;
        // SAFETY: as in the door.
        let n = unsafe { libc::sendfile(ours.as_raw_fd(), file.as_raw_fd(), &raw mut at, 1) };
        assert_eq!((n, Errno::last()), (-1, Errno::EPIPE));
        assert!(is_pending(), "vacuity: the kernel raises no SIGPIPE here");
        assert!(sendfile(ours.as_fd(), file.as_fd(), 0, 1).is_err());
        assert!(is_pending());
        NoSigpipe { before: only(), pending: false }.take_back();
        assert!(!is_pending());
    }
}
