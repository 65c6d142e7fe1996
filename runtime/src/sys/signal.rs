//! Waiting for SIGINT and SIGTERM.
//!
//! Job: a readable descriptor that tells which signals came. State owned: [`SLOTS`], the process-wide pipes,
//! and the previous handlers. Thread class: any thread; the handler runs on whichever thread the kernel picks.
//! Laws kept: 5 (CLOEXEC).
//!
//! A handler that writes to a pipe, and not signalfd(2): that one needs the signal blocked in EVERY thread, also in
//! those which exist before the watch.
//!
//! | field | written by | read by | guarded by |
//! |---|---|---|---|
//! | `Slot::mask` | watch and drop | the handler | atomic; 0 = slot unused |
//! | `Slot::writer` | the first watch of the slot, once for ever | the handler | stored before the mask |
//! | `Registry` | watch and drop | watch and drop | its Mutex; the handler never looks |
//!
//! The pipes are never closed, only used again: a handler that has read the number of a slot's pipe may be stopped for
//! any time before it writes to it, and then must not find another file there. There are at most 16 of them.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
pub(crate) use nix::sys::signal::Signal;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, sigaction};
use nix::unistd;

use super::error::SysError;

const SLOT_COUNT: usize = 16;

struct Slot {
    /// Bit n: signal n is wanted.
    mask: AtomicU64,
    /// The write end of the slot's pipe.
    writer: AtomicI32,
}

static SLOTS: [Slot; SLOT_COUNT] = [const { Slot { mask: AtomicU64::new(0), writer: AtomicI32::new(-1) } }; SLOT_COUNT];

struct Pipe {
    reader: OwnedFd,
    _writer: OwnedFd,
}

struct Installed {
    signal: Signal,
    watches: usize,
    previous: SigAction,
}

struct Registry {
    pipes: [Option<&'static Pipe>; SLOT_COUNT],
    used: [bool; SLOT_COUNT],
    installed: Vec<Installed>,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { pipes: [None; SLOT_COUNT], used: [false; SLOT_COUNT], installed: Vec::new() });

fn registry() -> MutexGuard<'static, Registry> {
    // Nothing in the critical sections panics half-way; a poisoned lock is as good as any.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The handler. Async-signal-safe (signal-safety(7)): it loads atomics and calls write(2), and leaves errno as it was.
extern "C" fn on_signal(signal: libc::c_int) {
    let errno = Errno::last_raw();
    for slot in &SLOTS {
        if slot.mask.load(Ordering::Acquire) & bit(signal) != 0 {
            let byte = signal as u8;
            let writer = slot.writer.load(Ordering::Relaxed);
            // A full pipe refuses it: then more than enough signals are waiting already.
            // SAFETY: one byte from a live variable; the number is a pipe that is never closed (see above).
            unsafe { libc::write(writer, (&raw const byte).cast(), 1) };
        }
    }
    Errno::set_raw(errno);
}

fn bit(signal: libc::c_int) -> u64 {
    // Signals are 1..=64 on Linux.
    1u64.checked_shl(signal as u32 - 1).unwrap_or(0)
}

/// SIGINT and SIGTERM, what a server ends by.
pub(crate) fn watch_termination() -> io::Result<SignalWatch> {
    watch(&[Signal::SIGINT, Signal::SIGTERM])
}

/// Takes the signals away from their handlers until the watch is dropped. Several watches of one signal
/// all see it. At most 16 at a time.
pub(crate) fn watch(signals: &[Signal]) -> io::Result<SignalWatch> {
    let mut registry = registry();
    let Some(index) = registry.used.iter().position(|used| !used) else {
        let text = "too many signal watches (16): drop one first";
        return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
    };
    let pipe = registry.pipe(index)?;
    // What a late handler wrote for the slot's last owner is not for the new one.
    let mut rest = [0; 64];
    while matches!(unistd::read(&pipe.reader, &mut rest), Ok(1..)) {}
    registry.used[index] = true;
    let mut watch = SignalWatch { index, pipe, signals: Vec::with_capacity(signals.len()) };
    // The mask before the handlers: a signal that comes in between is not swallowed.
    let mask = signals.iter().fold(0, |mask, &signal| mask | bit(signal as libc::c_int));
    SLOTS[index].mask.store(mask, Ordering::Release);
    let mut failed = None;
    for &signal in signals {
        if watch.signals.contains(&signal) {
            continue;
        }
        match registry.install(signal) {
            Ok(()) => watch.signals.push(signal),
            Err(error) => failed = Some(SysError::wrap("sigaction for", signal, error)),
        }
    }
    // Before the watch may be dropped, which locks it again.
    drop(registry);
    failed.map_or(Ok(watch), Err)
}

impl Registry {
    fn pipe(&mut self, index: usize) -> io::Result<&'static Pipe> {
        if let Some(pipe) = self.pipes[index] {
            return Ok(pipe);
        }
        let (reader, writer) = unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)
            .map_err(|errno| SysError::wrap("pipe for", "signals", errno.into()))?;
        SLOTS[index].writer.store(writer.as_raw_fd(), Ordering::Relaxed);
        let pipe: &'static Pipe = Box::leak(Box::new(Pipe { reader, _writer: writer }));
        self.pipes[index] = Some(pipe);
        Ok(pipe)
    }

    fn install(&mut self, signal: Signal) -> io::Result<()> {
        if let Some(installed) = self.installed.iter_mut().find(|i| i.signal == signal) {
            installed.watches += 1;
            return Ok(());
        }
        let previous = act(signal, &our_action())?;
        self.installed.push(Installed { signal, watches: 1, previous });
        Ok(())
    }

    fn uninstall(&mut self, signal: Signal) {
        let Some(at) = self.installed.iter().position(|i| i.signal == signal) else {
            return;
        };
        self.installed[at].watches -= 1;
        if self.installed[at].watches > 0 {
            return;
        }
        let installed = self.installed.swap_remove(at);
        // If somebody put a handler over ours meanwhile, it stays.
        if let Ok(found) = act(signal, &installed.previous)
            && !is_ours(&found)
        {
            let _ = act(signal, &found);
        }
    }
}

