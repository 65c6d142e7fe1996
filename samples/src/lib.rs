//! What the samples share: the command line, the server around a handler, HTTP framing by blank line, answers.
//!
//! State: none. Thread class: pure.
//!
//! | file | job |
//! |---|---|
//! | `cli` | the options that every server sample takes |
//! | `server` | start, say what to type, stop at Ctrl-C, print the counters |
//! | `heads` | how many requests end in the bytes received so far |
//! | `http` | the loop that gives every request the same answer, and what answers look like |

pub mod cli;
pub mod heads;
pub mod http;
pub mod server;
