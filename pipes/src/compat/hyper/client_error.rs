//! [`HttpClientError`]: why a request got no answer.
//!
//! Job: say what was asked and what went wrong. State: none. Thread class: pure.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

/// Why a request got no answer.
///
/// ```
/// # epoxide::block_on(async {
/// use epoxide_pipes::{ClientOptions, HttpClient, HttpClientError};
///
/// let client = HttpClient::new(epoxide::ReactorHandle::current().unwrap(), ClientOptions::default())?;
/// # let closed = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
/// let request = hyper::Request::get(format!("http://{closed}/")).body(String::new()).unwrap();
/// assert!(matches!(client.request(request).await, Err(HttpClientError::Connect(_))));
/// # std::io::Result::Ok(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum HttpClientError {
    /// The request names no host that can be asked.
    Uri {
        /// What it named.
        uri: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No connection was to be had; the error names the address.
    Connect(io::Error),
    /// The answer's head did not come in time.
    Timeout {
        /// Host and port.
        host: String,
        /// [`ClientOptions::response_timeout`](super::ClientOptions::response_timeout).
        limit: Duration,
    },
    /// The exchange failed.
    Http {
        /// Host and port.
        host: String,
        /// What hyper says.
        error: hyper::Error,
    },
}

impl fmt::Display for HttpClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uri { uri, why } => write!(f, "cannot ask '{uri}': {why}"),
            Self::Connect(error) => error.fmt(f),
            Self::Timeout { host, limit } => write!(f, "{host} did not answer within {limit:?}"),
            Self::Http { host, error } => write!(f, "the exchange with {host} failed: {error}"),
        }
    }
}

impl Error for HttpClientError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Connect(error) => Some(error),
            Self::Http { error, .. } => Some(error),
            _ => None,
        }
    }
}