/// SA_RESTART: system calls of the user's threads are not disturbed by our handler.
fn our_action() -> SigAction {
    SigAction::new(SigHandler::Handler(on_signal), SaFlags::SA_RESTART, SigSet::empty())
}

fn is_ours(action: &SigAction) -> bool {
    matches!(action.handler(), SigHandler::Handler(f) if std::ptr::fn_addr_eq(f, on_signal as extern "C" fn(libc::c_int)))
}

fn act(signal: Signal, action: &SigAction) -> io::Result<SigAction> {
    // SAFETY: the action is either ours, whose handler is async-signal-safe and lives for ever, or one that was
    // installed before and is only put back.
    Ok(unsafe { sigaction(signal, action) }?)
}

/// Blocks, in the calling thread, the signals that a process is told something by: its handlers run on other threads.
/// Left open are those that a thread raises itself (a fault must reach its handler) and the profilers' clocks.
pub(crate) fn block_in_this_thread() -> io::Result<()> {
    let mut set = SigSet::all();
    for signal in [
        Signal::SIGSEGV,
        Signal::SIGBUS,
        Signal::SIGILL,
        Signal::SIGFPE,
        Signal::SIGTRAP,
        Signal::SIGABRT,
        Signal::SIGSYS,
        Signal::SIGPROF,
        Signal::SIGVTALRM,
    ] {
        set.remove(signal);
    }
    Ok(set.thread_block()?)
}

/// Signals on their way to one waiter. Dropping it gives them back to their previous handlers.
#[derive(Debug)]
pub(crate) struct SignalWatch {
    index: usize,
    pipe: &'static Pipe,
    signals: Vec<Signal>,
}

