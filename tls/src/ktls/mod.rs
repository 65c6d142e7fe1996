//! Kernel TLS: who makes the records of a session.
//!
//! Job: the option, the hand-over of the keys after a handshake, and why there is none. State: `Uses`, a configuration's
//! counts. Who touches it: handshakes at their end. Thread class: any thread. Laws: 14, 16 (fallbacks are counted).

pub(crate) mod exact;
pub(crate) mod heard;
mod keys;
pub(crate) mod records;
pub(crate) mod renew;

use crate::wire::Wire;
use boring::ssl::SslStream;
use epoxide::layer::Queue;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Does the kernel make the records (kernel TLS, the module `tls` of Linux)?
///
/// A session whose keys the kernel does not take is encrypted here, and its peer sees no difference: see
/// [`TlsConfig::ktls_fallbacks`](crate::TlsConfig::ktls_fallbacks) and [`TlsFacts::kernel_tx`](crate::TlsFacts::kernel_tx).
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (chain, key) = identity();
/// let tls = TlsConfig::server(Pem::text(chain), Pem::text(key)).ktls(Ktls::Tx).build()?;
/// // Of the sessions so far: how many the kernel encrypts, and how many it did not take.
/// assert_eq!((tls.ktls_sessions(), tls.ktls_fallbacks()), (0, 0));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Ktls {
    /// Everything is encrypted and decrypted here.
    #[default]
    Off,
    /// The kernel encrypts what is sent, so that `send_file` copies nothing through this process; what is received is
    /// decrypted here.
    ///
    /// From Linux 6.14 on keys are renewed (KeyUpdate of TLS 1.3) as without the kernel. Before that its keys are those of the
    /// handshake, for the life of the session: `update_keys` is refused, and a peer that asks for new keys (rare) is sent a
    /// close_notify instead: later writes fail with [`TlsError::KeyUpdate`](crate::TlsError::KeyUpdate), reads go on.
    Tx,
    /// The kernel decrypts what is received, too, so a read is a plain recv(2). Before Linux 6.14 any KeyUpdate of the peer
    /// then ends the session: reads fail with [`TlsError::KeyUpdate`](crate::TlsError::KeyUpdate), too.
    TxRx,
}

/// The content types of records (RFC 8446, 5.1) that are no data.
pub(crate) const ALERT: u8 = 21;
pub(crate) const HANDSHAKE: u8 = 22;

/// warning, close_notify.
pub(crate) const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// What a configuration's sessions made of the option.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub(crate) kernel: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    said: AtomicBool,
}

impl Uses {
    /// After the handshake, with everything written so far in the socket, and nothing received beyond it (`exact`): the
    /// kernel gets the keys that it is to have. What it does not take is done here, and nothing has changed for it.
    pub(crate) fn hand_over(&self, ktls: Ktls, stream: &mut SslStream<Wire>, queue: &Queue, exact: bool) -> Kernel {
        let ssl = stream.ssl();
        let sent = keys::of(ssl, true).map_err(io::Error::other);
        let sent = sent.and_then(|keys| {
            let tx = queue.install_tx(&keys.for_kernel())?;
            Ok((tx, renew::can_renew(queue, &keys)))
        });
        let received = match (ktls, &sent) {
            (Ktls::TxRx, Ok(_)) if exact => {
                let keys = keys::of(ssl, false).map_err(io::Error::other);
                Some(keys.and_then(|keys| queue.install_rx(&keys.for_kernel())))
            }
            (Ktls::TxRx, Ok(_)) => Some(Err(io::Error::other("the peer sent more than its handshake"))),
            _ => None,
        };
        let renews = matches!(sent, Ok((_, true)));
        let kernel = Kernel { tx: sent.is_ok(), rx: matches!(received, Some(Ok(()))), renews };
        if !renews {
            heard::forget_secrets(ssl);
        }
        let sent = sent.map(|(tx, _)| stream.get_mut().leave_to_kernel(tx));
        match sent.and_then(|()| received.unwrap_or(Ok(()))) {
            Ok(()) => {
                self.kernel.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                self.fallbacks.fetch_add(1, Ordering::Relaxed);
                if !self.said.swap(true, Ordering::Relaxed) {
                    let what = if kernel.tx { "to decrypt" } else { "at all" };
                    let text =
                        format!("epoxide-tls: kernel TLS is not used {what}: {}; this process does it", why(&error));
                    // Not eprintln, which panics when nobody reads the standard error any more.
                    let _ = writeln!(io::stderr(), "{text}");
                }
            }
        }
        kernel
    }
}

/// What the kernel does for a session.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Kernel {
    pub(crate) tx: bool,
    pub(crate) rx: bool,
    /// It takes new keys in the middle of the session.
    pub(crate) renews: bool,
}

/// What to do about it.
fn why(error: &io::Error) -> String {
    match error.kind() {
        // TCP_ULP, of a protocol that is not there.
        io::ErrorKind::NotFound => format!("{error}: the kernel has no TLS (modprobe tls)"),
        io::ErrorKind::NotConnected => format!("{error}: the peer has sent its FIN already"),
        _ => error.to_string(),
    }
}
