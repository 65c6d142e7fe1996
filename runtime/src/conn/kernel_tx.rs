//! What has to happen behind the records of a socket whose TLS the kernel does.
//!
//! The kernel says that it took a record when it has sealed it, though the socket may have had no room for all of its bytes:
//! the rest it sends by itself, later. But a FIN (shutdown(2)) goes out behind what TCP has, and what is still held back is
//! then lost. So a close_notify, behind which the FIN comes, is out only once TCP has everything; and as the kernel does not
//! tell, it is computed: bytes of data and records since the keys were given, against the bytes that TCP was given.
//!
//! State: `KernelTx`, where the counting began. Who touches it: the flush owner. Thread class: any thread. Laws: 3 (the
//! owner leaves as if the socket had refused), 6 (the layer's end goes out before the FIN), 14, 15.

use crate::buf::{Behind, Settled};
use crate::conn::body::{Body, ends};
use crate::sync::plain::{AtomicU64, Ordering};
use crate::sys;
use crate::sys::ktls::{KernelCipher, KernelKeys, NewKeys};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};

/// The kernel makes the records of what a connection sends; see the module's text.
pub struct KernelTx {
    /// Weakly: records hold this, and the body holds records.
    body: Weak<Body>,
    cipher: KernelCipher,
    /// Bytes that a record has beyond its data.
    overhead: u64,
    /// `Body::accepted` and TCP's count before the first record; `None`: the kernel did not tell.
    begin: Option<(u64, u64)>,
    /// The number of the first record with the present keys.
    first: AtomicU64,
    /// Records that had earlier keys.
    earlier: AtomicU64,
}

impl fmt::Debug for KernelTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelTx").field("cipher", &self.cipher).finish_non_exhaustive()
    }
}

impl KernelTx {
    /// Gives the keys to the kernel. All that was sent before must be out.
    pub(crate) fn install(body: &Arc<Body>, keys: &KernelKeys<'_>) -> io::Result<Self> {
        let fd = body.as_fd();
        sys::ktls::attach(fd)?;
        let written = sys::socket::written(fd).ok();
        sys::ktls::install_tx(fd, keys)?;
        body.ends.fetch_or(ends::KERNEL_TX, Ordering::AcqRel);
        Ok(Self {
            body: Arc::downgrade(body),
            cipher: keys.cipher,
            overhead: overhead(keys),
            begin: written.map(|written| (body.accepted.load(Ordering::Relaxed), written)),
            first: AtomicU64::new(keys.sequence),
            earlier: AtomicU64::new(0),
        })
    }

    /// Bytes that the kernel has taken and TCP has not got yet. An error: the kernel does not tell.
    fn held(&self, fd: BorrowedFd<'_>, uncounted: usize) -> io::Result<u64> {
        let (Some((accepted, written)), Some(body)) = (self.begin, self.body.upgrade()) else { return Ok(0) };
        let data = body.accepted.load(Ordering::Relaxed).wrapping_sub(accepted) + uncounted as u64;
        let next = sys::ktls::next_record(fd, self.cipher)?;
        let records = self.earlier.load(Ordering::Relaxed) + next.wrapping_sub(self.first.load(Ordering::Relaxed));
        let all = data + records * self.overhead;
        Ok(all.saturating_sub(sys::socket::written(fd)?.wrapping_sub(written)))
    }
}

/// RFC 8446, 5.2: header, the kind, tag. RFC 5288, 3: a part of the nonce in place of the kind; RFC 7905, 2: nothing.
fn overhead(keys: &KernelKeys<'_>) -> u64 {
    const HEADER: u64 = 5;
    const TAG: u64 = 16;
    match (keys.tls13, keys.cipher) {
        (true, _) => HEADER + 1 + TAG,
        (false, KernelCipher::ChaCha20Poly1305) => HEADER + TAG,
        (false, KernelCipher::Aes128Gcm | KernelCipher::Aes256Gcm) => HEADER + 8 + TAG,
    }
}

