//! Unix sockets: connect, listen, names, and paths that must not stay behind.
//!
//! Job: make them, remove stale and own paths. State owned: a [`UnixPath`] says which file is ours. Thread class: any
//! thread. Laws kept: 4 (a stale path that refuses connects is unlinked, a live one is an error), 5.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::UnixAddr;

use super::connect::ConnectSetup;
use super::{calls, options};
use crate::sys::error::{SysError, errno_of};

/// The path of a listening socket of ours. Dropping it unlinks the path if it still is that socket.
#[derive(Debug)]
pub(crate) struct UnixPath {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Drop for UnixPath {
    fn drop(&mut self) {
        // Somebody may have put another socket there meanwhile: that one stays.
        if file_of(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Connects at once: a unix connect never is in progress. With a full backlog it fails with EAGAIN. The sizes of the buffers
/// are those of `setup`; there is no address to connect from.
pub(crate) fn unix_connect(addr: &SocketAddr, setup: ConnectSetup) -> io::Result<OwnedFd> {
    let socket = calls::unix_socket()?;
    if let Some(bytes) = setup.recv_buffer {
        options::set_recv_buffer_size(socket.as_fd(), bytes)?;
    }
    if let Some(bytes) = setup.send_buffer {
        options::set_send_buffer_size(socket.as_fd(), bytes)?;
    }
    loop {
        match calls::connect_unix(socket.as_fd(), &to_nix(addr)?) {
            Ok(()) => return Ok(socket),
            // Nothing has begun: connect(2) on a unix socket is not interrupted half way.
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// A listening socket. A path in the way is unlinked if it is a socket that refuses connects; `mode` is set before
/// anybody can connect. Of several that come at once one has the path: they look and bind one after the other.
pub(crate) fn unix_listener(
    addr: &SocketAddr,
    backlog: i32,
    mode: Option<u32>,
) -> io::Result<(OwnedFd, Option<UnixPath>)> {
    let socket = calls::unix_socket()?;
    // One that is bound and does not listen yet refuses connects as a stale one does.
    let _alone = addr.as_pathname().and_then(alone);
    match calls::bind_unix(socket.as_fd(), &to_nix(addr)?) {
        Err(error) if errno_of(&error) == Some(libc::EADDRINUSE) => {
            remove_stale(addr, error)?;
            calls::bind_unix(socket.as_fd(), &to_nix(addr)?)?;
        }
        other => other?,
    }
    let path = match addr.as_pathname() {
        Some(path) => Some(UnixPath { path: path.to_owned(), file: file_of(path)? }),
        None => None,
    };
    if let (Some(mode), Some(path)) = (mode, &path) {
        fs::set_permissions(&path.path, fs::Permissions::from_mode(mode))
            .map_err(|e| SysError::wrap("chmod", path.path.display(), e))?;
    }
    calls::listen(socket.as_fd(), backlog)?;
    Ok((socket, path))
}

/// How often the directory's lock is tried, and how long apart: together a second.
const TRIES: u32 = 200;
const BETWEEN: Duration = Duration::from_millis(5);

/// flock(2) on the directory of `path`, which leaves nothing behind. `None`: it may not be opened or locked, or somebody
/// holds it for long; they cannot keep us from starting, so it goes on without.
fn alone(path: &Path) -> Option<Flock<File>> {
    let of = path.parent().filter(|of| !of.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let mut directory = File::open(of).ok()?;
    for _ in 0..TRIES {
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Some(lock),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => directory = back,
            Err(_) => return None,
        }
        // sleep: a wait for the lock itself has no end of its own.
        std::thread::sleep(BETWEEN);
    }
    None
}

/// Unlinks a socket that nobody listens on; anything else in the way is `in_use`, with a reason.
fn remove_stale(addr: &SocketAddr, in_use: io::Error) -> io::Result<()> {
    // An abstract name has no file: somebody holds it.
    let Some(path) = addr.as_pathname() else { return Err(in_use) };
    let said = |what: &'static str| SysError::wrap(what, path.display(), Errno::EADDRINUSE.into());
    let Ok(meta) = fs::symlink_metadata(path) else {
        // Gone meanwhile.
        return Ok(());
    };
    if !meta.file_type().is_socket() {
        return Err(said("something that is no socket is at"));
    }
    match unix_connect(addr, ConnectSetup::default()) {
        Err(error) if error.raw_os_error() == Some(libc::ECONNREFUSED) => match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(SysError::wrap("unlink the stale socket", path.display(), error))
            }
            _ => Ok(()),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Connected, or refused for another reason than that nobody is there.
        _ => Err(said("somebody listens on")),
    }
}

fn file_of(path: &Path) -> io::Result<(u64, u64)> {
    let meta = fs::symlink_metadata(path)?;
    Ok((meta.dev(), meta.ino()))
}

/// getsockname(2) of a unix socket.
pub(crate) fn unix_local_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    to_std(&calls::getsockname_unix(fd)?)
}

/// getpeername(2) of a unix socket.
pub(crate) fn unix_peer_addr(fd: BorrowedFd<'_>) -> io::Result<SocketAddr> {
    to_std(&calls::getpeername_unix(fd)?)
}

fn to_nix(addr: &SocketAddr) -> io::Result<UnixAddr> {
    match (addr.as_pathname(), addr.as_abstract_name()) {
        (Some(path), _) => Ok(UnixAddr::new(path)?),
        (None, Some(name)) => Ok(UnixAddr::new_abstract(name)?),
        (None, None) => Err(Errno::EINVAL.into()),
    }
}

fn to_std(addr: &UnixAddr) -> io::Result<SocketAddr> {
    match (addr.path(), addr.as_abstract()) {
        (Some(path), _) => SocketAddr::from_pathname(path),
        (None, Some(name)) => SocketAddr::from_abstract_name(name),
        // std's way to write an unnamed address.
        (None, None) => SocketAddr::from_pathname(""),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn connected(addr: &SocketAddr) -> io::Result<OwnedFd> {
        unix_connect(addr, ConnectSetup::default())
    }

    /// A directory of its own per call, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let name = format!("epoxide-unix-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let dir = std::env::temp_dir().join(name);
            fs::create_dir_all(&dir).unwrap();
            Self(dir)
        }

        fn addr(&self) -> (PathBuf, SocketAddr) {
            let path = self.0.join("s");
            (path.clone(), SocketAddr::from_pathname(path).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_stale_path_is_taken_over_and_a_live_one_is_not() {
        let scratch = Scratch::new();
        let (path, addr) = scratch.addr();
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "control: std leaves the path behind");
        let (listener, guard) = unix_listener(&addr, 8, Some(0o600)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = unix_listener(&addr, 8, None).unwrap_err();
        assert_eq!(errno_of(&error), Some(libc::EADDRINUSE));
        assert!(error.to_string().contains("somebody listens on"), "{error}");
        connected(&addr).unwrap();
        drop((listener, guard));
        assert!(!path.exists());
    }

    /// Without the directory's lock both had it in one of 70 rounds, one of them at a path that was no longer there.
    #[test]
    fn of_two_that_come_at_once_one_has_the_path() {
        let both = std::sync::Barrier::new(2);
        for round in 0..500 {
            let scratch = Scratch::new();
            let (path, addr) = scratch.addr();
            if round % 2 == 0 {
                drop(UnixListener::bind(&path).unwrap());
            }
            let have = || {
                both.wait();
                unix_listener(&addr, 8, Some(0o600))
            };
            let (one, other) = std::thread::scope(|scope| {
                let one = scope.spawn(have);
                (have(), one.join().unwrap())
            });
            assert!(one.is_ok() != other.is_ok(), "round {round}: {one:?}, {other:?}");
            connected(&addr).unwrap();
        }
    }

    /// Somebody holds the lock of a directory that others may use, too: that is no way to keep a server from starting.
    #[test]
    fn a_lock_that_somebody_holds_delays_and_refuses_nothing() {
        let scratch = Scratch::new();
        let (_, addr) = scratch.addr();
        let _held = Flock::lock(File::open(&scratch.0).unwrap(), FlockArg::LockExclusive).unwrap();
        unix_listener(&addr, 8, None).unwrap();
    }

    #[test]
    fn a_path_that_is_no_socket_or_another_s_stays() {
        let scratch = Scratch::new();
        let (path, addr) = scratch.addr();
        fs::write(&path, "data").unwrap();
        let error = unix_listener(&addr, 8, None).unwrap_err();
        assert_eq!(errno_of(&error), Some(libc::EADDRINUSE));
        assert_eq!(fs::read(&path).unwrap(), b"data");
        fs::remove_file(&path).unwrap();

        let ours = unix_listener(&addr, 8, None).unwrap();
        fs::rename(&path, scratch.0.join("moved")).unwrap();
        let _theirs = UnixListener::bind(&path).unwrap();
        drop(ours);
        assert!(path.exists(), "the socket that took the path's place");
    }

    #[test]
    fn a_full_backlog_is_eagain_and_names_survive_the_trip() {
        let name = format!("epoxide-test-{}", std::process::id());
        let addr = SocketAddr::from_abstract_name(&name).unwrap();
        let (listener, path) = unix_listener(&addr, 0, None).unwrap();
        assert!(path.is_none());
        assert_eq!(unix_local_addr(listener.as_fd()).unwrap().as_abstract_name(), Some(name.as_bytes()));
        let first = connected(&addr).unwrap();
        assert_eq!(unix_peer_addr(first.as_fd()).unwrap().as_abstract_name(), Some(name.as_bytes()));
        assert!(unix_local_addr(first.as_fd()).unwrap().is_unnamed());
        let full = (0..64).map(|_| connected(&addr)).find_map(Result::err).expect("the backlog fills");
        assert_eq!(full.raw_os_error(), Some(libc::EAGAIN));
    }
}
