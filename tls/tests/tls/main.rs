//! End-to-end tests of TLS over loopback: one file per behaviour.

mod basics;
mod certs;
mod client;
mod servers;