/// Behind the last record: it is out once TCP has it.
pub(crate) struct Last(pub(crate) Arc<KernelTx>);

impl Behind for Last {
    fn settle(&self, fd: BorrowedFd<'_>, uncounted: usize) -> io::Result<Settled> {
        match self.0.held(fd, uncounted) {
            Ok(0) => Ok(Settled::Done),
            // It was short of room. Where there is some again, the kernel is about to use it.
            Ok(_) if sys::socket::has_room(fd) => Ok(Settled::Soon),
            Ok(_) => Ok(Settled::Later),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Settled::Soon),
            // The socket is not what it was: a failed send will say so, or the peer.
            Err(_) => Ok(Settled::Done),
        }
    }
}

/// Behind a KeyUpdate: the kernel takes the new keys.
pub(crate) struct Renew {
    tx: Arc<KernelTx>,
    keys: Arc<dyn NewKeys>,
    /// `sys::ktls::install_tx`, but in tests.
    install: Install,
}

type Install = fn(BorrowedFd<'_>, &KernelKeys<'_>) -> io::Result<()>;

impl Renew {
    pub(crate) fn new(tx: Arc<KernelTx>, keys: Arc<dyn NewKeys>) -> Self {
        Self { tx, keys, install: sys::ktls::install_tx }
    }
}

impl Behind for Renew {
    fn leaving(&self) {
        self.keys.leaving();
    }

    fn settle(&self, fd: BorrowedFd<'_>, _uncounted: usize) -> io::Result<Settled> {
        let keys = self.keys.keys();
        // Without the count a close_notify is sent as if nothing were held back.
        let next = sys::ktls::next_record(fd, keys.cipher);
        match (self.install)(fd, &keys) {
            Ok(()) => {
                let first = self.tx.first.swap(keys.sequence, Ordering::Relaxed);
                self.tx.earlier.fetch_add(next.unwrap_or(first).wrapping_sub(first), Ordering::Relaxed);
                Ok(Settled::Done)
            }
            // Not yet: the peer knows, so the record must not go out again, and nothing may pass it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Settled::Later),
            Err(error) => Err(error),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::buf::{Outgoing, SendEnd, Sent};
    use crate::sys::errno::{EAGAIN, ENOMEM};
    use bytes::Bytes;
    use std::cell::Cell;
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicUsize;

    const KEY: [u8; 16] = [7; 16];

    fn keys(tls13: bool, cipher: KernelCipher) -> KernelKeys<'static> {
        KernelKeys { tls13, cipher, key: &KEY, nonce: [0; 12], sequence: 0 }
    }

    struct Renewed {
        peer: UnixStream,
        /// Bytes that the peer had when it was told that the message leaves.
        had: AtomicUsize,
    }

    impl NewKeys for Renewed {
        fn keys(&self) -> KernelKeys<'_> {
            keys(true, KernelCipher::Aes128Gcm)
        }

        fn leaving(&self) {
            self.had.store(sys::io::peek(self.peer.as_fd(), &mut [0; 32]).unwrap(), Ordering::Relaxed);
        }
    }

    thread_local! {
        /// What the kernel answers next; none: it takes the keys.
        static ANSWERS: Cell<&'static [i32]> = const { Cell::new(&[]) };
        /// How often it took them.
        static TAKEN: Cell<usize> = const { Cell::new(0) };
    }

    fn answer(_: BorrowedFd<'_>, _: &KernelKeys<'_>) -> io::Result<()> {
        match ANSWERS.get() {
            [] => {
                TAKEN.set(TAKEN.get() + 1);
                Ok(())
            }
            [errno, later @ ..] => {
                ANSWERS.set(later);
                Err(io::Error::from_raw_os_error(*errno))
            }
        }
    }

