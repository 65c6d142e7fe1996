//! What the samples share: the command line, the server around a handler, HTTP framing by blank line, answers.
//!
//! State: none. Thread class: see each file.
//!
//! | file | job |
//! |---|---|
//! | `cli` | the options that every server sample takes |
//! | `say` | a line on standard output or standard error, whoever reads it |
//! | `server` | start, say what to type, stop at Ctrl-C, print the counters |
//! | `heads` | how many requests end in the bytes received so far |
//! | `http` | the loop that gives every request the same answer, and what answers look like |
//! | `http_pipe` | the same loop on pipes |
//! | `axum_app` | an axum application (feature `http`) |
//! | `hub_room` | a hub of WebSockets, and who is in it (feature `http`) |
//! | `https` | certificates and the loop over TLS (feature `tls`) |
//! | `upstream` | the server behind a relay, and whether it answers |
//! | `relay` | two connections, each sent what the other sends |
//! | `http_proxy` | a request passed on to another server (feature `http`) |
//! | `hyper_answers` | what `http1` and `http2` answer (feature `http`) |
//! | `responses` | a client's side: whole responses in the bytes received |
//! | `ws` | a WebSocket over bytes in memory (feature `http`) |
//! | `report` | what a load run has seen |

#[cfg(feature = "http")]
pub mod axum_app;
pub mod cli;
pub mod heads;
pub mod http;
pub mod http_pipe;
#[cfg(feature = "http")]
pub mod http_proxy;
#[cfg(feature = "tls")]
pub mod https;
#[cfg(feature = "http")]
pub mod hub_room;
#[cfg(feature = "http")]
pub mod hyper_answers;
pub mod relay;
pub mod report;
pub mod request;
pub mod responses;
pub mod say;
pub mod server;
pub mod upstream;
#[cfg(feature = "http")]
pub mod ws;
