//! What a handshake agreed on.
//!
//! State: taken once, when the handshake is done; never changed. Thread class: pure.

use crate::ktls::Kernel;
use crate::options::TlsVersion;
use boring::nid::Nid;
use boring::ssl::{NameType, SslRef};
use boring::x509::X509;

/// What the handshake agreed on.
///
/// ```
/// # use epoxide_tls::*;
/// # mod ends { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in")); }
/// # use ends::*;
/// # epoxide::block_on(async {
/// # let (mut client, mut server) = sessions().await?;
/// let facts = server.facts();
/// assert_eq!((facts.version(), facts.server_name()), (TlsVersion::V1_3, Some("localhost")));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct TlsFacts {
    version: TlsVersion,
    suite: &'static str,
    suite_id: u16,
    alpn: Option<Box<[u8]>>,
    server_name: Option<Box<str>>,
    resumed: bool,
    peer: Option<Peer>,
    kernel: Kernel,
}

#[derive(Clone, Debug)]
struct Peer {
    der: Box<[u8]>,
    common_name: Option<Box<str>>,
}

impl TlsFacts {
    /// After the handshake.
    pub(crate) fn of(ssl: &SslRef, kernel: Kernel) -> Self {
        let cipher = ssl.current_cipher();
        Self {
            version: TlsVersion::of(ssl.version2()),
            suite: cipher.and_then(|cipher| cipher.standard_name()).unwrap_or("unknown"),
            suite_id: cipher.map_or(0, |cipher| cipher.protocol_id()),
            alpn: ssl.selected_alpn_protocol().map(Into::into),
            server_name: ssl.servername(NameType::HOST_NAME).map(|name| name.to_ascii_lowercase().into()),
            resumed: ssl.session_reused(),
            peer: ssl.peer_certificate().and_then(|certificate| Peer::of(&certificate)),
            kernel,
        }
    }

    /// The protocol version.
    pub fn version(&self) -> TlsVersion {
        self.version
    }

    /// The cipher suite's IANA name, for example `TLS_AES_128_GCM_SHA256`.
    pub fn suite(&self) -> &'static str {
        self.suite
    }

    /// The cipher suite's IANA number, for example 0x1301.
    pub fn suite_id(&self) -> u16 {
        self.suite_id
    }

    /// Does the kernel make the records of what this side sends? See [`Ktls`](crate::Ktls).
    pub fn kernel_tx(&self) -> bool {
        self.kernel.tx
    }

    /// Does the kernel decrypt what this side receives?
    pub fn kernel_rx(&self) -> bool {
        self.kernel.rx
    }

    /// The application protocol (ALPN), if one was agreed on.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.alpn.as_deref()
    }

    /// The host name that the client asked for (SNI), in lower case. On a client, what it asked for itself.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// Was an earlier session resumed? Then the certificates were verified in that one.
    pub fn resumed(&self) -> bool {
        self.resumed
    }

    /// The peer's certificate, DER: on a server the client's, if it gave one. It was verified, unless a client's
    /// verification was switched off.
    pub fn peer_certificate(&self) -> Option<&[u8]> {
        self.peer.as_ref().map(|peer| &*peer.der)
    }

    /// The last common name of the peer's certificate; `None` when there is none, or when it is empty or has control
    /// characters.
    pub fn peer_common_name(&self) -> Option<&str> {
        self.peer.as_ref()?.common_name.as_deref()
    }
}

impl Peer {
    fn of(certificate: &X509) -> Option<Self> {
        let der = certificate.to_der().ok()?.into();
        let name = certificate.subject_name().entries_by_nid(Nid::COMMONNAME).last();
        // A NUL would end the text that comes out, and `bank\0.evil` would be `bank`.
        let name = name.map(|entry| entry.data()).filter(|name| !name.as_slice().contains(&0));
        let name = name.and_then(|name| name.as_utf8().ok()).map(|name| name.to_string());
        let common_name = name.filter(|name| !name.is_empty() && !name.contains(char::is_control)).map(Into::into);
        Some(Self { der, common_name })
    }
}
