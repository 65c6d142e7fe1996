//! The frame of a server sample: build, one line that says what to type next, drain at Ctrl-C, the counters at the end.
//!
//! State: none. Thread class: the main thread.

use crate::cli::ServerArgs;
use epoxide::{Builder, Connection, Runtime};
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
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
    run_with(name, args, path, |_| {}, handler)
}

/// The same with a say in what is built.
///
/// # Errors
/// As [`run`].
pub fn run_with<H, F, E>(
    name: &str,
    args: &ServerArgs,
    path: &str,
    set_up: impl FnOnce(&mut Builder),
    handler: H,
) -> io::Result<()>
where
    H: Fn(Connection) -> F + Clone + Send + 'static,
    F: Future<Output = Result<(), E>> + 'static,
    E: Display + 'static,
{
    run_built(name, args, path, |server| {
        set_up(server);
        server.listen(args.target(), handler);
    })
}

/// The same for those who listen themselves, on [`ServerArgs::target`]; their first listener is the one that is told of.
///
/// # Errors
/// As [`run`].
pub fn run_built(name: &str, args: &ServerArgs, path: &str, set_up: impl FnOnce(&mut Builder)) -> io::Result<()> {
    run_saying(name, args, |addr| format!("curl http://{addr}{path}"), set_up)
}

/// What to type for a relay: a server behind it first.
pub fn with_a_server_at(to: &str, command: String) -> String {
    format!(
        "{command}   with a server on {to}, as by: cargo run --release -p epoxide-samples --bin raw -- --addr {to}  "
    )
}

/// The same; `what_to_type` makes the suggestion of the start line.
///
/// # Errors
/// As [`run`].
pub fn run_saying(
    name: &str,
    args: &ServerArgs,
    what_to_type: impl FnOnce(SocketAddr) -> String,
    set_up: impl FnOnce(&mut Builder),
) -> io::Result<()> {
    let mut server = Runtime::builder();
    if args.reactors > 0 {
        server.reactors(args.reactors);
    }
    set_up(&mut server);
    let runtime = server.build()?;
    let (addr, handles) = (runtime.local_addrs()[0], runtime.handles());
    let many = if handles.len() == 1 { "" } else { "s" };
    let (reactors, hint) = (handles.len(), what_to_type(addr));
    let report = runtime.run_with(GRACE, || {
        println!("[{name}] {reactors} reactor{many} on {addr}; try: {hint}   (Ctrl-C drains, a second one cuts; then come the counters)");
    })?;
    println!("[{name}] stopped in {:?}, {} connections cut", report.took, report.cut);
    for (index, handle) in handles.iter().enumerate() {
        println!("-- reactor {index}\n{}", handle.stats());
    }
    let workers = handles[0].workers().report();
    if workers.polls + workers.jobs_done > 0 {
        println!("worker_polls {}\nblocking_jobs {}", workers.polls, workers.jobs_done);
    }
    Ok(())
}
