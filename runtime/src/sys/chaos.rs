//! The fault seam: what the doors of this room do when a plan tells them to misbehave. Only with `--cfg epoxide_chaos`.
//!
//! Job: ask the installed [`Faults`] at every door, and keep the kernel's promises while lying: an invented EAGAIN that
//! no real edge will follow is followed by an invented event, a short recv that leaves bytes behind too, an
//! invented reset really resets the connection. State owned: the plan, which descriptor sits in which epoll, events that
//! come later, the clock's offset. Thread class: any thread. Laws kept: none; it attacks 1, 2, 3, 4, 7, 11 and 12.
//!
//! A wait always looks at the kernel in slices of a millisecond, so that an event that another thread invents comes in
//! time; what the reactor sees is one wait.

use std::collections::{HashMap, HashSet};
use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::epoll::{Epoll, Event, IN, OUT};
use events::invent;
use look::{poll, queued};

mod events;
mod look;

pub(super) use events::wait;

/// A door.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// recv(2).
    Recv,
    /// send(2) and sendmsg(2).
    Send,
    /// sendfile(2).
    SendFile,
    /// accept4(2).
    Accept,
    /// socket(2) of a connect.
    Socket,
    /// connect(2).
    Connect,
    /// epoll_wait(2).
    Wait,
    /// epoll_ctl(EPOLL_CTL_ADD).
    Add,
    /// The write of the eventfd.
    Wake,
    /// No call: the moment before a reactor says that it sleeps.
    Sleep,
}

/// What a door is told to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the plain call.
    None,
    /// Move at most so many bytes (at least one).
    Short(usize),
    /// EAGAIN where the call would have succeeded. Its event comes `event` later, and the call returns `hold` later:
    /// with a longer hold the event comes before the EAGAIN. For [`Call::Wake`]: the wake comes `event` later.
    Again {
        /// When the event comes.
        event: Duration,
        /// When the call returns.
        hold: Duration,
    },
    /// EINTR.
    Interrupted,
    /// The connection is reset, both ways; the call fails with this errno.
    Reset(i32),
    /// The call is not made and fails with this errno.
    Errno(i32),
    /// The plain call, so much later.
    Late(Duration),
}

/// What becomes of an event that epoll reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventFault {
    /// It is delivered.
    None,
    /// It comes later, merged with what has come for the same descriptor by then.
    Later(Duration),
    /// It is delivered, and once more later.
    Twice(Duration),
    /// Input now, output later.
    Split(Duration),
}

/// A plan. Asked on the thread that makes the call, under no lock.
pub trait Faults: Send + Sync {
    /// One call of a door.
    fn call(&self, call: Call) -> Fault;
    /// One event.
    fn event(&self) -> EventFault;
    /// Is an event invented in this wait? For the seat with this number, modulo their count.
    fn spurious(&self) -> Option<u64>;
    /// A number to order the events of a wait by.
    fn order(&self) -> u64;
}

/// Where a descriptor is registered.
#[derive(Clone, Copy)]
struct Seat {
    epoll: RawFd,
    data: u64,
}

/// An event that comes later.
struct Late {
    epoll: RawFd,
    event: Event,
    due: Instant,
}

