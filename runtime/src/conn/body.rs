//! The body of a connection: what its users, wherever they are, and its reactor share.
//!
//! | field | written by | read by | guarded by |
//! |---|---|---|---|
//! | `read` | reader, takers | reader, takers | itself (law 1) |
//! | `flush` | writer, owner, reactor, closers | the same | itself (law 3) |
//! | `reader` | a foreign reader, before it parks | the taker that took `Foreign` | its mutex |
//! | `slow` | whoever leaves Flushing with a remainder, a waiting writer, shared writers | the next owner | its mutex |
//! | `queued` | whoever moves bytes into or out of `slow` | the writer (limit) | relaxed: a count |
//! | `accepted` | the flush owner | the sweep | relaxed: a count |
//! | `activity` | reader, writer | the sweep | relaxed: a time |
//! | `deadline` | the user, the timer that fires | the same | its mutex |
//! | `locator` | the first close handle or guard | those, the mover, the sweep | once; itself |
//! | `socket` | whoever ends it, the mover | the same | itself |
//! | `places` | the reactor, the mover | nobody | its mutex |
//! | `min_send_rate` | the user | the sweep | a number |
//! | `ends` | halves, reader | the reactor | read-modify-writes |
//! | `reason` | whoever is first | everybody | once |
//! | `key` | the reactor, before epoll knows the socket | anybody | release/acquire |
//!
//! Thread class: any thread. Laws: 1, 3, 5 (the descriptor lives in the `Arc` that every user holds), 9, 10, 11.

use crate::buf::Outgoing;
use crate::conn::deadline;
use crate::conn::ending;
use crate::conn::flush_word::{Close, FlushWord, Leave};
use crate::conn::frames::Frames;
use crate::conn::layer::Layer;
use crate::conn::locator::Locator;
use crate::conn::read_word::{Mark, ReadWord, Waiter};
use crate::conn::socket_word::SocketWord;
use crate::error::CloseReason;
use crate::exec::home::{Guest, Home, Stage};
use crate::exec::local::{self, Here};
use crate::exec::run;
use crate::id::{Key, ListenerId};
use crate::stats::Count;
use crate::sync::limit::Place;
use crate::sync::lock;
use crate::sync::plain::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
use crate::sys;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::Waker;

/// Bits of [`Body::ends`].
pub(crate) mod ends {
    /// The read half is gone.
    pub(crate) const READER_GONE: u32 = 1;
    /// The write half is gone.
    pub(crate) const WRITER_GONE: u32 = 2;
    /// A recv returned 0 and it was the peer's FIN.
    pub(crate) const PEER_FIN: u32 = 4;
    /// An idle read was ended by a drain.
    pub(crate) const DRAINED: u32 = 8;
    /// The writer is shared: progress has waiters of its own.
    pub(crate) const SHARED: u32 = 16;
    /// The reactor knows the connection by its key. Set after the key, in the same word in which the halves say that
    /// they are gone: whoever comes second sees the other.
    pub(crate) const KNOWN: u32 = 32;
    /// The connect is not decided yet.
    pub(crate) const CONNECTING: u32 = 64;
    /// An edge said that the peer sends nothing more.
    pub(crate) const PEER_HALF: u32 = 128;
    /// An edge said that the connection is broken, or over both ways.
    pub(crate) const HUNG_UP: u32 = 256;
    /// Bytes that were promised to the peer were freed: it must not see a clean end.
    pub(crate) const CUT: u32 = 512;
    /// A layer (TLS) is told before the FIN.
    pub(crate) const LAYERED: u32 = 1024;
    /// The kernel decrypts: a recv that fails with EIO has met a record that is no data.
    pub(crate) const RECORDS: u32 = 2048;
    /// The kernel encrypts: it may hold back what it took.
    pub(crate) const KERNEL_TX: u32 = 4096;

