//! The frame of a server sample: build, one line that says what to type next, drain at Ctrl-C, the counters at the end.
//!
//! State: none. Thread class: the main thread.

use crate::cli::ServerArgs;
use epoxide::{Connection, Runtime};
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::time::Duration;

/// How long busy connections may finish after Ctrl-C.
const GRACE: Duration = Duration::from_secs(30);

/// Serves every connection with `handler` until SIGINT or SIGTERM. `path` is what the start line suggests to ask for.
///
/// # Errors
/// What kept the server from starting, or the fault by which a reactor ended.
pub fn run<H, F, E>(name: &str, args: &ServerArgs, path: &str, handler: H) -> io::Result<()>
where
    H: Fn(Connection) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), E>> + 'static,
    E: Display + 'static,
{
    let mut server = Runtime::builder();
    if args.reactors > 0 {
        server.reactors(args.reactors);
    }
    server.listen(args.target(), handler);
    let runtime = server.build()?;
    let (addr, handles) = (runtime.local_addrs()[0], runtime.handles());
    let many = if handles.len() == 1 { "" } else { "s" };
    println!(
        "[{name}] {} reactor{many} on {addr}; try: curl http://{addr}{path}   (Ctrl-C drains and prints the counters)",
        handles.len()
    );
    let report = runtime.run(GRACE)?;
    println!("[{name}] stopped in {:?}, {} connections cut", report.took, report.cut);
    for handle in handles {
        println!("{}", handle.stats());
    }
    Ok(())
}