#[derive(Default)]
struct State {
    faults: Option<Arc<dyn Faults>>,
    seats: HashMap<RawFd, Seat>,
    late: Vec<Late>,
    /// Connections that a fault has reset.
    dead: HashSet<RawFd>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static OFFSET_MS: AtomicU64 = AtomicU64::new(0);

fn lock() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(f: impl FnOnce(&mut State) -> T) -> T {
    f(lock().get_or_insert_default())
}

fn faults() -> Option<Arc<dyn Faults>> {
    with(|state| state.faults.clone())
}

/// Installs a plan for the whole process, or none. What was promised for later still comes.
pub fn install(faults: Option<Arc<dyn Faults>>) {
    let old = with(|state| std::mem::replace(&mut state.faults, faults));
    drop(old);
}

/// Lets every clock of the crate jump ahead.
pub fn skip(time: Duration) {
    OFFSET_MS.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
}

/// The time as the crate sees it.
pub fn now() -> Instant {
    Instant::now() + Duration::from_millis(offset_ms())
}

/// How far the clocks have jumped, in milliseconds.
pub(crate) fn offset_ms() -> u64 {
    OFFSET_MS.load(Ordering::Relaxed)
}

/// Events that have still to come, and registered descriptors: for a diagnosis.
pub fn outstanding() -> (usize, usize) {
    with(|state| (state.late.len(), state.seats.len()))
}

/// What a door does.
pub(super) enum Met {
    /// The call, for at most so many bytes.
    Go(usize),
    /// Not the call: this is what it returned.
    Returned(usize),
    /// Not the call: it failed, with this errno.
    Failed(i32),
}

/// An errno of whichever crate makes the call.
pub(super) trait Raw {
    /// From its number.
    fn raw(errno: i32) -> Self;
}

impl Raw for Errno {
    fn raw(errno: i32) -> Self {
        Self::from_raw(errno)
    }
}

impl Raw for rustix::io::Errno {
    fn raw(errno: i32) -> Self {
        Self::from_raw_os_error(errno)
    }
}

/// A door asks before its call, which would move `len` bytes.
pub(super) fn meet(call: Call, fd: BorrowedFd<'_>, len: usize) -> Met {
    let Some(faults) = faults() else { return Met::Go(len) };
    let raw = fd.as_raw_fd();
    if is_dead(fd) {
        // As the kernel does once the error was told.
        return match call {
            Call::Recv => Met::Returned(0),
            _ => Met::Failed(libc::EPIPE),
        };
    }
    match faults.call(call) {
        Fault::None => Met::Go(len),
        Fault::Interrupted => Met::Failed(libc::EINTR),
        Fault::Errno(errno) => Met::Failed(errno),
        Fault::Late(time) => {
            // sleep: the call is to be late.
            std::thread::sleep(time);
            Met::Go(len)
        }
        Fault::Short(n) => {
            let n = n.clamp(1, len.max(1)).min(len);
            if call == Call::Recv && queued(raw) > n {
                // The rest has no edge of its own: it is as if it came a moment later.
                invent(raw, IN, Duration::ZERO);
            }
            Met::Go(n)
        }
        Fault::Again { event, hold } => {
            let flags = match call {
                Call::Recv => libc::POLLIN | libc::POLLRDHUP,
                Call::Send | Call::SendFile => libc::POLLOUT,
                // Level-triggered: it comes again by itself.
                Call::Accept => return Met::Failed(libc::EAGAIN),
                _ => return Met::Go(len),
            };
            // Nothing to lie about: the kernel itself refuses, and promises the edge.
            if poll(raw, flags) & flags == 0 {
                return Met::Go(len);
            }
            invent(raw, if call == Call::Recv { IN } else { OUT }, event);
            if !hold.is_zero() {
                // sleep: the edge is to come while the call is still under way.
                std::thread::sleep(hold);
            }
            Met::Failed(libc::EAGAIN)
        }
        Fault::Reset(errno) => {
            // A unix socket has no reset.
            if !super::socket::is_tcp(fd) || super::socket::reset(fd).is_err() {
                return Met::Go(len);
            }
            with(|state| state.dead.insert(raw));
            Met::Failed(errno)
        }
    }
}

/// [`meet`] for sendmsg(2): the slices that may go, at least the first one whole.
pub(super) fn cut<'a, 'b>(fd: BorrowedFd<'_>, slices: &'a [IoSlice<'b>]) -> nix::Result<&'a [IoSlice<'b>]> {
    let all = slices.iter().map(|slice| slice.len()).sum();
    match meet(Call::Send, fd, all) {
        Met::Failed(errno) => Err(Errno::from_raw(errno)),
        Met::Go(len) if len < all => {
            let mut sum = 0;
            let whole = slices.iter().take_while(|slice| {
                sum += slice.len();
                sum <= len
            });
            Ok(&slices[..whole.count().max(1)])
        }
        _ => Ok(slices),
    }
}

/// [`meet`] for calls that move no bytes.
pub(super) fn try_meet(call: Call, fd: Option<BorrowedFd<'_>>) -> nix::Result<()> {
    let Some(faults) = faults() else { return Ok(()) };
    match (faults.call(call), fd) {
        (Fault::Interrupted, _) if call == Call::Accept => Err(Errno::EINTR),
        (Fault::Errno(errno), _) => Err(Errno::from_raw(errno)),
        (Fault::Again { .. }, Some(_)) if call == Call::Accept => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}

/// A moment that a fault may draw out.
pub(crate) fn pause(call: Call) {
    if let Some(Fault::Late(time)) = faults().map(|faults| faults.call(call)) {
        // sleep: the moment is to be long.
        std::thread::sleep(time);
    }
}

/// A connect that the kernel decided at once: is it to look undecided?
pub(super) fn is_undecided() -> bool {
    faults().is_some_and(|faults| matches!(faults.call(Call::Connect), Fault::Again { .. }))
}

/// Registers: invented events need to know where.
pub(super) fn add(epoll: &Epoll, fd: BorrowedFd<'_>, data: u64) -> nix::Result<()> {
    try_meet(Call::Add, Some(fd))?;
    let seat = Seat { epoll: epoll.as_fd().as_raw_fd(), data };
    with(|state| {
        state.dead.remove(&fd.as_raw_fd());
        state.seats.insert(fd.as_raw_fd(), seat);
    });
    Ok(())
}

pub(super) fn delete(fd: BorrowedFd<'_>) {
    with(|state| state.seats.remove(&fd.as_raw_fd()));
}

/// A new epoll may have the number of one that is gone.
pub(super) fn born(epoll: &Epoll) {
    let epoll = epoll.as_fd().as_raw_fd();
    with(|state| {
        state.seats.retain(|_, seat| seat.epoll != epoll);
        state.late.retain(|late| late.epoll != epoll);
    });
}

/// The write of an eventfd. True: its edge comes later, by itself.
pub(super) fn is_wake_late(fd: BorrowedFd<'_>) -> bool {
    let Some(faults) = faults() else { return false };
    match faults.call(Call::Wake) {
        Fault::Again { event, .. } => invent(fd.as_raw_fd(), IN, event),
        _ => false,
    }
}

/// Was the connection reset by a fault, and is this still that connection?
fn is_dead(fd: BorrowedFd<'_>) -> bool {
    let raw = fd.as_raw_fd();
    if !with(|state| state.dead.contains(&raw)) {
        return false;
    }
    let gone = super::socket::peer_addr(fd).is_err();
    if !gone {
        with(|state| state.dead.remove(&raw));
    }
    gone
}