    /// A KeyUpdate and data behind it for the peer, to a kernel that answers so when it is to take the keys.
    fn renewing(peer: &UnixStream, answers: &'static [i32]) -> (Outgoing, Arc<Renewed>) {
        ANSWERS.set(answers);
        TAKEN.set(0);
        let tx = KernelTx {
            body: Weak::new(),
            cipher: KernelCipher::Aes128Gcm,
            overhead: 22,
            begin: None,
            first: AtomicU64::new(0),
            earlier: AtomicU64::new(0),
        };
        let renewed = Arc::new(Renewed { peer: peer.try_clone().unwrap(), had: AtomicUsize::new(0) });
        let renew = Renew { tx: Arc::new(tx), keys: renewed.clone(), install: answer };
        let mut out = Outgoing::new();
        out.stage(b"before");
        out.stage_record(22, Bytes::from_static(b"KeyUpdate"), Some(Arc::new(renew)));
        out.stage(b"after");
        (out, renewed)
    }

    /// A socket that is not the kernel's TLS sends a record's bytes as they are.
    #[test]
    fn keys_that_the_kernel_does_not_take_yet_are_given_again_and_their_message_is_not() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut out, renewed) = renewing(&theirs, &[EAGAIN, EAGAIN]);
        for _ in 0..2 {
            let sent = out.send(ours.as_fd(), usize::MAX);
            assert!(matches!(sent.end, SendEnd::Blocked), "{sent:?}");
            assert_eq!((out.len(), TAKEN.get()), (14, 0), "nothing passes it");
        }
        let sent = out.send(ours.as_fd(), usize::MAX);
        assert!(matches!(sent, Sent { bytes: 14, end: SendEnd::Empty, .. }), "{sent:?}");
        assert_eq!(TAKEN.get(), 1);
        // Said before it left: what the peer asks because of it is no longer answered by it.
        assert_eq!(renewed.had.load(Ordering::Relaxed), "before".len());
        drop(ours);
        let mut all = String::new();
        theirs.read_to_string(&mut all).unwrap();
        assert_eq!(all, "beforeKeyUpdateafter");
    }

    #[test]
    fn keys_that_the_kernel_refuses_end_the_connection_and_nothing_follows() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (mut out, _) = renewing(&theirs, &[ENOMEM]);
        let sent = out.send(ours.as_fd(), usize::MAX);
        assert!(matches!(&sent.end, SendEnd::Error(error) if error.kind() == ErrorKind::OutOfMemory), "{sent:?}");
        assert_eq!(TAKEN.get(), 0);
        drop(ours);
        let mut all = String::new();
        theirs.read_to_string(&mut all).unwrap();
        assert_eq!(all, "beforeKeyUpdate");
    }

    /// RFC 8446, 5.2; RFC 5288, 3; RFC 7905, 2.
    #[test]
    fn records_have_their_overhead() {
        use KernelCipher::{Aes128Gcm, Aes256Gcm, ChaCha20Poly1305};
        for (tls13, cipher, expected) in [
            (true, Aes128Gcm, 22),
            (true, Aes256Gcm, 22),
            (true, ChaCha20Poly1305, 22),
            (false, Aes128Gcm, 29),
            (false, Aes256Gcm, 29),
            (false, ChaCha20Poly1305, 21),
        ] {
            assert_eq!(overhead(&keys(tls13, cipher)), expected, "{cipher:?}");
        }
    }

    /// Where the kernel does not tell, nothing waits for ever.
    #[test]
    fn a_socket_that_does_not_tell_holds_nothing_back() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        assert!(sys::ktls::next_record(ours.as_fd(), KernelCipher::Aes128Gcm).is_err());
        let (mut out, _) = renewing(&theirs, &[]);
        let mut last = Outgoing::new();
        let tx = KernelTx {
            body: Weak::new(),
            cipher: KernelCipher::Aes128Gcm,
            overhead: 22,
            begin: Some((0, 0)),
            first: AtomicU64::new(0),
            earlier: AtomicU64::new(0),
        };
        last.stage_record(21, Bytes::from_static(&[1, 0]), Some(Arc::new(Last(Arc::new(tx)))));
        out.append(&mut last);
        assert!(matches!(out.send(ours.as_fd(), usize::MAX).end, SendEnd::Empty));
    }
}
