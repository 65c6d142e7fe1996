//! The session lock: encrypt and decrypt, on whatever thread asks (law 14).
//!
//! State: BoringSSL's session behind one mutex, held for the cryptography alone and never across a park. Who touches it:
//! the reader to decrypt, writers to encrypt, whoever ends the connection to say so. Thread class: any thread. Laws: 8 (the
//! lock is released every 256 KiB), 10 (no user code under it), 14 (encrypting and appending to the queue is one critical
//! section; the kick comes after unlocking; order: this lock, then the queue's).
//!
//! What BoringSSL writes goes into the queue within the call that made it, so the order of records is the order of their
//! numbers, whoever sends. BoringSSL's errors are read by the call that failed, before the lock is released.

use crate::error::{TlsError, session_words};
use crate::facts::TlsFacts;
use crate::ffi;
use crate::ktls::records::{self, Fragment, Meaning};
use crate::ktls::renew::Renewal;
use crate::ktls::{CLOSE_NOTIFY, Kernel, heard};
use crate::options::TlsVersion;
use crate::wire::Wire;
use boring::ssl::{ErrorCode, SslStream};
use epoxide::RecvBuf;
use epoxide::layer::{Layer, Queue};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Plaintext of a full record.
const RECORD: usize = 16 * 1024;
/// More than a record adds to its plaintext, in both versions.
const OVERHEAD: usize = 64;
/// Plaintext that is encrypted under one hold of the lock: 16 full records.
const PORTION: usize = 16 * RECORD;

/// See the module's text.
pub(crate) struct Session {
    core: Mutex<Core>,
    queue: Queue,
    pub(crate) facts: TlsFacts,
}

/// What the lock guards.
pub(crate) struct Core {
    stream: SslStream<Wire>,
    /// The session is over both ways.
    failed: Option<TlsError>,
    /// This side has sent its close_notify: nothing more is encrypted.
    ended: bool,
    /// The peer has asked for keys that the kernel does not take.
    refused_keys: bool,
    /// New keys for the kernel.
    renewal: Renewal,
    /// A file is on its way, encrypted here: an end now would make a part of it look whole.
    file: bool,
}

/// How a look for plaintext ended.
#[derive(Debug)]
pub(crate) enum Next {
    /// There may be more without another recv.
    More,
    /// Nothing is left to decrypt.
    Receive,
    /// Nothing but the beginning of a record.
    Rest,
    /// The peer's close_notify.
    Closed,
    Failed(TlsError),
}

/// Nothing is encrypted any more.
#[derive(Debug)]
pub(crate) enum Unsent {
    /// This side has ended the session, or the connection has ended.
    Closed,
    Failed(TlsError),
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("facts", &self.facts).finish_non_exhaustive()
    }
}

