//! Kernel TLS: keys into a socket, and records of other kinds than data.
//!
//! Job: TCP_ULP, TLS_TX, TLS_RX, and sendmsg and recvmsg with a record type. State owned: none. Thread class: any thread (who may send is
//! decided by the flush word). Laws kept: 15; no SIGPIPE ever.
#![allow(unsafe_code, reason = "sendmsg(2) with a control message that nix does not know")]

use std::io::{self, IoSliceMut};
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use nix::errno::Errno;
use nix::sys::socket::sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, TlsGetRecordType, recvmsg, setsockopt};

/// The content type of records that hold messages of the handshake (RFC 8446, 5.1).
pub(crate) const HANDSHAKE: u8 = 22;
/// The same of alerts.
pub(crate) const ALERT: u8 = 21;

/// A cipher that the kernel knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KernelCipher {
    /// AES-128-GCM: a key of 16 bytes.
    Aes128Gcm,
    /// AES-256-GCM: a key of 32 bytes.
    Aes256Gcm,
    /// ChaCha20-Poly1305: a key of 32 bytes.
    ChaCha20Poly1305,
}

/// What the kernel must know to make the records of one direction.
#[derive(Clone, Copy)]
pub struct KernelKeys<'a> {
    /// TLS 1.3; else 1.2.
    pub tls13: bool,
    /// The cipher of the session.
    pub cipher: KernelCipher,
    /// The key, as long as the cipher says.
    pub key: &'a [u8],
    /// The nonce of record 0. TLS 1.2 with GCM: the fixed part, then the next record's number.
    pub nonce: [u8; 12],
    /// The number of the next record.
    pub sequence: u64,
}

impl std::fmt::Debug for KernelKeys<'_> {
    /// Never the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelKeys")
            .field("cipher", &self.cipher)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl KernelKeys<'_> {
    /// As the kernel takes them; `None`: the key has another length.
    fn info(&self) -> Option<TlsCryptoInfo> {
        let info = |cipher_type| libc::tls_crypto_info {
            version: if self.tls13 { libc::TLS_1_3_VERSION } else { libc::TLS_1_2_VERSION },
            cipher_type,
        };
        let [salt @ .., _, _, _, _, _, _, _, _] = self.nonce;
        let [_, _, _, _, iv @ ..] = self.nonce;
        let rec_seq = self.sequence.to_be_bytes();
        Some(match self.cipher {
            KernelCipher::Aes128Gcm => TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
                info: info(libc::TLS_CIPHER_AES_GCM_128),
                iv,
                key: self.key.try_into().ok()?,
                salt,
                rec_seq,
            }),
            KernelCipher::Aes256Gcm => TlsCryptoInfo::Aes256Gcm(libc::tls12_crypto_info_aes_gcm_256 {
                info: info(libc::TLS_CIPHER_AES_GCM_256),
                iv,
                key: self.key.try_into().ok()?,
                salt,
                rec_seq,
            }),
            KernelCipher::ChaCha20Poly1305 => {
                TlsCryptoInfo::Chacha20Poly1305(libc::tls12_crypto_info_chacha20_poly1305 {
                    info: info(libc::TLS_CIPHER_CHACHA20_POLY1305),
                    iv: self.nonce,
                    key: self.key.try_into().ok()?,
                    salt: [],
                    rec_seq,
                })
            }
        })
    }
}

/// Keys that take over behind a record which tells the peer (TLS 1.3's KeyUpdate).
pub trait NewKeys: Send + Sync {
    /// For the kernel.
    fn keys(&self) -> KernelKeys<'_>;

    /// The record is about to be given to the kernel: what the peer asks for from now on it may ask because of it, so it is no
    /// answer to that. Called by whoever sends, again after an EAGAIN.
    fn leaving(&self);
}

/// Puts the kernel's TLS over a TCP socket that is connected both ways. Nothing changes until a direction has keys.
pub(crate) fn attach(fd: BorrowedFd<'_>) -> io::Result<()> {
    super::retry(|| setsockopt(&fd, TcpUlp::default(), b"tls"))
}

/// Everything sent from now on is data in records of these keys. On an error the socket stays as it was. A second time,
/// with newer keys: from Linux 6.14 on, before that EBUSY.
pub(crate) fn install_tx(fd: BorrowedFd<'_>, keys: &KernelKeys<'_>) -> io::Result<()> {
    let info = keys.info().ok_or(Errno::EINVAL)?;
    super::retry(|| setsockopt(&fd, TcpTlsTx, &info))
}

/// What is received from now on is decrypted with these keys, what is queued already included; recv(2) delivers data, and
/// fails with EIO at a record of another kind. On an error the socket stays as it was.
pub(crate) fn install_rx(fd: BorrowedFd<'_>, keys: &KernelKeys<'_>) -> io::Result<()> {
    let info = keys.info().ok_or(Errno::EINVAL)?;
    super::retry(|| setsockopt(&fd, TcpTlsRx, &info))
}

