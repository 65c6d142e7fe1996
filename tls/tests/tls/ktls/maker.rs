//! Records of TLS 1.3 made by hand, for peers that say what no library says.

use boring::hash::hmac_sha256;
use boring::symm::{Cipher, encrypt_aead};

/// HKDF-Expand-Label of one block.
fn expand(secret: &[u8], label: &str, len: u8) -> [u8; 32] {
    let info = [&[0, len, 6 + label.len() as u8], &b"tls13 "[..], label.as_bytes(), &[0, 1]].concat();
    hmac_sha256(secret, &info).unwrap()
}

/// Makes records of TLS 1.3 with AES-128-GCM by hand.
pub(super) struct Maker {
    secret: Vec<u8>,
    key: [u8; 16],
    nonce: [u8; 12],
    number: u64,
}

impl Maker {
    /// From a line of the key log.
    pub(super) fn new(line: &str) -> Self {
        let digits = line.rsplit(' ').next().unwrap();
        Self::of((0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect())
    }

    fn of(secret: Vec<u8>) -> Self {
        let (key, nonce) = (expand(&secret, "key", 16), expand(&secret, "iv", 12));
        Self { secret, key: key[..16].try_into().unwrap(), nonce: nonce[..12].try_into().unwrap(), number: 0 }
    }

    /// The keys behind a KeyUpdate.
    pub(super) fn renew(&mut self) {
        *self = Self::of(expand(&self.secret, "traffic upd", 32).to_vec());
    }

    /// A record of this kind; its body is 16 KiB at most.
    pub(super) fn record(&mut self, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut nonce = self.nonce;
        nonce[4..].iter_mut().zip(self.number.to_be_bytes()).for_each(|(byte, number)| *byte ^= number);
        self.number += 1;
        let plain = [body, &[kind]].concat();
        let [high, low] = u16::try_from(plain.len() + 16).unwrap().to_be_bytes();
        let header = [23, 3, 3, high, low];
        let mut tag = [0; 16];
        let sealed = encrypt_aead(Cipher::aes_128_gcm(), &self.key, Some(&nonce), &header, &plain, &mut tag).unwrap();
        [&header[..], &sealed, &tag].concat()
    }
}
