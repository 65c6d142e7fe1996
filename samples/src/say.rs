//! A line on standard output or standard error, where nobody may read any more.
//!
//! State: none. Thread class: any thread.

use std::fmt::Arguments;
use std::io::{self, Write};

/// Prints a line. Unlike `println!` it does not panic where the reader has gone (`raw | head -c1`): a server goes on
/// serving, and still stops as it should.
pub fn say(line: Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// The same on standard error, for what went wrong (`chat 2>&1 | head -1`).
pub fn complain(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}
