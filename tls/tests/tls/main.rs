//! End-to-end tests of TLS over loopback: one file per behaviour.

mod basics;
mod certs;
mod client;
mod cuts;
mod endings;
mod handshakes;
mod hosts;
mod interop;
mod ktls;
mod limits_table;
mod malformed;
mod mutual;
mod ours;
mod pipes;
mod posture;
mod reload;
mod servers;
mod shared;
mod threads;