impl SignalWatch {
    /// Waits for the next signal and returns its number; `None` after `timeout` (`None` = no limit).
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> io::Result<Option<i32>> {
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            if let Some(signal) = self.try_next()? {
                return Ok(Some(signal));
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            let timeout = PollTimeout::try_from(super::timeout_ms(left)).unwrap_or(PollTimeout::ZERO);
            let mut fds = [PollFd::new(self.pipe.reader.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                // The signal itself may interrupt the poll: look again.
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next signal, if one has come.
    pub(crate) fn try_next(&self) -> io::Result<Option<i32>> {
        let mut byte = [0];
        match super::retry(|| unistd::read(&self.pipe.reader, &mut byte)) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(i32::from(byte[0]))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl AsFd for SignalWatch {
    /// Readable while a signal waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.reader.as_fd()
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        let mut registry = registry();
        // Handlers back first, then the mask: in between a signal is written to a pipe that nobody reads, never
        // swallowed by a handler with no slot.
        for &signal in &self.signals {
            registry.uninstall(signal);
        }
        SLOTS[self.index].mask.store(0, Ordering::Release);
        registry.used[self.index] = false;
    }
}

impl std::fmt::Debug for Pipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pipe").field(&self.reader.as_raw_fd()).finish()
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::raise;

    use super::*;

    const LONG: Option<Duration> = Some(Duration::from_secs(30));

    // Each test has signals of its own, none of which the rest of the crate watches: tests share a process.

    #[test]
    fn a_signal_is_delivered_from_a_thread_that_existed_before() {
        let (go, gone) = std::sync::mpsc::channel::<()>();
        let old_thread = std::thread::spawn(move || {
            gone.recv().unwrap();
            raise(Signal::SIGUSR1).unwrap();
        });
        let watch = watch(&[Signal::SIGUSR1, Signal::SIGUSR1]).unwrap();
        assert_eq!(watch.wait(Some(Duration::ZERO)).unwrap(), None);
        assert_eq!(watch.wait(Some(Duration::from_millis(3))).unwrap(), None);
        go.send(()).unwrap();
        assert_eq!(watch.wait(LONG).unwrap(), Some(libc::SIGUSR1));
        assert_eq!(watch.try_next().unwrap(), None);
        old_thread.join().unwrap();
    }

    #[test]
    fn a_thread_that_blocks_signals_still_takes_its_own_faults() {
        let blocked = std::thread::spawn(|| {
            block_in_this_thread().unwrap();
            SigSet::thread_get_mask().unwrap()
        });
        let mask = blocked.join().unwrap();
        assert!(mask.contains(Signal::SIGTERM) && mask.contains(Signal::SIGUSR1));
        assert!(!mask.contains(Signal::SIGSEGV) && !mask.contains(Signal::SIGPROF));
    }

    #[test]
    fn every_watch_sees_it_and_the_last_one_restores_the_handler() {
        let signal = Signal::SIGUSR2;
        let ignore = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
        act(signal, &ignore).unwrap();
        let first = watch(&[signal]).unwrap();
        let second = watch(&[signal]).unwrap();
        raise(signal).unwrap();
        assert_eq!(first.wait(LONG).unwrap(), Some(libc::SIGUSR2));
        assert_eq!(second.wait(LONG).unwrap(), Some(libc::SIGUSR2));
        drop(first);
        raise(signal).unwrap();
        assert_eq!(second.wait(LONG).unwrap(), Some(libc::SIGUSR2));
        drop(second);
        // Ignored again: the process survives, and a new watch starts with nothing in it.
        raise(signal).unwrap();
        let third = watch(&[signal]).unwrap();
        assert_eq!(third.try_next().unwrap(), None);
        drop(third);
        let found = act(signal, &ignore).unwrap();
        assert!(matches!(found.handler(), SigHandler::SigIgn));
    }

    #[test]
    fn a_signal_that_cannot_be_caught_is_an_error_that_leaves_nothing_behind() {
        for _ in 0..SLOT_COUNT + 1 {
            let error = watch(&[Signal::SIGURG, Signal::SIGKILL]).unwrap_err();
            assert_eq!(super::super::error::errno_of(&error), Some(libc::EINVAL), "{error}");
        }
        assert!(registry().installed.iter().all(|i| i.signal != Signal::SIGURG));
    }
}
