//! What the samples share: the command line, HTTP framing by blank line, and answers.
//!
//! State: none. Thread class: pure.

pub mod cli;
pub mod heads;
pub mod request;
