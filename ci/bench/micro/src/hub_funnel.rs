//! B5's rivals that send through the reactor, over the same connections.
//!
//! `Funnel` promises what a hub of shared writers does: each member has a queue of its own with limits in frames, bytes and
//! age, any thread may append, each append says whether the frame was taken. The reactor is handed the members that have
//! something, with one coalesced wake a broadcast, and sends what waits for each with one `writev`.
//!
//! `Mailbox` promises less and is cheaper: one list of frames for the whole reactor, which alone may write; nothing is
//! limited for a member, and nobody learns what became of a frame.
//!
//! State: the sockets. Thread class: the publisher's thread, and the reactor's.

use crate::hub::{Meter, Publisher, limits};
use bytes::Bytes;
use epoxide::WriteHalf;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// As the shared writer does: frames up to this size are copied behind each other.
const COPIED: usize = 256;

fn stage(writer: &mut WriteHalf, frame: Bytes) {
    let staged = if frame.len() <= COPIED { writer.stage(&frame) } else { writer.stage_bytes(frame) };
    staged.expect("there is room");
}

/// What the socket refuses goes out at its edge.
fn flush(writer: &mut WriteHalf) {
    match writer.try_flush() {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
        _ => {}
    }
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<(Bytes, u32)>,
    bytes: usize,
}

struct Member {
    queue: Mutex<Queue>,
    /// Is it in the reactor's list?
    listed: AtomicBool,
    writer: Mutex<WriteHalf>,
}

impl Member {
    /// Appends a frame that has room.
    fn offer(&self, frame: &Bytes, now: u32) -> bool {
        let limits = limits();
        let mut queue = self.queue.lock().expect("nobody panics with it");
        if let Some((_, since)) = queue.frames.front() {
            let late = !limits.age.is_zero() && u128::from(now.wrapping_sub(*since)) > limits.age.as_millis();
            if late || queue.frames.len() >= limits.frames || queue.bytes + frame.len() > limits.bytes {
                return false;
            }
        }
        queue.bytes += frame.len();
        queue.frames.push_back((frame.clone(), now));
        true
    }

    /// Reactor: sends what waits.
    fn serve(&self, batch: &mut VecDeque<(Bytes, u32)>) {
        // Before the look: what is appended from now on lists it again.
        self.listed.store(false, Ordering::SeqCst);
        {
            let mut queue = self.queue.lock().expect("as above");
            queue.bytes = 0;
            // The member keeps a buffer, as it would between two looks.
            std::mem::swap(&mut queue.frames, batch);
        }
        let mut writer = self.writer.lock().expect("as above");
        batch.drain(..).for_each(|(frame, _)| stage(&mut writer, frame));
        flush(&mut writer);
    }
}

/// The members that wait for the reactor, and whether it knows.
#[derive(Default)]
struct Listed {
    members: Vec<usize>,
    posted: bool,
}

pub(crate) struct Funnel {
    members: Arc<Vec<Member>>,
    listed: Arc<Mutex<Listed>>,
    began: Instant,
    meter: Meter,
}

impl Funnel {
    pub(crate) fn new(writers: Vec<WriteHalf>, meter: Meter) -> Self {
        let member = |writer| Member { queue: Mutex::default(), listed: AtomicBool::new(false), writer: Mutex::new(writer) };
        let members = Arc::new(writers.into_iter().map(member).collect());
        Self { members, listed: Arc::default(), began: Instant::now(), meter }
    }
}

impl Publisher for Funnel {
    fn publish(&mut self, frame: &Bytes) {
        let now = self.began.elapsed().as_millis() as u32;
        let mut newly = Vec::with_capacity(self.members.len());
        for (i, member) in self.members.iter().enumerate() {
            assert!(member.offer(frame, now), "there is room");
            if !member.listed.swap(true, Ordering::SeqCst) {
                newly.push(i);
            }
        }
        if newly.is_empty() {
            return;
        }
        let mut listed = self.listed.lock().expect("nobody panics with it");
        listed.members.append(&mut newly);
        if std::mem::replace(&mut listed.posted, true) {
            return; // one wake for all that waits
        }
        drop(listed);
        let (listed, members) = (self.listed.clone(), self.members.clone());
        let posted = self.meter.runtime.handle().run_here(move || {
            let due = {
                let mut listed = listed.lock().expect("nobody panics with it");
                listed.posted = false;
                std::mem::take(&mut listed.members)
            };
            let mut batch = VecDeque::new();
            due.into_iter().for_each(|i| members[i].serve(&mut batch));
        });
        assert!(posted.is_ok());
    }

    fn report(&mut self) -> String {
        self.meter.report()
    }
}

/// The broadcasts that wait for the reactor, and whether it knows.
#[derive(Default)]
struct Inbox {
    frames: Vec<Bytes>,
    posted: bool,
}

pub(crate) struct Mailbox(Arc<Mutex<Inbox>>, Arc<Mutex<Vec<WriteHalf>>>, Meter);

impl Mailbox {
    pub(crate) fn new(writers: Vec<WriteHalf>, meter: Meter) -> Self {
        Self(Arc::default(), Arc::new(Mutex::new(writers)), meter)
    }
}

impl Publisher for Mailbox {
    fn publish(&mut self, frame: &Bytes) {
        let mut inbox = self.0.lock().expect("nobody panics with it");
        inbox.frames.push(frame.clone());
        if std::mem::replace(&mut inbox.posted, true) {
            return; // one wake for all that waits
        }
        drop(inbox);
        let (inbox, writers) = (self.0.clone(), self.1.clone());
        let posted = self.2.runtime.handle().run_here(move || {
            let frames = {
                let mut inbox = inbox.lock().expect("nobody panics with it");
                inbox.posted = false;
                std::mem::take(&mut inbox.frames)
            };
            for writer in writers.lock().expect("as above").iter_mut() {
                frames.iter().for_each(|frame| stage(writer, frame.clone()));
                flush(writer);
            }
        });
        assert!(posted.is_ok());
    }

    fn report(&mut self) -> String {
        self.2.report()
    }
}
