//! Events that the fault seam delays, repeats, splits, reorders and invents.
//!
//! Job: one wait, with what the kernel reported and what was promised for now. State owned: none of its own (the seam's).
//! Thread class: a reactor waits, any thread invents. Laws kept: none; it attacks 1, 3, 4 and 7.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::look::{SYN_SENT, poll, tcp_state};
use super::{Call, EventFault, Fault, Late, faults, with};
use crate::sys::epoll::{ENDING, Epoll, Event, Events, IN, OUT};

/// How long one look at the kernel may take.
const SLICE: Duration = Duration::from_millis(1);

/// epoll_wait(2), with the events of the kernel and the invented ones. `kernel` looks at the kernel.
pub(in crate::sys) fn wait(
    epoll: &Epoll,
    events: &mut Events,
    timeout: Option<u64>,
    kernel: impl Fn(&mut Events, Option<u64>) -> io::Result<usize>,
) -> io::Result<usize> {
    let raw = epoll.as_fd().as_raw_fd();
    let end = timeout.map(|ms| Instant::now() + Duration::from_millis(ms));
    if let Some(faults) = faults() {
        match faults.call(Call::Wait) {
            Fault::Interrupted => {
                crate::sync::store_buffer::drain();
                return Ok(0);
            }
            // sleep: a pass is to be late.
            Fault::Late(time) => std::thread::sleep(time),
            _ => {}
        }
    }
    // As late as that: see there.
    crate::sync::store_buffer::drain();
    loop {
        let left = end.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE));
        let count = kernel(events, Some(super::super::whole_ms(left)))?;
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
pub(super) fn invent(fd: RawFd, flags: u32, after: Duration) -> bool {
    let truth = poll(fd, libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP) as u32 & (IN | OUT | ENDING);
    with(|state| {
        let Some(seat) = state.seats.get(&fd) else { return false };
        let event = Event { flags: flags | truth, data: seat.data };
        state.late.push(Late { epoll: seat.epoll, event, due: Instant::now() + after });
        true
    })
}
