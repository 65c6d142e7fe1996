//! `AsyncFd`: readiness of any descriptor that epoll knows.
//!
//! State: the user's value, and a watch on a duplicate of its descriptor. Thread class: any thread. Laws: 4, 5 (the
//! reactor watches a duplicate of its own, so nothing is closed or reused under it), 10, 12.

use crate::conn::watch::{Side, Watch};
use crate::exec::handle::ReactorHandle;
use crate::sync::readiness::{Place, Tick};
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

/// Waits for any pollable descriptor: a pipe, an eventfd, a timerfd, a UDP or packet socket, an inotify instance.
///
/// Readiness is edge-triggered: it holds from an edge until a call on the descriptor says [`io::ErrorKind::WouldBlock`],
/// so calls are made through [`read_with`](Self::read_with), [`write_with`](Self::write_with) or a guard's
/// [`try_io`](ReadyGuard::try_io). The descriptor must be non-blocking; it is not changed here, because others may share
/// it. Any number of tasks, on any threads, may wait for the same one. It costs a second descriptor, a duplicate, which
/// the reactor watches.
///
/// ```
/// use epoxide::AsyncFd;
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
///
/// async fn first_byte(pipe: UnixStream) -> std::io::Result<u8> {
///     pipe.set_nonblocking(true)?;
///     let pipe = AsyncFd::new(pipe)?;
///     let mut byte = [0];
///     pipe.read_with(|mut pipe| pipe.read_exact(&mut byte)).await?;
///     Ok(byte[0])
/// }
///
/// let (ours, mut theirs) = UnixStream::pair().unwrap();
/// theirs.write_all(b"x").unwrap();
/// assert_eq!(epoxide::block_on(first_byte(ours)).unwrap(), b'x');
/// ```
pub struct AsyncFd<T: AsFd> {
    // Dropped first: the reactor is told before the user's descriptor closes.
    watch: Held,
    inner: T,
}

/// A watch whose user leaves when it is dropped.
struct Held(Arc<Watch>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl<T: AsFd + fmt::Debug> fmt::Debug for AsyncFd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncFd").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<T: AsFd> AsyncFd<T> {
    /// Watches `inner` on the reactor of the calling thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotConnected`] on a thread without a current runtime, and those of [`new_on`](Self::new_on).
    pub fn new(inner: T) -> io::Result<Self> {
        let reactor = ReactorHandle::current().ok_or_else(|| {
            let text = "AsyncFd::new needs a reactor on its thread; AsyncFd::new_on takes a handle";
            io::Error::new(io::ErrorKind::NotConnected, text)
        })?;
        Self::new_on(&reactor, inner)
    }

    /// Watches `inner` on `reactor`. Any thread.
    ///
    /// # Errors
    /// `EMFILE` when the descriptor cannot be duplicated; [`io::ErrorKind::ConnectionAborted`] when the reactor has
    /// stopped, [`io::ErrorKind::QuotaExceeded`] when `max_posts` posts wait. A descriptor that epoll does not take (a
    /// regular file: `EPERM`) is reported by the first wait.
    pub fn new_on(reactor: &ReactorHandle, inner: T) -> io::Result<Self> {
        let duplicate = inner.as_fd().try_clone_to_owned()?;
        let watch = Held(Watch::start(duplicate, reactor.home.clone(), false)?);
        Ok(Self { watch, inner })
    }

    /// The value that is watched.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The value that is watched. What it points at must stay the same file.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Ends the watch and gives the value back.
    pub fn into_inner(self) -> T {
        self.inner
    }

    /// Waits until the descriptor may be read from: data, the end of input, or an error.
    ///
    /// # Errors
    /// [`io::ErrorKind::ConnectionAborted`] when the reactor stops, and epoll_ctl(2)'s when the descriptor could not be
    /// registered.
    ///
    /// # Cancel safety
    /// Nothing happens when the future is dropped.
    pub fn readable(&self) -> Ready<'_, T> {
        self.wait(Side::Read)
    }

    /// Waits until the descriptor may be written to, or has failed. Otherwise as [`readable`](Self::readable).
    pub fn writable(&self) -> Ready<'_, T> {
        self.wait(Side::Write)
    }

    fn wait(&self, side: Side) -> Ready<'_, T> {
        Ready { fd: self, side, place: Place::default() }
    }

    /// The poll form of [`readable`](Self::readable), for one task: a `Pending` has registered `cx`'s waker in place of
    /// the one of an earlier call.
    ///
    /// # Errors
    /// As there.
    pub fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<ReadyGuard<'_, T>>> {
        self.poll_ready(Side::Read, cx.waker(), &mut Place::of_polls())
    }

    /// The poll form of [`writable`](Self::writable), for one task: a `Pending` has registered `cx`'s waker in place of
    /// the one of an earlier call.
    ///
    /// # Errors
    /// As there.
    pub fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<ReadyGuard<'_, T>>> {
        self.poll_ready(Side::Write, cx.waker(), &mut Place::of_polls())
    }

    fn poll_ready(&self, side: Side, waker: &Waker, place: &mut Place) -> Poll<io::Result<ReadyGuard<'_, T>>> {
        let tick = ready!(self.watch.0.poll(side, waker, place))?;
        Poll::Ready(Ok(ReadyGuard { fd: self, side, tick }))
    }

    /// Calls `io` whenever the descriptor may be read from, until it says something else than
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// Those of `io`, and those of [`readable`](Self::readable).
    ///
    /// # Cancel safety
    /// That of one call of `io`: the future waits between calls only.
    pub async fn read_with<R>(&self, mut io: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            if let Ok(result) = self.readable().await?.try_io(&mut io) {
                return result;
            }
        }
    }

    /// Calls `io` whenever the descriptor may be written to, until it says something else than
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// Those of `io`, and those of [`writable`](Self::writable).
    ///
    /// # Cancel safety
    /// That of one call of `io`: the future waits between calls only.
    pub async fn write_with<R>(&self, mut io: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            if let Ok(result) = self.writable().await?.try_io(&mut io) {
                return result;
            }
        }
    }
}

