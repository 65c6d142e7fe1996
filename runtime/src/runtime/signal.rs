//! Waiting for signals as a future.
//!
//! State: none; the pipes are in `sys`. Thread class: any thread with a current runtime. Laws: 9.

use crate::conn::async_fd::AsyncFd;
use crate::sys::signal::{self, Signal, SignalWatch};
use std::io;

/// Which signal came.
///
/// ```
/// # epoxide::block_on(async {
/// use epoxide::signal::{SignalKind, Signals};
///
/// let signals = Signals::new(&[SignalKind::Hangup, SignalKind::User1])?;
/// # nix::sys::signal::raise(nix::sys::signal::Signal::SIGUSR1)?;
/// match signals.next().await? {
///     SignalKind::Hangup => println!("read the configuration again"),
///     kind => println!("{kind:?}"),
/// }
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SignalKind {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: what a service manager sends.
    Terminate,
    /// SIGHUP: by convention, read the configuration again.
    Hangup,
    /// SIGUSR1.
    User1,
    /// SIGUSR2.
    User2,
}

const KINDS: [(SignalKind, Signal); 5] = [
    (SignalKind::Interrupt, Signal::SIGINT),
    (SignalKind::Terminate, Signal::SIGTERM),
    (SignalKind::Hangup, Signal::SIGHUP),
    (SignalKind::User1, Signal::SIGUSR1),
    (SignalKind::User2, Signal::SIGUSR2),
];

/// Signals that come here instead of to their previous handlers, until this is dropped. Several watches of one signal
/// all see it.
///
/// ```
/// # epoxide::block_on(async {
/// use epoxide::signal::{SignalKind, Signals};
///
/// let mut reload = Signals::new(&[SignalKind::Hangup])?;
/// # nix::sys::signal::raise(nix::sys::signal::Signal::SIGHUP)?;
/// assert_eq!(reload.next().await?, SignalKind::Hangup);
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct Signals {
    watch: AsyncFd<SignalWatch>,
}

impl Signals {
    /// Watches the given signals.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] on a thread without a current runtime; [`io::ErrorKind::InvalidInput`] for no
    /// signal at all; those of sigaction(2) and pipe(2), and when 16 watches exist.
    pub fn new(kinds: &[SignalKind]) -> io::Result<Self> {
        if kinds.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "Signals::new was given no signal to watch"));
        }
        let wanted = |kind: &SignalKind| KINDS.iter().find(|(known, _)| known == kind).map(|(_, signal)| *signal);
        let signals: Vec<Signal> = kinds.iter().filter_map(wanted).collect();
        Ok(Self { watch: AsyncFd::new(signal::watch(&signals)?)? })
    }

    /// Waits for the next signal. Signals of one kind that come before anybody looks may be one.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionAborted`] when the reactor stops.
    ///
    /// # Cancel safety
    /// A signal that nobody was told of is told next time.
    pub async fn next(&self) -> io::Result<SignalKind> {
        let number =
            self.watch.read_with(|watch| watch.try_next()?.ok_or_else(|| io::ErrorKind::WouldBlock.into())).await?;
        KINDS
            .iter()
            .find(|(_, signal)| *signal as i32 == number)
            .map(|(kind, _)| *kind)
            .ok_or_else(|| io::Error::other(format!("signal {number} came, which was not asked for")))
    }
}

/// Waits for Ctrl-C (SIGINT), once. It watches from its first poll on: a signal before that meets its previous handler.
///
/// # Errors
/// Those of [`Signals::new`] and [`Signals::next`].
///
/// # Cancel safety
/// Dropped before it was ready, the signal goes to its previous handler again.
pub async fn ctrl_c() -> io::Result<()> {
    Signals::new(&[SignalKind::Interrupt])?.next().await.map(drop)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::block_on;

    #[test]
    fn a_signal_is_told_once_to_every_watch_and_by_its_kind() {
        block_on(async {
            let first = Signals::new(&[SignalKind::User1, SignalKind::User2]).unwrap();
            let second = Signals::new(&[SignalKind::User1]).unwrap();
            nix::sys::signal::raise(Signal::SIGUSR1).unwrap();
            assert_eq!(first.next().await.unwrap(), SignalKind::User1);
            assert_eq!(second.next().await.unwrap(), SignalKind::User1);
            nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
            assert_eq!(first.next().await.unwrap(), SignalKind::User2);
            assert_eq!(Signals::new(&[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        });
    }

    #[test]
    fn without_a_runtime_it_says_so() {
        let error = Signals::new(&[SignalKind::User1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotConnected);
    }
}
