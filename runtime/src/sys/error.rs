//! The error of a set-up step: says which step failed, on what, and keeps kind and errno.
//!
//! Job: `io::Error::new` alone loses `raw_os_error`; [`SysError`] is the payload that keeps it.
//! State owned: none. Thread class: pure. Laws kept: none of its own.

use std::error::Error;
use std::fmt;
use std::io;

/// A failed step with its subject, carried inside an `io::Error` of the same kind.
pub(crate) struct SysError {
    /// The step, as the manual pages call it: "bind", "listen".
    pub(crate) op: &'static str,
    /// What it was done to: an address, a path.
    pub(crate) what: String,
    /// What the kernel said, errno included.
    pub(crate) source: io::Error,
}

impl SysError {
    /// Wraps `source` so that the text names step and subject; kind and errno stay readable.
    pub(crate) fn wrap(op: &'static str, what: impl fmt::Display, source: io::Error) -> io::Error {
        let kind = source.kind();
        io::Error::new(kind, Self { op, what: what.to_string(), source })
    }
}

impl fmt::Display for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text of an os error ends in "(os error N)", so the errno is in it.
        write!(f, "{} {}: {}", self.op, self.what, self.source)
    }
}

/// The same: a `main` that returns its error prints it by this.
impl fmt::Debug for SysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error for SysError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.source)
    }
}

/// The errno of an error, whether bare or inside (any number of) [`SysError`]s.
pub(crate) fn errno_of(error: &io::Error) -> Option<i32> {
    let mut error = error;
    loop {
        if let Some(errno) = error.raw_os_error() {
            return Some(errno);
        }
        error = &error.get_ref()?.downcast_ref::<SysError>()?.source;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapped_error_keeps_kind_errno_and_names_the_step() {
        let bare = io::Error::from_raw_os_error(libc::EADDRINUSE);
        let error = SysError::wrap("bind", "127.0.0.1:80", bare);
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(errno_of(&error), Some(libc::EADDRINUSE));
        let text = error.to_string();
        assert!(text.starts_with("bind 127.0.0.1:80: "), "{text}");
        assert!(text.contains(&format!("os error {}", libc::EADDRINUSE)), "{text}");
        let twice = SysError::wrap("listen", "x", error);
        assert_eq!(errno_of(&twice), Some(libc::EADDRINUSE));
    }

    #[test]
    fn an_error_without_errno_has_none() {
        assert_eq!(errno_of(&io::Error::from(io::ErrorKind::TimedOut)), None);
        assert_eq!(errno_of(&io::Error::other("text")), None);
    }
}