impl Session {
    /// A session whose handshake is done.
    /// `kernel`: which keys the kernel has.
    pub(crate) fn new(stream: SslStream<Wire>, queue: Queue, kernel: Kernel) -> Arc<Self> {
        let facts = TlsFacts::of(stream.ssl(), kernel);
        let renewal = Renewal::new(kernel.renews);
        let core = Mutex::new(Core { stream, failed: None, ended: false, refused_keys: false, renewal, file: false });
        let session = Arc::new(Self { core, queue, facts });
        let layer: Weak<dyn Layer> = Arc::downgrade(&session) as Weak<dyn Layer>;
        session.queue.install(layer);
        session
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// With the lock released: what was written goes out.
    fn unlock(&self, mut core: MutexGuard<'_, Core>) {
        let wrote = core.stream.get_mut().take_wrote();
        drop(core);
        if wrote {
            self.queue.kick();
        }
    }

    /// A file is on its way, or no longer. Meanwhile a close sends a FIN without a close_notify, which is a cut.
    pub(crate) fn set_file(&self, under_way: bool) {
        self.lock().file = under_way;
    }

    /// Something was appended: it goes out.
    pub(crate) fn kick(&self) {
        self.queue.kick();
    }

    /// Decrypts into `space`, of `input` if it is given and of what was received before. How many bytes, and what next.
    pub(crate) fn decrypt(&self, input: Option<RecvBuf>, space: &mut [u8]) -> (usize, Next) {
        let mut core = self.lock();
        if let Some(input) = input {
            core.stream.get_mut().feed(input);
        }
        let (mut n, mut next) = (0, Next::More);
        while n < space.len() && matches!(next, Next::More) {
            match core.decrypt_once(&mut space[n..]) {
                Ok(got) => {
                    n += got;
                    // The record is at its end and BoringSSL reads none ahead: to ask it again would only fail.
                    if n < space.len() && !core.stream.get_ref().has_input() {
                        next = Next::Receive;
                    }
                }
                Err(end) => next = end,
            }
        }
        core.answer();
        self.unlock(core);
        // What ended it is told again at the next look, once these bytes are delivered.
        if n > 0 && !matches!(next, Next::Receive | Next::Rest) { (n, Next::More) } else { (n, next) }
    }

    /// Encrypts `plain` into the queue, in full records; the caller kicks.
    pub(crate) fn encrypt(&self, plain: &[u8]) -> Result<(), Unsent> {
        for portion in plain.chunks(PORTION) {
            let mut core = self.lock();
            core.encrypt(portion)?;
            // The caller kicks for all of them.
            let _ = core.stream.get_mut().take_wrote();
        }
        Ok(())
    }

    /// A record that is no data, from a kernel that decrypts.
    /// `fragment`: the beginning of a message whose rest is to come.
    pub(crate) fn record(&self, fragment: &mut Option<Fragment>, kind: u8, body: &[u8]) -> Next {
        let mut core = self.lock();
        let tls13 = self.facts.version() == TlsVersion::V1_3;
        let meaning = records::meaning(core.stream.ssl_mut(), tls13, fragment, kind, body);
        let next = core.meant(&self.queue, meaning);
        self.unlock(core);
        next
    }

    /// Data, where the rest of a message is due.
    pub(crate) fn refuse_data(&self) -> Next {
        let mut core = self.lock();
        let next = core.meant(&self.queue, records::interrupted());
        self.unlock(core);
        next
    }

    /// Too many such records in a row.
    pub(crate) fn refuse_record(&self) -> Next {
        let mut core = self.lock();
        let reason = "too many records without data".to_owned();
        let next = core.over(TlsError::Decrypt { reason }, Some(records::UNEXPECTED_MESSAGE));
        self.unlock(core);
        next
    }

    /// The kernel has met what is no record of this session: that is the end both ways.
    pub(crate) fn fail(&self, error: TlsError) -> TlsError {
        self.lock().fail(error)
    }

    /// Staged plaintext goes to the kernel: `append` moves it into the queue, within the lock, and says whether it was taken;
    /// the caller kicks.
    pub(crate) fn leave_to_kernel(&self, append: impl FnOnce() -> bool) -> Result<(), Unsent> {
        let core = self.lock();
        match core.unsent() {
            Some(unsent) => Err(unsent),
            None if append() => Ok(()),
            None => Err(Unsent::Closed),
        }
    }

    /// Renews this side's keys, behind what is encrypted; `ask`: the peer is to renew its own. TLS 1.3 only.
    pub(crate) fn update_keys(&self, ask: bool) -> Result<(), Unsent> {
        let mut core = self.lock();
        if let Some(unsent) = core.unsent() {
            return Err(unsent);
        }
        if core.stream.get_ref().is_kernel() {
            let Core { renewal, stream, .. } = &mut *core;
            if renewal.send(stream, ask) {
                return Ok(());
            }
            let reason = "the kernel makes this session's records, and keeps the keys that it has".to_owned();
            return Err(Unsent::Failed(TlsError::Encrypt { reason }));
        }
        if !ffi::update_keys(core.stream.ssl_mut(), ask) {
            let reason = "keys are updated in TLS 1.3 only".to_owned();
            return Err(Unsent::Failed(TlsError::Encrypt { reason }));
        }
        Ok(())
    }
}

impl Session {
    /// What BoringSSL keeps for the next data (a KeyUpdate) is encrypted without any; the caller kicks.
    pub(crate) fn encrypt_kept_back(&self) {
        let mut core = self.lock();
        if core.unsent().is_none() && !core.stream.get_ref().is_kernel() {
            ffi::write_kept_back(core.stream.ssl_mut());
            let _ = core.stream.get_mut().take_wrote();
        }
    }
}

impl Core {
    fn decrypt_once(&mut self, space: &mut [u8]) -> Result<usize, Next> {
        if let Some(error) = &self.failed {
            return Err(Next::Failed(error.clone()));
        }
        match self.stream.ssl_read(space) {
            Ok(n) => Ok(n),
            Err(error) => Err(match error.code() {
                ErrorCode::WANT_READ if ffi::has_begun(self.stream.ssl()) => Next::Rest,
                ErrorCode::WANT_READ => Next::Receive,
                ErrorCode::ZERO_RETURN => Next::Closed,
                _ => Next::Failed(self.fail(TlsError::Decrypt { reason: session_words(&error) })),
            }),
        }
    }