impl<T: AsFd> AsFd for AsyncFd<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

/// The future of [`AsyncFd::readable`] and [`AsyncFd::writable`].
///
/// ```
/// # epoxide::block_on(async {
/// # let (pipe, _other) = std::os::unix::net::UnixStream::pair()?;
/// # pipe.set_nonblocking(true)?;
/// let pipe = epoxide::AsyncFd::new(pipe)?;
/// pipe.writable().await?; // a `Ready`
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Ready<'a, T: AsFd> {
    fd: &'a AsyncFd<T>,
    side: Side,
    place: Place,
}

impl<T: AsFd> fmt::Debug for Ready<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready").field("side", &self.side).finish_non_exhaustive()
    }
}

impl<'a, T: AsFd> Future for Ready<'a, T> {
    type Output = io::Result<ReadyGuard<'a, T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { fd, side, place } = &mut *self;
        fd.poll_ready(*side, cx.waker(), place)
    }
}

impl<T: AsFd> Drop for Ready<'_, T> {
    fn drop(&mut self) {
        self.fd.watch.0.forget(self.side, &self.place);
    }
}

/// Says that the descriptor was ready. Readiness stays until a call on the descriptor finds nothing.
///
/// ```
/// # epoxide::block_on(async {
/// # use std::io::{Read, Write};
/// # let (pipe, mut other) = std::os::unix::net::UnixStream::pair()?;
/// # pipe.set_nonblocking(true)?;
/// let pipe = epoxide::AsyncFd::new(pipe)?;
/// other.write_all(b"hi")?;
/// let mut space = [0; 8];
/// let n = loop {
///     let mut guard = pipe.readable().await?;
///     // `Err`: nothing was there after all; the guard has noted it.
///     if let Ok(read) = guard.try_io(|mut pipe| pipe.read(&mut space)) {
///         break read?;
///     }
/// };
/// assert_eq!(&space[..n], b"hi");
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "make the call through try_io, or the next wait returns at once"]
pub struct ReadyGuard<'a, T: AsFd> {
    fd: &'a AsyncFd<T>,
    side: Side,
    tick: Tick,
}

impl<T: AsFd> fmt::Debug for ReadyGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyGuard").field("side", &self.side).finish_non_exhaustive()
    }
}

/// [`ReadyGuard::try_io`] found nothing: wait again.
///
/// ```
/// # epoxide::block_on(async {
/// # use std::io::Read;
/// # let (pipe, _other) = std::os::unix::net::UnixStream::pair()?;
/// # pipe.set_nonblocking(true)?;
/// let pipe = epoxide::AsyncFd::new(pipe)?;
/// let mut guard = pipe.writable().await?; // for writing it is ready, but there is nothing to read
/// let read = guard.try_io(|mut pipe| pipe.read(&mut [0]));
/// assert!(matches!(read, Err(epoxide::NotReady)));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotReady;

impl fmt::Display for NotReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the descriptor is not ready any more")
    }
}

impl std::error::Error for NotReady {}

impl<T: AsFd> ReadyGuard<'_, T> {
    /// Makes a call on the descriptor. When it says [`io::ErrorKind::WouldBlock`], readiness is over (unless an edge came
    /// meanwhile).
    ///
    /// # Errors
    /// [`NotReady`] for `WouldBlock`; everything else is the call's own result.
    pub fn try_io<R>(&mut self, io: impl FnOnce(&T) -> io::Result<R>) -> Result<io::Result<R>, NotReady> {
        match io(&self.fd.inner) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.clear_ready();
                Err(NotReady)
            }
            result => Ok(result),
        }
    }

    /// Says that a call found nothing: readiness is over, unless an edge came after this guard was made.
    pub fn clear_ready(&mut self) {
        self.fd.watch.0.clear(self.side, self.tick);
    }
}
