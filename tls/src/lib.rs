//! TLS on epoxide connections, by BoringSSL: any thread may read, write, flush and close a session directly.
//!
//! ```
//! use epoxide::{Connection, Runtime};
//! use epoxide_tls::{Pem, TlsConfig};
//! # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/doc_identity.in"));
//!
//! # fn main() -> std::io::Result<()> {
//! # let (chain_pem, key_pem) = identity();
//! let tls = TlsConfig::server(Pem::text(chain_pem.clone()), Pem::text(key_pem)).alpn(["http/1.1"]).build()?;
//! let mut server = Runtime::builder();
//! server.listen("127.0.0.1:0", move |conn: Connection| {
//!     let tls = tls.clone();
//!     async move {
//!         let mut conn = tls.accept(conn).await?;
//!         while let Some(data) = conn.read_idle().await? {
//!             conn.send_all(&data).await?;
//!         }
//!         std::io::Result::Ok(())
//!     }
//! });
//! let runtime = server.build()?;
//!
//! let tls = TlsConfig::client().roots(Pem::text(chain_pem)).build()?;
//! epoxide::block_on(async {
//!     let mut conn = tls.connect(runtime.local_addrs()[0], "localhost").await?;
//!     conn.send_all(b"echo").await?;
//!     assert_eq!(&conn.read().await?.unwrap()[..], b"echo");
//!     conn.shutdown().await // close_notify, then FIN
//! })
//! # }
//! ```
//!
//! There is no pump and no task of its own: whoever awaits the handshake makes it, a read decrypts what it received, a flush
//! encrypts what is staged, each on the caller's thread. A session has one lock, held for the cryptography alone.
//!
//! | file | job | thread class |
//! |---|---|---|
//! | `config` | [`TlsConfig`]: accept, connect, reload | any thread |
//! | `server`, `client` | the builders: every option, validated at construction | any thread |
//! | `options` | what both have in common: versions, suites, protocol names | pure |
//! | `pem` | certificates and keys, from text or files | any thread |
//! | `context` | BoringSSL contexts from options | any thread |
//! | `hosts` | which certificate a server name gets | any thread |
//! | `tickets` | keys of session tickets, and their rotation | any thread |
//! | `resume` | a client's sessions to resume | any thread |
//! | `handshake` | the future that makes one | any thread |
//! | `session` | the session lock: encrypt, decrypt (law 14) | any thread |
//! | `wire` | what BoringSSL reads from and writes to | under the session lock |
//! | `connection`, `read_half`, `write_half` | what users hold | any thread |
//! | `common` | what halves and the whole have in common with connections | any thread |
//! | `peek` | looking at plaintext without taking it | any thread |
//! | `read_ops` | the named futures of reading and writing | any thread |
//! | `ktls` | kernel TLS: the keys (`keys`), records that are no data (`records`), what BoringSSL says (`heard`), new keys on the way (`renew`), not to receive too much before (`exact`) | any thread |
//! | `send_file` | the future that sends a file | any thread |
//! | `facts` | what was negotiated | pure |
//! | `https` | `serve_https`: the handshake, then HTTP by what was agreed on (feature `hyper`) | any thread |
//! | `error` | every way it fails | pure |
//! | `ffi` | the calls that `boring` has no safe form of | any thread |
//!
//! Walk out: `write_half` -> `session` (lock: encrypt, append) -> `epoxide::layer` -> the connection's flush word.
//! Walk in: `read_half` -> `epoxide::ReadHalf` (recv) -> `session` (lock: decrypt) -> a pooled block.
//!
//! With kernel TLS ([`Ktls`]) the walk out has no cryptography (plaintext is appended), and the walk in ends at the recv.
//!
//! unsafe rooms: ffi

mod client;
mod common;
mod config;
mod connection;
mod context;
mod error;
mod facts;
mod ffi;
mod handshake;
mod hosts;
#[cfg(feature = "hyper")]
mod https;
mod ktls;
mod options;
mod peek;
mod pem;
mod read_half;
mod read_ops;
mod resume;
mod send_file;
mod server;
mod session;
mod tickets;
mod wire;
mod write_half;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use client::ClientBuilder;
pub use config::TlsConfig;
pub use connection::TlsConnection;
pub use error::TlsError;
pub use facts::TlsFacts;
pub use handshake::Handshake;
pub use hosts::Host;
#[cfg(feature = "hyper")]
pub use https::{serve_https, serve_https_send};
pub use ktls::Ktls;
pub use options::{ClientAuth, TlsVersion};
pub use pem::Pem;
pub use read_half::TlsReadHalf;
pub use read_ops::{TlsFlush, TlsRead, TlsReadMore, TlsReadSlice, TlsSendAll, TlsShutdown};
pub use send_file::TlsSendFile;
pub use server::ServerBuilder;
pub use write_half::TlsWriteHalf;
