//! The keys of one direction, from what BoringSSL tells of a session.
//!
//! Job: RFC 8446, 7.3 (TLS 1.3) and RFC 5246, 6.3 (TLS 1.2). State: none; key material is wiped when dropped. Thread
//! class: pure, but that BoringSSL's session is asked.

use crate::ffi;
use crate::ktls::heard::{self, Secret};
use crate::options::TlsVersion;
use boring::ssl::SslRef;
use epoxide::layer::{KernelCipher, KernelKeys};

/// Keys of one direction.
pub(crate) struct Keys {
    tls13: bool,
    cipher: KernelCipher,
    key: Vec<u8>,
    nonce: [u8; 12],
    sequence: u64,
}

impl Drop for Keys {
    fn drop(&mut self) {
        ffi::cleanse(&mut self.key);
    }
}

impl Keys {
    pub(crate) fn for_kernel(&self) -> KernelKeys<'_> {
        let Self { tls13, cipher, ref key, nonce, sequence } = *self;
        KernelKeys { tls13, cipher, key, nonce, sequence }
    }
}

/// The keys of the next record that this side sends, or receives. Everything that BoringSSL has to send must be written.
pub(crate) fn of(ssl: &SslRef, sent: bool) -> Result<Keys, &'static str> {
    let suite = ssl.current_cipher().map_or(0, |cipher| cipher.protocol_id());
    let cipher = cipher_of(suite).ok_or("the kernel does not know the cipher suite")?;
    let sequence = ffi::sequence(ssl, sent);
    if TlsVersion::of(ssl.version2()) == TlsVersion::V1_3 {
        let secret = heard::secret(ssl, sent).ok_or("BoringSSL has not told the traffic secret")?;
        return of_secret(cipher, &secret, sequence).ok_or("the keys could not be derived");
    }
    let (len, mut nonce) = (key_len(cipher), [0; 12]);
    let fixed = if cipher == KernelCipher::ChaCha20Poly1305 { 12 } else { 4 };
    let mut block = ffi::key_block(ssl).ok_or("BoringSSL has not told the key block")?;
    // client key, server key, client nonce, server nonce: there are no keys for a MAC.
    let side = usize::from(ssl.is_server() == sent);
    let (key_at, nonce_at) = (side * len, 2 * len + side * fixed);
    let parts = block.get(key_at..key_at + len).zip(block.get(nonce_at..nonce_at + fixed));
    let keys = parts.map(|(key, part)| {
        nonce[..fixed].copy_from_slice(part);
        if fixed == 4 {
            // What BoringSSL sends along as the explicit part is the number of the record.
            nonce[4..].copy_from_slice(&sequence.to_be_bytes());
        }
        Keys { tls13: false, cipher, key: key.to_vec(), nonce, sequence }
    });
    ffi::cleanse(&mut block);
    keys.ok_or("the key block has another length")
}

/// Those behind a KeyUpdate (RFC 8446, 7.2), which are now the session's.
pub(crate) fn renewed(ssl: &SslRef, sent: bool) -> Option<Keys> {
    let cipher = cipher_of(ssl.current_cipher()?.protocol_id())?;
    let secret = heard::secret(ssl, sent)?.next(has_sha384(cipher))?;
    let keys = of_secret(cipher, &secret, 0)?;
    heard::keep_secret(ssl, sent, secret);
    Some(keys)
}

fn of_secret(cipher: KernelCipher, secret: &Secret, sequence: u64) -> Option<Keys> {
    let mut keys = Keys { tls13: true, cipher, key: vec![0; key_len(cipher)], nonce: [0; 12], sequence };
    let sha384 = has_sha384(cipher);
    let expanded = expand_label(sha384, secret.bytes(), b"key", &mut keys.key)
        && expand_label(sha384, secret.bytes(), b"iv", &mut keys.nonce);
    expanded.then_some(keys)
}

impl Secret {
    /// The one behind a KeyUpdate.
    fn next(&self, sha384: bool) -> Option<Self> {
        let mut next = Self::new(vec![0; self.bytes().len()]);
        expand_label(sha384, self.bytes(), b"traffic upd", next.bytes_mut()).then_some(next)
    }
}

/// The suite with AES-256 is the one with SHA-384.
fn has_sha384(cipher: KernelCipher) -> bool {
    cipher == KernelCipher::Aes256Gcm
}

fn key_len(cipher: KernelCipher) -> usize {
    if cipher == KernelCipher::Aes128Gcm { 16 } else { 32 }
}

fn cipher_of(suite: u16) -> Option<KernelCipher> {
    Some(match suite {
        0x1301 | 0xc02b | 0xc02f => KernelCipher::Aes128Gcm,
        0x1302 | 0xc02c | 0xc030 => KernelCipher::Aes256Gcm,
        0x1303 | 0xcca8 | 0xcca9 => KernelCipher::ChaCha20Poly1305,
        _ => return None,
    })
}

/// HKDF-Expand-Label (RFC 8446, 7.1) without a context.
fn expand_label(sha384: bool, secret: &[u8], label: &[u8], out: &mut [u8]) -> bool {
    let mut info = vec![0, out.len() as u8, (6 + label.len()) as u8];
    info.extend_from_slice(b"tls13 ");
    info.extend_from_slice(label);
    info.push(0);
    ffi::hkdf_expand(sha384, secret, &info, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// RFC 8448, 3: server_application_traffic_secret_0 of the simple 1-RTT handshake, and its keys.
    #[test]
    fn labels_are_expanded_as_in_rfc_8448() {
        let secret = bytes("a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643");
        let (mut key, mut iv) = ([0; 16], [0; 12]);
        assert!(expand_label(false, &secret, b"key", &mut key) && expand_label(false, &secret, b"iv", &mut iv));
        assert_eq!(key[..], bytes("9f02283b6c9c07efc26bb9f2ac92e356"));
        assert_eq!(iv[..], bytes("cf782b88dd83549aadf1e984"));
    }

    #[test]
    fn every_suite_has_its_cipher() {
        for id in crate::options::suite_ids() {
            assert!(cipher_of(id).is_some(), "{id:#x}");
        }
        assert_eq!(cipher_of(0x002f), None, "control: CBC");
    }
}