/// The number of the next record that the kernel seals with the keys that it has.
pub(crate) fn next_record(fd: BorrowedFd<'_>, cipher: KernelCipher) -> io::Result<u64> {
    // The kernel wants the size of the cipher's structure, which ends with the number. It tells the keys, too.
    let mut info = [0_u8; mem::size_of::<libc::tls12_crypto_info_chacha20_poly1305>()];
    let size = match cipher {
        KernelCipher::Aes128Gcm => mem::size_of::<libc::tls12_crypto_info_aes_gcm_128>(),
        KernelCipher::Aes256Gcm => mem::size_of::<libc::tls12_crypto_info_aes_gcm_256>(),
        KernelCipher::ChaCha20Poly1305 => info.len(),
    };
    let mut len = size.min(info.len()) as libc::socklen_t;
    // SAFETY: `info` is live and initialised, and `len` is no more than its size; the kernel writes no more than that.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_TLS, libc::TLS_TX, info.as_mut_ptr().cast(), &raw mut len)
    };
    let number = info[..size.min(info.len())].last_chunk().map(|number| u64::from_be_bytes(*number));
    std::hint::black_box(&mut info).fill(0);
    Errno::result(result)?;
    Ok(number.unwrap_or_default())
}

/// Takes one record, of whatever kind: its kind and how many bytes of it `space` holds now. 16 KiB hold any.
pub(crate) fn recv_record(fd: BorrowedFd<'_>, space: &mut [u8]) -> io::Result<(u8, usize)> {
    let mut control = nix::cmsg_space!(u8);
    let mut slices = [IoSliceMut::new(space)];
    super::retry(|| {
        let message = recvmsg::<()>(fd.as_raw_fd(), &mut slices, Some(&mut control), MsgFlags::MSG_DONTWAIT)?;
        let kind = message.cmsgs()?.find_map(|message| match message {
            ControlMessageOwned::TlsGetRecordType(kind) => Some(kind),
            _ => None,
        });
        Ok((kind.map_or(23, number_of), message.bytes))
    })
}

fn number_of(kind: TlsGetRecordType) -> u8 {
    match kind {
        TlsGetRecordType::ChangeCipherSpec => 20,
        TlsGetRecordType::Alert => 21,
        TlsGetRecordType::Handshake => 22,
        TlsGetRecordType::ApplicationData => 23,
        TlsGetRecordType::Unknown(kind) => kind,
        _ => 0,
    }
}

/// A control message with the type of a record.
#[repr(C)]
struct RecordType {
    header: libc::cmsghdr,
    kind: u8,
}

/// Sends one record of the given kind (21 alert, 22 handshake), whole: never blocking.
pub(crate) fn send_record(fd: BorrowedFd<'_>, kind: u8, body: &[u8]) -> io::Result<usize> {
    // SAFETY: all-zero bytes are a valid cmsghdr and a valid byte.
    let mut control: RecordType = unsafe { mem::zeroed() };
    // The length of the header, which is aligned, and the one byte behind it.
    control.header.cmsg_len = (mem::offset_of!(RecordType, kind) + 1) as _;
    control.header.cmsg_level = libc::SOL_TLS;
    control.header.cmsg_type = libc::TLS_SET_RECORD_TYPE;
    control.kind = kind;
    let mut slice = libc::iovec { iov_base: body.as_ptr().cast_mut().cast(), iov_len: body.len() };
    // SAFETY: all-zero bytes are a valid msghdr: no address, no slices, no control data.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = ptr::from_mut(&mut control).cast();
    message.msg_controllen = mem::size_of::<RecordType>() as _;
    let n = super::retry(|| {
        // SAFETY: the message and all that it points to live in this frame, with their true lengths; sendmsg(2) only
        // reads them. The descriptor is borrowed, so it is open.
        let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
        Errno::result(n)
    })?;
    Ok(usize::try_from(n).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    fn keys(key: &[u8]) -> KernelKeys<'_> {
        let nonce = std::array::from_fn(|i| i as u8);
        KernelKeys { tls13: true, cipher: KernelCipher::Aes128Gcm, key, nonce, sequence: 1 }
    }

    #[test]
    fn the_nonce_is_salt_and_iv_and_a_key_has_its_length() {
        let key = [7; 32];
        let Some(TlsCryptoInfo::Aes128Gcm(info)) = keys(&key[..16]).info() else { panic!("aes-128") };
        assert_eq!((info.salt, info.iv), ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]));
        assert_eq!(info.rec_seq, [0, 0, 0, 0, 0, 0, 0, 1]);
        for cipher in [KernelCipher::Aes256Gcm, KernelCipher::ChaCha20Poly1305] {
            assert!(KernelKeys { cipher, ..keys(&key) }.info().is_some());
            assert!(KernelKeys { cipher, ..keys(&key[..31]) }.info().is_none(), "a key too short");
        }
        assert!(keys(&key).info().is_none(), "a key too long");
        assert!(!format!("{:?}", keys(&key)).contains("key"));
    }

    /// Whether or not this kernel has TLS, a socket without keys sends plain bytes.
    #[test]
    fn a_socket_that_has_no_keys_stays_plain() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let served = listener.accept().unwrap().0;
        if let Err(error) = attach(served.as_fd()) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "no such protocol: {error}");
            assert!(install_tx(served.as_fd(), &keys(&[7; 16])).is_err());
        }
        let error = install_tx(served.as_fd(), &keys(&[7; 15])).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        assert_eq!(crate::sys::io::send(served.as_fd(), b"plain").unwrap(), 5);
        let mut got = [0; 5];
        client.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"plain");
        let unix = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(attach(unix.0.as_fd()).is_err(), "TCP only");
    }
}
