//! [`HttpOptions`]: what `serve_http` can be told.
//!
//! Job: limits and clocks, refused by name when they cannot work. State: none. Thread class: pure. Laws kept: 16.

use std::io;
use std::time::Duration;

/// Which versions of HTTP a connection may speak.
///
/// ```
/// use epoxide_pipes::{HttpOptions, HttpVersions};
///
/// let options = HttpOptions::builder().versions(HttpVersions::Http1).build().unwrap();
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HttpVersions {
    /// HTTP/2 when the connection begins with its preface (RFC 9113, section 3.4), else HTTP/1.
    #[default]
    Auto,
    /// HTTP/1 only.
    Http1,
    /// HTTP/2 only: for a connection that has agreed on it, as by ALPN.
    Http2,
}

/// Limits and clocks of a served connection. Made by `default()`, or checked by [`builder`](Self::builder); cheap to
/// copy.
///
/// ```
/// use epoxide_pipes::HttpOptions;
///
/// let options = HttpOptions::builder().max_headers(50).build().unwrap();
/// assert_ne!(options, HttpOptions::default());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HttpOptions {
    pub(super) versions: HttpVersions,
    pub(super) head_timeout: Duration,
    pub(super) idle_timeout: Duration,
    pub(super) max_headers: usize,
    pub(super) max_head: usize,
    pub(super) max_streams: u32,
    pub(super) max_pending_resets: usize,
    pub(super) max_local_resets: usize,
    pub(super) min_send_rate: u64,
    pub(super) keep_alive: bool,
    pub(super) half_close: bool,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            versions: HttpVersions::Auto,
            head_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(60),
            max_headers: 100,
            max_head: 16 * 1024,
            max_streams: 128,
            max_pending_resets: 20,
            max_local_resets: 1024,
            min_send_rate: 256,
            keep_alive: true,
            half_close: false,
        }
    }
}

impl HttpOptions {
    /// The defaults, to be changed and checked.
    pub fn builder() -> HttpOptionsBuilder {
        HttpOptionsBuilder { options: Self::default() }
    }

    /// The same limits and clocks for other versions, as of a connection that has agreed on one.
    #[must_use]
    pub fn with_versions(self, versions: HttpVersions) -> Self {
        Self { versions, ..self }
    }

    /// Which versions of HTTP are spoken.
    pub fn versions(&self) -> HttpVersions {
        self.versions
    }
}

/// Makes [`HttpOptions`]; [`build`](Self::build) refuses what cannot work.
///
/// ```
/// use epoxide_pipes::HttpOptions;
///
/// let refused = HttpOptions::builder().max_head(1).build().unwrap_err();
/// assert!(refused.to_string().starts_with("max_head is 1"));
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "build() makes the options"]
pub struct HttpOptionsBuilder {
    options: HttpOptions,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        impl HttpOptionsBuilder { $(
            $(#[$doc])*
            pub fn $field(mut self, $field: $type) -> Self {
                self.options.$field = $field;
                self
            }
        )* }
    };
}

setters! {
    /// Which versions of HTTP are spoken. Default: both.
    versions: HttpVersions,
    /// How long a request's head may take from its first byte to its last. Past it HTTP/1 answers 408. Zero: for ever.
    /// Default 10 s.
    head_timeout: Duration,
    /// How long a connection may be without a request in progress before it is closed. Zero: for ever. Default 60 s.
    idle_timeout: Duration,
    /// Header fields of a request, 1 to 1000: past it HTTP/1 answers 431. Default 100.
    max_headers: usize,
    /// Bytes of a request's head, 1 KiB to 1 MiB: past it 431. Default 16 KiB.
    max_head: usize,
    /// HTTP/2: requests in progress at a time, at least 1. Default 128.
    max_streams: u32,
    /// HTTP/2: streams that the client may have reset before their handler was called, before the connection is ended
    /// (a flood of resets, CVE-2023-44487); at least 1. Default 20.
    max_pending_resets: usize,
    /// HTTP/2: streams that this side has reset because of the client's errors, before the connection is ended; at
    /// least 1. Default 1024.
    max_local_resets: usize,
    /// Bytes a second that the client must take on average over every 5 to 20 s of a waiting flush; 0 is off.
    /// Default 256.
    min_send_rate: u64,
    /// HTTP/1: may a connection serve more than one request? Default true.
    keep_alive: bool,
    /// HTTP/1: may a client end its side and still wait for its answer? If not, it is taken to be gone: the handler's
    /// future is dropped. Default false.
    half_close: bool,
}

impl HttpOptionsBuilder {
    /// The options.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`], naming the field and its limits.
    pub fn build(self) -> io::Result<HttpOptions> {
        let o = self.options;
        range("max_headers", o.max_headers, 1, 1000)?;
        range("max_head", o.max_head, 1024, 1 << 20)?;
        range("max_streams", o.max_streams as usize, 1, (1 << 31) - 1)?;
        range("max_pending_resets", o.max_pending_resets, 1, usize::MAX)?;
        range("max_local_resets", o.max_local_resets, 1, usize::MAX)?;
        Ok(o)
    }
}

pub(super) fn range(field: &str, value: usize, low: usize, high: usize) -> io::Result<()> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let text = if high == usize::MAX {
        format!("{field} is {value}: it must be at least {low}")
    } else {
        format!("{field} is {value}: it must be from {low} to {high}")
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        let b = HttpOptions::builder;
        for (field, refused) in [
            ("max_headers", b().max_headers(0).build()),
            ("max_headers", b().max_headers(1001).build()),
            ("max_head", b().max_head(1023).build()),
            ("max_head", b().max_head((1 << 20) + 1).build()),
            ("max_streams", b().max_streams(0).build()),
            ("max_streams", b().max_streams(u32::MAX).build()),
            ("max_pending_resets", b().max_pending_resets(0).build()),
            ("max_local_resets", b().max_local_resets(0).build()),
        ] {
            let error = refused.expect_err(field);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().starts_with(&format!("{field} is ")), "{error}");
        }
        assert_eq!(b().build().unwrap(), HttpOptions::default());
    }
}
