//! Epoll events to words: who is told, and who goes on sending.
//!
//! State: none. Thread class: reactor only. Laws: 1, 2 (RDHUP, HUP, ERR and PRI make the half sticky, before the word
//! changes), 3 (writable edges), 4 (data is a key; a stale one finds nothing), 11 (an ERR edge is no reason yet).

use super::{Reactor, WAKE_DATA};
use crate::conn::body::Body;
use crate::conn::read_word::Mark;
use crate::conn::{drive, ending};
use crate::exec::late;
use crate::id::Key;
use crate::sys::epoll::{ENDING, ERR, HUP, IN, OUT, RDHUP};

impl Reactor {
    #[inline(always)]
    pub(super) fn dispatch(&mut self, events: usize) {
        for i in 0..events {
            let event = self.events.get(i);
            let key = Key(event.data);
            if key.generation() == 0 {
                // The eventfd is edge-triggered and never read: its job is done.
                if event.data != WAKE_DATA {
                    // A listener that is gone may have left an event in this batch.
                    if let Some(listener) = self.listeners.get_mut(key.slot()) {
                        listener.ready = true;
                        self.accept_due = true;
                    }
                }
                continue;
            }
            let Some(entry) = self.table.get(key) else {
                self.watches.edge(key, event.flags);
                continue;
            };
            if entry.linger.is_none() {
                edge(&entry.body, event.flags);
            } else {
                let body = entry.body.clone();
                edge(&body, event.flags);
                drop(body);
                self.attend_linger(key);
            }
        }
    }
}

/// One edge of one connection.
#[inline(always)]
fn edge(body: &Body, flags: u32) {
    if flags & (IN | ENDING) != 0 {
        let mark = if flags & ENDING != 0 { Mark::Sticky } else { Mark::Nothing };
        if let Some(waiter) = body.read.signal(mark) {
            body.wake_reader(waiter);
        }
    }
    if flags & (RDHUP | HUP | ERR) != 0 {
        ending::peer_edge(body, flags & RDHUP != 0, flags & (HUP | ERR) != 0);
    }
    if flags & (OUT | ERR | HUP) != 0 && body.flush.writable() {
        late::flush();
        drive::drive_as_reactor(body);
    }
}
