//! The fault seam: what the doors of this room do when a plan tells them to misbehave. Only with `--cfg epoxide_chaos`.
//!
//! Job: ask the installed [`Faults`] at every door, and keep the kernel's promises while lying: an invented EAGAIN that
//! no real edge will follow is followed by an invented event, a short recv that leaves bytes behind too, an
//! invented reset really resets the connection. State owned: the plan, which descriptor sits in which epoll, events that
//! come later, the clock's offset. Thread class: any thread. Laws kept: none; it attacks 1, 2, 3, 4, 7, 11 and 12.
//!
//! A wait always looks at the kernel in slices of a millisecond, so that an event that another thread invents comes in
//! time; what the reactor sees is one wait.
#![allow(unsafe_code, reason = "poll(2), ioctl(FIONREAD) and getsockopt(TCP_INFO) on a bare number")]

use std::collections::{HashMap, HashSet};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::epoll::{ENDING, Epoll, Event, Events, IN, OUT};

/// How long one look at the kernel may take.
const SLICE: Duration = Duration::from_millis(1);

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

/// epoll_wait(2), with the events of the kernel and the invented ones. `kernel` looks at the kernel.
pub(super) fn wait(
    epoll: &Epoll,
    events: &mut Events,
    timeout: Option<Duration>,
    kernel: impl Fn(&mut Events, Option<Duration>) -> io::Result<usize>,
) -> io::Result<usize> {
    let raw = epoll.as_fd().as_raw_fd();
    let end = timeout.map(|timeout| Instant::now() + timeout);
    if let Some(faults) = faults() {
        match faults.call(Call::Wait) {
            Fault::Interrupted => return Ok(0),
            // sleep: a pass is to be late.
            Fault::Late(time) => std::thread::sleep(time),
            _ => {}
        }
    }
    loop {
        let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
        let count = kernel(events, Some(left))?;
        let fresh = (0..count).map(|i| events.get(i)).collect();
        let mixed = mix(raw, fresh);
        if !mixed.is_empty() || end.is_some_and(|end| Instant::now() >= end) {
            let taken = events.replace(&mixed);
            with(|state| {
                let rest = mixed[taken..].iter().map(|&event| Late { epoll: raw, event, due: Instant::now() });
                state.late.extend(rest);
            });
            return Ok(taken);
        }
    }
}

/// What a wait returns, given what the kernel reported.
fn mix(epoll: RawFd, fresh: Vec<Event>) -> Vec<Event> {
    let faults = faults();
    let mut now = Vec::new();
    let mut later = Vec::new();
    for event in fresh {
        match faults.as_ref().map_or(EventFault::None, |faults| faults.event()) {
            EventFault::None => merge(&mut now, event),
            EventFault::Later(time) => later.push((event, time)),
            EventFault::Twice(time) => {
                merge(&mut now, event);
                later.push((event, time));
            }
            EventFault::Split(time) => {
                let out = event.flags & OUT;
                if event.flags & !OUT != 0 {
                    merge(&mut now, Event { flags: event.flags & !OUT, ..event });
                }
                later.push((Event { flags: if out == 0 { event.flags } else { out }, ..event }, time));
            }
        }
    }
    let at = Instant::now();
    let spurious = faults.as_ref().and_then(|faults| faults.spurious());
    let mut invented = None;
    with(|state| {
        state.late.extend(later.into_iter().map(|(event, time)| Late { epoll, event, due: at + time }));
        let (due, rest) =
            std::mem::take(&mut state.late).into_iter().partition(|l: &Late| l.epoll == epoll && l.due <= at);
        state.late = rest;
        let due: Vec<Late> = due;
        due.into_iter().for_each(|late| merge(&mut now, late.event));
        if let Some(number) = spurious {
            let mut here: Vec<_> = state.seats.iter().filter(|(_, seat)| seat.epoll == epoll).collect();
            here.sort_by_key(|(fd, _)| **fd);
            if !here.is_empty() {
                let (fd, seat) = here[number as usize % here.len()];
                invented = Some((*fd, *seat, number / here.len() as u64));
            }
        }
    });
    if let Some((fd, seat, number)) = invented {
        // A connect that is not decided reports nothing: not even a lie.
        let flags = if tcp_state(fd) == Some(SYN_SENT) { 0 } else { [IN, OUT, IN | OUT][number as usize % 3] };
        if flags != 0 {
            merge(&mut now, Event { flags, data: seat.data });
        }
    }
    if let Some(faults) = faults {
        now.sort_by_cached_key(|_| faults.order());
    }
    now
}

/// One event per descriptor, as epoll has it.
fn merge(events: &mut Vec<Event>, event: Event) {
    match events.iter_mut().find(|e| e.data == event.data) {
        Some(known) => known.flags |= event.flags,
        None => events.push(event),
    }
}

/// An event that comes later, if the descriptor is registered; one that is not will be reported when it is.
fn invent(fd: RawFd, flags: u32, after: Duration) -> bool {
    let truth = poll(fd, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP) as u32 & (IN | OUT | ENDING);
    with(|state| {
        let Some(seat) = state.seats.get(&fd) else { return false };
        let event = Event { flags: flags | truth, data: seat.data };
        state.late.push(Late { epoll: seat.epoll, event, due: Instant::now() + after });
        true
    })
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

/// The kernel's SYN_SENT, of tcp_states.h.
const SYN_SENT: u8 = 2;

fn tcp_state(fd: RawFd) -> Option<u8> {
    let mut state = 0_u8;
    let mut len = 1;
    // SAFETY: the kernel writes at most `len` bytes, one, of tcp_info, which begins with the state. A number that is
    // no socket's is an error.
    let result =
        unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &raw mut len) };
    (result == 0).then_some(state)
}

fn poll(fd: RawFd, flags: i16) -> i16 {
    let mut asked = libc::pollfd { fd, events: flags, revents: 0 };
    // SAFETY: one live pollfd; a timeout of zero only looks.
    unsafe { libc::poll(&raw mut asked, 1, 0) };
    asked.revents
}

/// Bytes that a recv would find.
fn queued(fd: RawFd) -> usize {
    let mut n: libc::c_int = 0;
    // SAFETY: the request writes one int, to a live int.
    unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut n) };
    usize::try_from(n).unwrap_or(0)
}
