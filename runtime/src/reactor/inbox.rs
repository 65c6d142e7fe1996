//! Messages: from other threads through the inbox, from this one through its own list.
//!
//! State: none beyond the reactor's. Thread class: reactor only. Laws: 7, 8 (bounded per pass), 9 (messages hold ids),
//! 10 (posted code runs under no borrow).

use super::Reactor;
use crate::conn::drive;
use crate::exec::home::Msg;
use crate::exec::{local, run};
use crate::id::Key;

/// Messages of other threads that are served in one pass.
const INBOX_BUDGET: usize = 4096;
/// Flush budgets that an owed flush gets at most while nobody else wants the loop.
const MAX_PORTIONS: usize = 16;

impl Reactor {
    /// True: something was there.
    #[inline(always)]
    pub(super) fn read_inbox(&mut self) -> bool {
        // Looked at first: a pop of an empty queue costs more, once a pass.
        let wakes = self.home.has_wakes();
        if wakes {
            self.read_wakes();
        }
        // Asked behind the wakes: what was posted before one of them is served before its task.
        let messages = self.home.has_messages();
        if messages {
            self.read_messages();
        }
        wakes || messages
    }

    #[inline(never)]
    fn read_messages(&mut self) {
        for _ in 0..INBOX_BUDGET {
            if let Some(msg) = self.home.take_message() {
                self.serve(msg);
            }
            if !self.home.has_messages() {
                return;
            }
        }
    }

    /// Serves the wakes that came from other threads.
    #[inline(never)]
    pub(super) fn read_wakes(&self) {
        for _ in 0..INBOX_BUDGET {
            if let Some(id) = self.home.take_wake() {
                local::wake_from_elsewhere(id);
            }
            if !self.home.has_wakes() {
                return;
            }
        }
    }

    #[inline(always)]
    pub(super) fn read_own_messages(&mut self) {
        // What serving adds waits for the next pass.
        let messages = local::messages_len();
        if messages > 0 {
            self.serve_own(messages);
        }
    }

    #[inline(never)]
    fn serve_own(&mut self, messages: usize) {
        for _ in 0..messages {
            let Some(msg) = local::pop_message() else { return };
            self.serve(msg);
        }
    }

    fn serve(&mut self, msg: Msg) {
        match msg {
            Msg::Owed(key) => self.owed.push_back(key),
            Msg::LetGo(key) => self.let_go(key),
            // The loop looks at the drain before every pass.
            Msg::CompanyOut => {}
            Msg::Adopt(guest) => self.adopt(guest),
            Msg::Post(post) => {
                run::caught(post);
            }
        }
    }

    /// Gives each owed flush its next portion; one that still has a rest is put at the back by its own message.
    ///
    /// One that is alone on the loop gets more: a GiB in sends of 256 KiB takes a fifth more CPU than in long ones.
    #[inline(always)]
    pub(super) fn serve_owed(&mut self, nobody_came: bool) {
        if self.owed.is_empty() {
            self.portions = 1;
        } else {
            self.serve_all_owed(nobody_came);
        }
    }

    #[inline(never)]
    fn serve_all_owed(&mut self, nobody_came: bool) {
        let alone = nobody_came && self.owed.len() == 1 && !local::with_tasks(|tasks| tasks.has_ready());
        self.portions = portions(self.portions, alone);
        for _ in 0..self.owed.len() {
            let Some(key) = self.owed.pop_front() else { return };
            self.serve_one_owed(key);
        }
    }

    fn serve_one_owed(&mut self, key: Key) {
        let Some(entry) = self.table.get(key) else { return };
        let (body, lingers) = (entry.body.clone(), entry.linger.is_some());
        if body.flush.serve_owed() {
            drive::drive_portions(&body, self.portions);
        }
        drop(body);
        if lingers {
            self.attend_linger(key);
        }
    }
}

/// How many budgets an owed flush gets after it got `before`.
fn portions(before: usize, alone: bool) -> usize {
    if alone { (4 * before).min(MAX_PORTIONS) } else { 1 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::portions;

    #[test]
    fn a_lone_flush_gets_more_from_pass_to_pass_and_one_among_others_a_single_budget() {
        assert_eq!([1, 4, 16].map(|before| portions(before, true)), [4, 16, 16]);
        assert_eq!([1, 4, 16].map(|before| portions(before, false)), [1, 1, 1]);
    }
}