    fn encrypt(&mut self, mut plain: &[u8]) -> Result<(), Unsent> {
        if let Some(unsent) = self.unsent() {
            return Err(unsent);
        }
        if self.stream.get_ref().is_kernel() {
            self.stream.get_mut().plain(plain);
            plain = &[];
        }
        if plain.len() > RECORD {
            let records = plain.len().div_ceil(RECORD);
            self.stream.get_ref().expect(plain.len() + records * OVERHEAD);
        }
        while !plain.is_empty() {
            match self.stream.ssl_write(plain) {
                Ok(n) => plain = &plain[n..],
                Err(error) => {
                    let error = TlsError::Encrypt { reason: session_words(&error) };
                    return Err(Unsent::Failed(self.fail(error)));
                }
            }
        }
        // A connection that has ended takes no records: theirs was the last number that made sense.
        if self.stream.get_ref().is_refused() { Err(Unsent::Closed) } else { Ok(()) }
    }

    fn unsent(&self) -> Option<Unsent> {
        match &self.failed {
            Some(error) => Some(Unsent::Failed(error.clone())),
            None if self.refused_keys => Some(Unsent::Failed(TlsError::KeyUpdate)),
            None if self.ended || self.stream.get_ref().is_refused() => Some(Unsent::Closed),
            None => None,
        }
    }

    /// With the keys in the kernel: says there what BoringSSL has just said, or would have.
    fn answer(&mut self) {
        if !self.stream.get_ref().is_kernel() {
            return;
        }
        let (alert, wants_keys) = (heard::take_alert(self.stream.ssl()), heard::take_wants_keys(self.stream.ssl()));
        if let Some(alert) = alert.filter(|_| !self.ended) {
            self.ended = true;
            self.stream.get_mut().alert(alert);
        }
        if wants_keys && !self.answer_keys() {
            self.refuse_keys();
        }
    }

    /// The peer has asked for keys that the kernel does not take. Data under the old ones would break the protocol; an alert
    /// may still be sent.
    fn refuse_keys(&mut self) {
        if self.unsent().is_none() {
            self.refused_keys = true;
            self.end();
        }
    }

    /// The peer has asked for new keys: it gets some, unless nothing is sent any more. False: the kernel does not take them.
    fn answer_keys(&mut self) -> bool {
        self.unsent().is_some() || self.renewal.send(&mut self.stream, false)
    }

    fn meant(&mut self, queue: &Queue, meaning: Meaning) -> Next {
        match meaning {
            Meaning::Nothing => Next::More,
            Meaning::End => Next::Closed,
            Meaning::NewKeys { asked } => {
                if self.renewal.receive(self.stream.ssl(), queue) && (!asked || self.answer_keys()) {
                    return Next::More;
                }
                self.refuse_keys();
                Next::Failed(TlsError::KeyUpdate)
            }
            Meaning::Over(error, alert) => self.over(error, alert),
        }
    }

    /// The session is over; the peer is told by a fatal alert, which the kernel sends.
    fn over(&mut self, error: TlsError, alert: Option<u8>) -> Next {
        if let Some(alert) = alert.filter(|_| !self.ended) {
            self.ended = true;
            self.stream.get_mut().alert([2, alert]);
        }
        Next::Failed(self.fail(error))
    }

    fn end(&mut self) {
        self.ended = true;
        if self.stream.get_ref().is_kernel() {
            self.stream.get_mut().alert(CLOSE_NOTIFY);
        } else {
            // Its failure has no one to be told to: the FIN follows, and the peer sees a truncation.
            let _ = self.stream.shutdown();
        }
    }

    fn fail(&mut self, error: TlsError) -> TlsError {
        self.failed.get_or_insert(error).clone()
    }
}

impl Layer for Session {
    fn send_frame(&self, frame: &[u8], admit: &mut dyn FnMut() -> bool, appended: &mut dyn FnMut()) {
        let mut core = self.lock();
        if core.unsent().is_none() && admit() && core.encrypt(frame).is_ok() {
            appended();
        }
        // The shared writer kicks.
        let _ = core.stream.get_mut().take_wrote();
    }

    fn before_fin(&self) {
        let mut core = self.lock();
        if core.unsent().is_none() && !core.file {
            core.end();
        }
        self.unlock(core);
    }

    fn is_over(&self) -> bool {
        self.lock().unsent().is_some()
    }
}

impl From<Unsent> for io::Error {
    fn from(unsent: Unsent) -> Self {
        match unsent {
            Unsent::Failed(error) => error.into(),
            Unsent::Closed => Self::new(
                io::ErrorKind::BrokenPipe,
                "written after this side's end of the TLS session (shutdown or close)",
            ),
        }
    }
}