    /// Nobody uses the connection any more.
    pub(crate) fn are_both_gone(bits: u32) -> bool {
        bits & (READER_GONE | WRITER_GONE) == READER_GONE | WRITER_GONE
    }
}

/// What a flush leaves behind when it cannot finish at once.
pub(crate) struct Slow {
    pub(crate) out: Outgoing,
    pub(crate) waiter: Option<Waker>,
    /// The waiter is woken early, with so many bytes queued. A flush of its own leaves it alone: an early wake costs it a
    /// poll.
    pub(crate) wake_at: usize,
    /// Where the last byte ends that was ever handed to a flush through here, counted as `accepted` counts. Fast paths
    /// pass it by, so it may be behind `accepted`; then nothing waits.
    pub(crate) end: u64,
    /// Flushing is lent to a `SendFile`: at an edge it goes on, not the reactor.
    pub(crate) lent: bool,
    /// Only of a shared writer.
    pub(crate) frames: Option<Box<Frames>>,
    /// What stands between the connection and its user (TLS). A box: an idle connection pays one word.
    pub(crate) layer: Option<Box<Weak<dyn Layer>>>,
}

/// A connection that was told no rate of its own.
pub(crate) const REACTORS_RATE: u64 = u64::MAX;

/// See the module's text.
pub(crate) struct Body {
    pub(crate) read: ReadWord,
    pub(crate) flush: FlushWord,
    pub(crate) ends: AtomicU32,
    /// Milliseconds of the coarse clock at the last park, recv or send.
    pub(crate) activity: AtomicU32,
    /// Bytes that the kernel took, in all.
    pub(crate) accepted: AtomicU64,
    /// Bytes in `slow`, or in the hands of an owner that took them from there.
    pub(crate) queued: AtomicUsize,
    key: AtomicU64,
    pub(crate) home: Arc<Home>,
    reader: Mutex<Option<Waker>>,
    pub(crate) slow: Mutex<Slow>,
    pub(crate) deadline: Mutex<deadline::Slot>,
    /// How those find it who hold it weakly. Few connections have one.
    pub(crate) locator: OnceLock<Arc<Locator>>,
    pub(crate) socket: SocketWord,
    /// Bytes a second that the peer must take; [`REACTORS_RATE`]: as the reactor's configuration says.
    pub(crate) min_send_rate: AtomicU64,
    reason: OnceLock<CloseReason>,
    pub(crate) listener: ListenerId,
    pub(crate) tcp: bool,
    /// Places within the limits of the runtime and of the listener, until the descriptor closes.
    pub(crate) places: Mutex<[Option<Place>; 2]>,
    fd: OwnedFd,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("key", &self.key())
            .field("read", &self.read)
            .field("flush", &self.flush)
            .field("reason", &self.reason.get())
            .finish_non_exhaustive()
    }
}

impl Guest for Body {
    fn turn_away(&self) {
        // What the peer got so far must not look whole.
        ending::reset(self, CloseReason::Aborted);
    }
}

impl AsFd for Body {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Body {
    pub(crate) fn new(
        fd: OwnedFd,
        tcp: bool,
        home: Arc<Home>,
        listener: ListenerId,
        places: [Option<Place>; 2],
    ) -> Self {
        Self {
            read: ReadWord::new(!tcp),
            flush: FlushWord::new(),
            ends: AtomicU32::new(ends::KNOWN),
            activity: AtomicU32::new(local::here(&home).now_ms),
            accepted: AtomicU64::new(0),
            queued: AtomicUsize::new(0),
            key: AtomicU64::new(Key::NONE.0),
            home,
            reader: Mutex::new(None),
            slow: Mutex::new(Slow {
                out: Outgoing::new(),
                waiter: None,
                wake_at: 0,
                end: 0,
                lent: false,
                frames: None,
                layer: None,
            }),
            deadline: Mutex::default(),
            locator: OnceLock::new(),
            socket: SocketWord::new(),
            min_send_rate: AtomicU64::new(REACTORS_RATE),
            reason: OnceLock::new(),
            listener,
            tcp,
            places: Mutex::new(places),
            fd,
        }
    }

