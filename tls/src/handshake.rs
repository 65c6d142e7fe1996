//! The future that makes a handshake.
//!
//! State: the connection and BoringSSL's session, owned by the future: nobody else knows them yet, so no lock. Who touches
//! it: whoever polls it. Thread class: any thread. Laws: 8 (32 steps of all handshakes in one pass of a reactor), 14 (the
//! reason is read by the call that failed), 16 (a place among `max_handshakes`, a deadline: of its own and of the user's the
//! earlier one).

use crate::config::Place;
use crate::connection::TlsConnection;
use crate::error::{TlsError, session_words};
use crate::ffi;
use crate::ktls::exact::Exact;
use crate::ktls::{Kernel, Ktls};
use crate::session::Session;
use crate::wire::Wire;
use boring::ssl::{ErrorCode, Ssl, SslStream};
use epoxide::layer::{Queue, take_step};
use epoxide::{Connection, ReadHalf, RecvBuf, WriteHalf};
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// Handshake steps that a reactor makes in one pass.
const STEPS: u32 = 32;

/// The future of a handshake; see [`TlsConfig::accept`](crate::TlsConfig::accept).
///
/// A deadline that the connection has already stays in force: where it comes before the handshake's own it ends the
/// handshake, and the TLS connection has it, too.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (chain, key) = identity();
/// let tls = TlsConfig::server(Pem::text(chain), Pem::text(key)).build()?;
/// let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
/// drop(theirs); // gone before it said anything
/// let handshake: Handshake = tls.accept(epoxide::Connection::from_unix(ours)?);
/// assert!(handshake.await.is_err());
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[must_use = "futures do nothing unless polled"]
pub struct Handshake {
    state: State,
}

enum State {
    UnderWay(Box<UnderWay>),
    /// Refused before it began.
    Refused(Option<Connection>, TlsError),
    Done,
}

struct UnderWay {
    read: ReadHalf,
    write: WriteHalf,
    stream: SslStream<Wire>,
    queue: Queue,
    server: bool,
    /// There is something to be done before the next recv: the first step, or input.
    ready: bool,
    /// The peer has sent something: a drain no longer ends it at once.
    begun: bool,
    /// Why it failed; the alert is on its way out.
    failed: Option<TlsError>,
    /// Which keys the kernel is to have.
    ktls: Ktls,
    /// Where the handshake's records end.
    exact: Exact,
    /// The deadline that the connection came with.
    before: Option<(Instant, &'static str)>,
    /// Hands are shaken: the kernel gets the keys once all that was written is out.
    shaken: bool,
    /// It has them.
    kernel: Kernel,
    place: Place,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake").field("done", &matches!(self.state, State::Done)).finish_non_exhaustive()
    }
}

impl Handshake {
    pub(crate) fn accept(conn: Connection, ssl: Ssl, place: Place, timeout: Duration, ktls: Ktls) -> Self {
        Self::begin(conn, ssl, place, timeout, ktls, true)
    }

    pub(crate) fn connect(conn: Connection, ssl: Ssl, place: Place, timeout: Duration, ktls: Ktls) -> Self {
        Self::begin(conn, ssl, place, timeout, ktls, false)
    }

    /// It cannot begin.
    pub(crate) fn failed(conn: Connection, error: TlsError) -> Self {
        Self { state: State::Refused(Some(conn), error) }
    }

    /// One too many.
    pub(crate) fn refused(mut conn: Connection, limit: usize) -> Self {
        conn.reset();
        Self::failed(conn, TlsError::TooManyHandshakes { limit })
    }

    fn begin(conn: Connection, ssl: Ssl, place: Place, timeout: Duration, ktls: Ktls, server: bool) -> Self {
        let queue = Queue::of(&conn);
        let stream = match SslStream::new(ssl, Wire::new(queue.clone())) {
            Ok(stream) => stream,
            Err(error) => return Self::failed(conn, TlsError::Handshake { reason: error.to_string() }),
        };
        let before = queue.deadline();
        let at = (!timeout.is_zero()).then(|| Instant::now().checked_add(timeout)).flatten();
        if at.is_some_and(|at| before.is_none_or(|(before, _)| at < before)) {
            conn.set_deadline(at, "TLS handshake");
        }
        let (read, write) = conn.into_split();
        // A client speaks first; a server waits for it without BoringSSL's help.
        let under_way = UnderWay {
            read,
            write,
            stream,
            queue,
            server,
            ready: !server,
            begun: !server,
            failed: None,
            ktls,
            before,
            shaken: false,
            kernel: Kernel::default(),
            exact: Exact::default(),
            place,
        };
        Self { state: State::UnderWay(Box::new(under_way)) }
    }
}

