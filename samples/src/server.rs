//! The frame of a server sample: build, one line that says what to type next, drain at Ctrl-C, the counters at the end.
//!
//! State: none. Thread class: the main thread.

use crate::cli::ServerArgs;
use crate::say::say;
use epoxide::signal::{SignalKind, Signals};
use epoxide::{Builder, Connection, ReactorHandle, Runtime};
use std::fmt::Display;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// How long busy connections may finish after Ctrl-C.
const GRACE: Duration = Duration::from_secs(30);
/// A drain that lasts longer says so.
const MOMENT: Duration = Duration::from_secs(1);

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
    let mut server = args.builder();
    set_up(&mut server);
    let runtime = server.build()?;
    let handles = runtime.handles();
    run_runtime(name, runtime, GRACE, |addr| {
        let hint = what_to_type(addr);
        format!("try: {hint}   (Ctrl-C drains, a second one cuts; then come the counters)")
    })?;
    for (index, handle) in handles.iter().enumerate() {
        say(format_args!("-- reactor {index}\n{}", handle.stats()));
    }
    let workers = handles[0].workers().report();
    if workers.polls + workers.jobs_done > 0 {
        say(format_args!("worker_polls {}\nblocking_jobs {}", workers.polls, workers.jobs_done));
    }
    Ok(())
}

/// A number of things, in words: `1 reactor`, `2 reactors`.
pub fn count(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Says where it runs and what `hint` makes of the address, runs until SIGINT or SIGTERM, drains within `grace`, and says
/// how that went; also on the way, if it lasts.
///
/// # Errors
/// The fault by which a reactor ended.
pub fn run_runtime(
    name: &str,
    runtime: Runtime,
    grace: Duration,
    hint: impl FnOnce(SocketAddr) -> String,
) -> io::Result<()> {
    let addr = runtime.local_addrs()[0];
    let handles = runtime.handles();
    let reactors = count(handles.len(), "reactor");
    let (over, is_over) = channel();
    let report = runtime.run_with(grace, || {
        // No earlier: a signal that only this watch saw would end nothing.
        tell_of_a_long_drain(name, handles, grace, is_over);
        say(format_args!("[{name}] {reactors} on {addr}; {}", hint(addr)));
    })?;
    drop(over);
    say(format_args!("[{name}] stopped in {:?}, {} cut", report.took, count(report.cut, "connection")));
    Ok(())
}

/// Says after a moment what a drain waits for, and how not to; nothing once the other end of `is_over` is gone. Without a
/// watch for itself (there may be 16) it says nothing.
fn tell_of_a_long_drain(name: &str, handles: Vec<ReactorHandle>, grace: Duration, is_over: Receiver<()>) {
    let _current = handles[0].enter();
    // Beside the runtime's own: both see the signal, and that one goes on when this one is dropped.
    let Ok(signals) = Signals::new(&[SignalKind::Interrupt, SignalKind::Terminate]) else { return };
    let (came, has_come) = channel::<()>();
    let wait = async move {
        let _ = signals.next().await;
        drop(came);
    };
    let Ok(task) = handles[0].spawn(wait) else { return };
    task.detach();
    let name = name.to_owned();
    // A thread: the first reactor may end before the others. Not joined: it ends after a moment.
    std::thread::spawn(move || {
        // The signal, or the end of the reactor by it.
        let _ = has_come.recv();
        if is_over.recv_timeout(MOMENT) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        // What lingers holds no drain.
        let stats = handles.iter().map(ReactorHandle::stats);
        let busy: u64 = stats.map(|stats| stats.open.saturating_sub(stats.lingering)).sum();
        let (busy, limit) = (count(busy as usize, "connection"), grace.as_secs());
        say(format_args!("[{name}] draining {busy}, for {limit} s at most; Ctrl-C again to stop now"));
    });
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn one_is_not_many() {
        assert_eq!([0, 1, 2].map(|n| count(n, "reactor")), ["0 reactors", "1 reactor", "2 reactors"]);
    }
}
