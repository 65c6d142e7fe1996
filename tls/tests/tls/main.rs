//! End-to-end tests of TLS over loopback: one file per behaviour.

mod basics;
mod certs;
mod client;
mod cuts;
mod egress;
mod endings;
mod flushes;
mod forms;
mod handshakes;
mod hosts;
#[cfg(feature = "hyper")]
mod https;
#[cfg(feature = "hyper")]
mod https_ends;
mod idle;
mod interop;
mod ktls;
mod limits_table;
mod malformed;
mod memory;
mod mutual;
mod ours;
mod peek;
mod pipes;
mod posture;
mod reload;
mod rustls_peer;
mod servers;
mod shared;
mod staging;
mod threads;
mod tlslite;
/// The service of the tests of `serve_http`.
#[cfg(feature = "hyper")]
#[path = "../../../pipes/tests/web/mod.rs"]
mod web;