    /// A connection that its home has still to adopt ([`Msg::Adopt`](crate::exec::home::Msg::Adopt)). Its flush word starts as Blocked: nobody sends
    /// before the reactor has given it a key, and the reactor, or the edge that ends a connect, claims what was queued.
    pub(crate) fn to_be_adopted(fd: OwnedFd, home: Arc<Home>, listener: ListenerId, connecting: bool) -> Self {
        let tcp = sys::socket::is_tcp(fd.as_fd());
        let mut body = Self::new(fd, tcp, home, listener, [None, None]);
        *body.ends.get_mut() = if connecting { ends::CONNECTING } else { 0 };
        let blocked = body.flush.claim() && body.flush.block() == Leave::Left { fin: false };
        debug_assert!(blocked, "a new word is idle and nobody else knows it");
        body
    }

    /// The same, with a place within its listener's limit.
    pub(crate) fn holding(self, place: Option<Place>) -> Self {
        lock(&self.places)[1] = place;
        self
    }

    /// What a move makes: the same for the socket of another body, which keeps it until the move is done.
    pub(crate) fn arriving(fd: OwnedFd, home: Arc<Home>, from: &Self) -> Self {
        let mut body = Self::to_be_adopted(fd, home, from.listener, false);
        body.socket = SocketWord::arriving();
        body
    }

    pub(crate) fn key(&self) -> Key {
        Key(self.key.load(Ordering::Acquire))
    }

    /// Reactor: the table slot, published BEFORE the socket is registered.
    pub(crate) fn set_key(&self, key: Key) {
        self.key.store(key.0, Ordering::Release);
    }

    /// Something happened: the read clock starts anew.
    #[inline]
    pub(crate) fn touch(&self, here: Here) {
        self.activity.store(here.now_ms, Ordering::Relaxed);
    }

    /// The flush owner: the kernel took `n` bytes. Plain load and store: there is one owner.
    #[inline]
    pub(crate) fn add_accepted(&self, n: usize) {
        self.accepted.store(self.accepted.load(Ordering::Relaxed).wrapping_add(n as u64), Ordering::Relaxed);
    }

    pub(crate) fn reason(&self) -> Option<CloseReason> {
        self.reason.get().copied()
    }

    /// Stores why both directions ended; the first reason wins. To be called BEFORE Flushing is left or anybody is
    /// woken (law 11).
    pub(crate) fn store_reason(&self, reason: CloseReason) {
        // Err only says that an earlier reason won.
        let _ = self.reason.set(reason);
    }

    pub(crate) fn has_ended(&self, bit: u32) -> bool {
        self.ends.load(Ordering::Acquire) & bit != 0
    }

    /// A foreign reader's waker, BEFORE the word says so. The old one is dropped after unlock: its drop is user code.
    pub(crate) fn set_foreign_reader(&self, waker: Waker) {
        let old = lock(&self.reader).replace(waker);
        drop(old);
    }

    /// Wakes the reader that a signal took out of the word.
    #[inline]
    pub(crate) fn wake_reader(&self, waiter: Waiter) {
        if let Waiter::Task(id) = waiter
            && local::wake_here(&self.home, id)
        {
            return;
        }
        self.wake_reader_elsewhere(waiter);
    }

    #[cold]
    fn wake_reader_elsewhere(&self, waiter: Waiter) {
        match waiter {
            Waiter::Task(id) => {
                if self.home.stage() < Stage::Stopped {
                    self.home.counts.add_foreign(Count::WakesRemote, 1);
                    self.home.inject_wake(id);
                }
            }
            Waiter::Foreign => {
                let waker = lock(&self.reader).take();
                if let Some(waker) = waker {
                    run::caught(|| waker.wake());
                }
            }
        }
    }