impl UnderWay {
    /// Until it is done or failed for good.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            if let Some(error) = &self.failed {
                // The alert goes out first; if it cannot, the peer knows that something failed.
                let _ = ready!(self.write.poll_queue(cx, None));
                return Poll::Ready(Err(error.clone().into()));
            }
            if self.shaken {
                // A connection that has ended needs no keys: its user is told.
                if ready!(self.write.poll_queue(cx, None)).is_ok() {
                    let exact = !self.stream.get_ref().has_input();
                    self.kernel = self.place.uses().hand_over(self.ktls, &mut self.stream, &self.queue, exact);
                }
                return Poll::Ready(Ok(()));
            }
            if self.ready {
                if (self.ktls != Ktls::TxRx || self.exact.is_whole()) && !take_step(STEPS) {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                self.ready = false;
                if self.step() {
                    if self.ktls == Ktls::Off {
                        return Poll::Ready(Ok(()));
                    }
                    self.shaken = true;
                }
                continue;
            }
            // Until its first byte a client is nobody's business: a drain ends it.
            let received = match self.begun {
                // What comes first can be no more than the client's hello.
                false => self.read.poll_read_idle(cx),
                true if self.ktls == Ktls::TxRx => self.poll_exact(cx),
                true => self.read.poll_read(cx),
            };
            match ready!(received)? {
                Some(input) => {
                    self.begun = true;
                    self.ready = true;
                    self.exact.took(&input);
                    self.stream.get_mut().feed(input);
                }
                None if self.read.is_draining() && !self.begun => {
                    return Poll::Ready(Err(epoxide::CloseReason::Draining.into()));
                }
                None => return Poll::Ready(Err(TlsError::HandshakeClosed.into())),
            }
        }
    }

    /// Receives what is left of the record under way, or a part of that.
    fn poll_exact(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<RecvBuf>>> {
        let mut space = [0; 4096];
        let want = self.exact.want().min(space.len()).min(self.read.block_len());
        match ready!(self.read.poll_read_slice(cx, &mut space[..want]))? {
            0 => Poll::Ready(Ok(None)),
            n => Poll::Ready(
                self.read
                    .fill_block(|block| {
                        block[..n].copy_from_slice(&space[..n]);
                        Ok(n)
                    })
                    .map(Some),
            ),
        }
    }

    /// What can be done with what was received. True: it is done.
    fn step(&mut self) -> bool {
        let made = if self.server { self.stream.accept() } else { self.stream.connect() };
        let done = match made {
            Ok(()) => true,
            Err(error) if error.code() == ErrorCode::WANT_READ => false,
            Err(error) => {
                let mut reason = session_words(&error);
                if reason.contains("CERTIFICATE_VERIFY_FAILED")
                    && let Err(why) = self.stream.ssl().verify_result()
                {
                    reason = format!("{reason} ({})", why.error_string());
                }
                self.failed = Some(TlsError::Handshake { reason });
                false
            }
        };
        if done && self.ktls != Ktls::Off {
            // The kernel's first record must be the next one.
            ffi::write_kept_back(self.stream.ssl_mut());
        }
        if self.stream.get_mut().take_wrote() {
            self.queue.kick();
        }
        done
    }
}

impl Future for Handshake {
    type Output = io::Result<TlsConnection>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let result = match &mut self.state {
            State::UnderWay(under_way) => ready!(under_way.poll(cx)),
            State::Refused(..) => Ok(()),
            State::Done => panic!("a handshake was polled after it was done"),
        };
        Poll::Ready(match (std::mem::replace(&mut self.state, State::Done), result) {
            (State::UnderWay(under_way), Ok(())) => Ok(under_way.finish()),
            (State::Refused(conn, error), _) => {
                drop(conn);
                Err(error.into())
            }
            (_, result) => Err(result.err().unwrap_or_else(|| io::ErrorKind::Other.into())),
        })
    }
}

impl UnderWay {
    fn finish(self) -> TlsConnection {
        let Self { mut read, write, stream, queue, place, kernel, before, .. } = self;
        drop(place);
        read.set_deadline(before.map(|(at, _)| at), before.map_or("", |(_, what)| what));
        read.begin_requests();
        let input = stream.get_ref().has_input();
        TlsConnection::new(read, write, Session::new(stream, queue, kernel), input)
    }
}
