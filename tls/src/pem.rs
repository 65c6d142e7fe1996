//! Certificates and keys as PEM, from text or files.
//!
//! Job: read and check; every refusal names its option. State: none. Thread class: any thread; files are read by the caller.
//! Laws: 16 (no more is read than may be there).

use crate::error::{TlsError, words};
use boring::pkey::{PKey, Private};
use boring::x509::X509;
use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A certificate chain and its key may have this many bytes each, in PEM.
const MAX_CHAIN: usize = 64 * 1024;
/// A bundle of certificate authorities.
const MAX_BUNDLE: usize = 16 * 1024 * 1024;

/// PEM text, or a file that has it.
///
/// ```
/// use epoxide_tls::Pem;
///
/// let file = Pem::path("/etc/app/chain.pem"); // read by `build()` and by every reload
/// let text = Pem::text("-----BEGIN CERTIFICATE-----...");
/// assert_eq!(format!("{file:?} {text:?}"), "Pem(/etc/app/chain.pem) Pem(the PEM text)"); // never the text
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Pem(Source);

#[derive(Clone, PartialEq, Eq)]
enum Source {
    Path(PathBuf),
    Text(String),
}

impl Pem {
    /// A file, read by `build()` and again by every reload with this builder.
    pub fn path(path: impl Into<PathBuf>) -> Self {
        Self(Source::Path(path.into()))
    }

    /// The text itself.
    pub fn text(text: impl Into<String>) -> Self {
        Self(Source::Text(text.into()))
    }

    fn read(&self, option: &'static str, max: usize) -> Result<Cow<'_, [u8]>, TlsError> {
        let bytes = match &self.0 {
            Source::Text(text) => Cow::Borrowed(text.as_bytes()),
            Source::Path(path) => {
                let read = read_at_most(path, max + 1);
                Cow::Owned(read.map_err(|error| TlsError::config(option, format!("{}: {error}", path.display())))?)
            }
        };
        if bytes.len() > max {
            return Err(TlsError::config(option, format!("{self} is too long: at most {max} bytes")));
        }
        Ok(bytes)
    }

    /// At least one certificate, all of them whole.
    fn certificates(&self, option: &'static str, max: usize) -> Result<Vec<X509>, TlsError> {
        let pem = self.read(option, max)?;
        let found = X509::stack_from_pem(&pem)
            .map_err(|error| TlsError::config(option, format!("{self} is torn or malformed: {}", words(&error))))?;
        // BoringSSL skips what it does not know as PEM: a count shows a block that it did not see.
        let (begun, ended) = (count(&pem, "BEGIN"), count(&pem, "END"));
        if found.is_empty() || found.len() < begun.max(ended) {
            let reason =
                format!("{self} begins {begun} certificates, ends {ended}, and has {} whole ones", found.len());
            return Err(TlsError::config(option, reason));
        }
        Ok(found)
    }

    /// A chain, leaf first.
    pub(crate) fn chain(&self, option: &'static str) -> Result<Vec<X509>, TlsError> {
        self.certificates(option, MAX_CHAIN)
    }

    /// Certificate authorities.
    pub(crate) fn bundle(&self, option: &'static str) -> Result<Vec<X509>, TlsError> {
        self.certificates(option, MAX_BUNDLE)
    }

    /// A private key without a passphrase.
    pub(crate) fn key(&self, option: &'static str) -> Result<PKey<Private>, TlsError> {
        let pem = self.read(option, MAX_CHAIN)?;
        PKey::private_key_from_pem(&pem).map_err(|error| {
            let words = words(&error);
            let hint = if words.contains("PASSWORD") { " (a key with a passphrase is not supported)" } else { "" };
            TlsError::config(option, format!("{self} has no private key that can be read: {words}{hint}"))
        })
    }
}

/// The last has trust settings of OpenSSL's, which BoringSSL does not read here: it is refused, not left out.
const KINDS: [&str; 3] = ["CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE"];

/// Lines that begin or end certificates.
fn count(pem: &[u8], what: &str) -> usize {
    let lines = KINDS.map(|kind| format!("-----{what} {kind}-----"));
    lines.iter().map(|line| pem.windows(line.len()).filter(|window| *window == line.as_bytes()).count()).sum()
}

/// A file may be a device that has no end.
fn read_at_most(path: &Path, max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(max as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl fmt::Display for Pem {
    /// The path; never the text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Path(path) => write!(f, "{}", path.display()),
            Source::Text(_) => f.write_str("the PEM text"),
        }
    }
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pem({self})")
    }
}