    /// Makes the reader look at the socket, the reason and the marks again.
    pub(crate) fn signal_reader(&self, mark: Mark) {
        if let Some(waiter) = self.read.signal(mark) {
            self.wake_reader(waiter);
        }
    }

    /// Wakes whoever waits for the flush.
    pub(crate) fn wake_writer(&self) {
        let waiter = lock(&self.slow).waiter.take();
        if let Some(waiter) = waiter {
            run::caught(|| waiter.wake());
        }
        self.wake_ready();
    }

    /// The flush came on a part of its way: wakes a writer that waits for no more than that.
    pub(crate) fn wake_part_way(&self) {
        let mut slow = lock(&self.slow);
        // Loaded under the mutex: a waiter that registers later sees the same or less.
        if self.queued.load(Ordering::Relaxed) > slow.wake_at {
            return;
        }
        slow.wake_at = 0;
        let waiter = slow.waiter.take();
        drop(slow);
        if let Some(waiter) = waiter {
            run::caught(|| waiter.wake());
        }
    }

    /// Queues bytes of the one writer behind what is on its way; the caller kicks.
    pub(crate) fn append(&self, staged: &mut Outgoing) {
        self.queued.fetch_add(staged.len(), Ordering::Relaxed);
        let mut slow = lock(&self.slow);
        slow.end = slow.end.max(self.accepted.load(Ordering::Relaxed)) + staged.len() as u64;
        slow.out.append(staged);
    }

    /// Ends both directions for `reason`: nothing more is sent, parked readers and writers resume. Does not touch the
    /// socket. Not to be called by the owner of Flushing (see `drive`).
    pub(crate) fn end(&self, reason: CloseReason) {
        self.store_reason(reason);
        if self.flush.close() == Close::Free {
            self.free_queue();
        }
        self.wake_writer();
        // Sticky: the Ready of this signal may go into a recv that still brings bytes, and the next read must look again.
        self.signal_reader(Mark::Sticky);
    }

    /// The layer (TLS) over this connection, while anybody uses it.
    pub(crate) fn layer(&self) -> Option<Arc<dyn Layer>> {
        if !self.has_ended(ends::LAYERED) {
            return None;
        }
        lock(&self.slow).layer.as_ref().and_then(|layer| layer.upgrade())
    }

    /// The flush is over: an idle reader that waited for it while the reactor drains looks again.
    #[cold]
    pub(crate) fn flush_is_over(&self) {
        // Against `drained` of the read half, which looks at the flush word after its own fence: one sees the other.
        fence(Ordering::SeqCst);
        if self.read.is_draining() {
            self.signal_reader(Mark::Nothing);
        }
    }

    /// Whoever may (the owner that met the end, or the closer if there is none): frees what was queued on a closed
    /// connection, and leaves.
    pub(crate) fn free_queue(&self) {
        if self.queued.load(Ordering::Relaxed) > 0 {
            self.ends.fetch_or(ends::CUT, Ordering::AcqRel);
        }
        self.discard_queue();
        self.flush.left_closed();
    }

    /// A writer that was refused after its append takes it back, with whatever else came too late. It owns nothing: the
    /// word stays as it is, perhaps with an owner inside a send.
    pub(crate) fn discard_queue(&self) {
        let out = lock(&self.slow).out.take();
        self.queued.fetch_sub(out.len(), Ordering::Relaxed);
        // What it holds may be anybody's, and do anything when it is dropped.
        run::caught(|| drop(out));
    }

    /// Empties the foreign waiter slots and disarms the deadline: nobody waits any more.
    pub(crate) fn forget_waiters(&self) {
        let reader = lock(&self.reader).take();
        let writer = lock(&self.slow).waiter.take();
        for waker in [reader, writer].into_iter().flatten() {
            // Its drop is user code, and this is the reactor (law 10).
            run::caught(|| drop(waker));
        }
        deadline::clear(self);
    }
}
