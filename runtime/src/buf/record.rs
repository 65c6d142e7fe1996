//! A record of kernel TLS that is no data, on its way out.
//!
//! Job: it goes out alone, whole and once, and stays in front of the queue until what has to happen behind it has happened:
//! the kernel may hold it back, or not take new keys yet, and nothing may pass it. State owned: the record. Thread class:
//! any thread, one at a time: the flush owner. Laws kept: 15.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;

use super::outgoing::SendEnd;
use crate::sys;

/// What has to happen behind a record before anything else goes out, the FIN included.
pub(crate) trait Behind: Send + Sync {
    /// The record is about to be given to the kernel, perhaps not for the first time.
    fn leaving(&self) {}

    /// The record is with the kernel. `uncounted`: bytes that the kernel took in this send, its own among them, and that
    /// `Body::accepted` does not hold yet. Asked again until it is done.
    ///
    /// # Errors
    /// It cannot be: the connection ends.
    fn settle(&self, fd: BorrowedFd<'_>, uncounted: usize) -> io::Result<Settled>;
}

/// See [`Behind`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Settled {
    Done,
    /// It will be in a moment: the reactor asks in its next passes.
    Soon,
    /// Once the socket has room: at an edge, or at the reactor's next tick.
    Later,
}

/// See the module's text.
pub(super) struct Record {
    kind: u8,
    body: Bytes,
    behind: Option<Arc<dyn Behind>>,
    /// The kernel has it.
    sent: bool,
    /// How often it may still be asked whether it is settled though the socket has room: the count may be wrong, and must
    /// not hold the connection for ever.
    asks: u8,
}

/// Asked in so many passes of the reactor, one after the other.
const PASSES: u8 = 64;
/// Then at so many edges and ticks: two seconds.
const TICKS: u8 = 8;

impl Record {
    pub(super) fn new(kind: u8, body: Bytes, behind: Option<Arc<dyn Behind>>) -> Self {
        Self { kind, body, behind, sent: false, asks: PASSES + TICKS }
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Has the kernel got it? Then it waits for what has to happen behind it.
    pub(super) fn is_sent(&self) -> bool {
        self.sent
    }

    /// Its length, once it is out and what comes behind it may follow; `uncounted`: as in [`Behind::settle`], without it.
    pub(super) fn send(&mut self, fd: BorrowedFd<'_>, uncounted: usize) -> Result<usize, SendEnd> {
        let len = self.body.len();
        if !self.sent {
            if let Some(behind) = &self.behind {
                behind.leaving();
            }
            match sys::ktls::send_record(fd, self.kind, &self.body) {
                Ok(n) if n == len => self.sent = true,
                // Its rest would be another record.
                Ok(_) => return Err(SendEnd::Error(io::ErrorKind::WriteZero.into())),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(SendEnd::Blocked),
                Err(error) => return Err(SendEnd::Error(error)),
            }
        }
        let Some(behind) = &self.behind else { return Ok(len) };
        let settled = behind.settle(fd, uncounted + len).map_err(SendEnd::Error)?;
        if settled == Settled::Done {
            return Ok(len);
        }
        if settled == Settled::Later {
            return Err(SendEnd::Blocked);
        }
        match self.asks.checked_sub(1) {
            Some(left) => {
                self.asks = left;
                Err(if left >= TICKS { SendEnd::Budget } else { SendEnd::Blocked })
            }
            None => Ok(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::buf::Outgoing;

    /// Settled as it says, and how often it was asked, each time with how many bytes.
    struct Says(Settled, AtomicUsize, usize);

    impl Behind for Says {
        fn settle(&self, _: BorrowedFd<'_>, uncounted: usize) -> io::Result<Settled> {
            // What goes before it is counted between two sends.
            let before = if self.1.fetch_add(1, Ordering::Relaxed) == 0 { self.2 } else { 0 };
            assert_eq!(uncounted, before + 2);
            Ok(self.0)
        }
    }

    /// The ends of `n` sends of a queue whose first record says so, and what its peer got.
    fn ends(says: Settled, n: usize) -> (Vec<SendEnd>, Vec<u8>) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut out = Outgoing::new();
        out.stage(b"data");
        let behind = Arc::new(Says(says, AtomicUsize::new(0), 4));
        out.stage_record(21, Bytes::from_static(b"ab"), Some(behind));
        out.stage(b"!");
        let ends = (0..n).map(|_| out.send(ours.as_fd(), usize::MAX).end).collect();
        drop(ours);
        let mut got = Vec::new();
        theirs.read_to_end(&mut got).unwrap();
        (ends, got)
    }

    #[test]
    fn a_record_goes_out_once_and_nothing_passes_it_before_it_is_settled() {
        let (end, got) = ends(Settled::Done, 1);
        assert!(matches!(end[..], [SendEnd::Empty]) && got == b"dataab!", "{end:?}");
        let (end, got) = ends(Settled::Later, 200);
        assert!(end.iter().all(|end| matches!(end, SendEnd::Blocked)) && got == b"dataab", "{end:?}");
    }

    /// The count may be wrong: a socket that has room is not waited for without an end.
    #[test]
    fn a_record_that_is_to_be_settled_soon_takes_some_passes_then_some_ticks_and_is_given_up() {
        let (passes, ticks) = (usize::from(PASSES), usize::from(TICKS));
        let (mut end, got) = ends(Settled::Soon, passes + ticks);
        assert!(end.drain(..passes).all(|end| matches!(end, SendEnd::Budget)) && got == b"dataab");
        assert!(end.iter().all(|end| matches!(end, SendEnd::Blocked)), "{end:?}");
        let (end, got) = ends(Settled::Soon, passes + ticks + 1);
        assert!(matches!(end.last(), Some(SendEnd::Empty)) && got == b"dataab!");
    }
}
