//! The threads that serve the whole process, for names and for timers: they begin when somebody first needs them, and
//! inherit no pin from whoever that is. A file of its own: nobody else in the process is to have started them.

use std::fs;
use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::time::Duration;

use epoxide::time;
use epoxide_tests_e2e::{Case, Server, block_within, loopback, wait_until};
use nix::sched::{CpuSet, sched_getaffinity};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(10);

/// What proc_pid_status(5) says of the thread in this directory.
fn cpus_in(task: &str) -> Option<String> {
    let status = fs::read_to_string(format!("{task}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed:")).map(|cpus| cpus.trim().to_owned())
}

/// The CPUs of the threads of this name.
fn cpus_of(name: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path().display().to_string());
    let named = tasks.filter(|task| fs::read_to_string(format!("{task}/comm")).is_ok_and(|comm| comm.trim() == name));
    named.filter_map(|task| cpus_in(&task)).collect()
}

#[test]
fn they_do_not_inherit_the_pin_of_the_reactor_that_starts_them() {
    let case = Case::start();
    let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let cpus: Vec<usize> = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap()).collect();
    let last = *cpus.last().unwrap();
    let all = cpus_in("/proc/thread-self").unwrap();
    let server = Server::start(&case, |b| {
        b.pin(&[last]);
    });
    let listener = TcpListener::bind(loopback()).unwrap();
    let port = listener.local_addr().unwrap().port();
    let before = [cpus_of("epoxide-names"), cpus_of("epoxide-timer")].concat();
    assert!(before.is_empty(), "vacuity: they run already: {before:?}");
    let (sent, looks) = channel();
    let on_reactor = server.reactor().spawn(async move {
        drop(epoxide::connect(("localhost", port)).await.unwrap());
        // The reactor has timers of its own; a thread that it starts is as pinned, and has none.
        let sleeper = std::thread::spawn(|| block_within(time::sleep(Duration::from_millis(1)), SOON));
        sleeper.join().unwrap().expect("the timer fires");
        let _ = sent.send([
            vec![cpus_in("/proc/thread-self").unwrap()],
            cpus_of("epoxide-names"),
            cpus_of("epoxide-timer"),
        ]);
    });
    drop(on_reactor.unwrap());
    let [here, names, timer] = looks.recv_timeout(SOON).unwrap();
    assert_eq!(here != [all.clone()], cpus.len() > 1, "control: the reactor is pinned");
    assert!(!names.is_empty() && names.iter().all(|cpus| *cpus == all), "{names:?}, the process has {all}");
    assert_eq!(timer, [all]);
    assert!(wait_until(SOON, || server.stats().tasks == 0));
}
