//! Descriptors run out while a runtime is built: an error that names the limit, not a panic, and nothing is left behind.
//!
//! The limit is the process's, so each case runs in a child: this binary again, with the case's name in the environment.

use std::io::ErrorKind;
use std::process::Command;

use epoxide::{Reactor, Runtime};
use epoxide_tests_e2e::{Http, free_fd_limit, http_ok, loopback, our_fds};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const CASE: &str = "EPOXIDE_DESCRIPTOR_CASE";

/// Lowers the soft AND the hard limit, so that the runtime cannot raise it again.
fn leave_free(free: u64) {
    let limit = free_fd_limit(free).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, limit, limit).unwrap();
}

/// What the child does with the limit in force.
fn child(case: &str) {
    let before = our_fds("self").unwrap();
    match case {
        // 256 reactors need 512 descriptors without a listener.
        "many_reactors" => {
            leave_free(300);
            let error = Runtime::builder().reactors(256).build().map(|_| ()).expect_err("300 are too few");
            says_the_limit(&error, 256);
        }
        // Some reactors run already when a later one finds no epoll descriptor.
        "late" => {
            leave_free(6);
            let error = Runtime::builder().reactors(4).build().map(|_| ()).expect_err("6 are too few");
            says_the_limit(&error, 4);
        }
        "listeners" => {
            leave_free(3);
            let mut builder = Runtime::builder();
            builder.reactors(2);
            for _ in 0..4 {
                builder.listen(loopback(), http_ok);
            }
            says_the_limit(&builder.build().map(|_| ()).expect_err("3 are too few"), 2);
        }
        "none_at_all" => {
            leave_free(0);
            says_the_limit(&Reactor::builder().build().map(|_| ()).expect_err("none is left"), 1);
        }
        // The control: exactly what is needed, and the server serves as long as there is one for a client.
        "enough" => {
            leave_free(6 + 2);
            let mut builder = Runtime::builder();
            builder.reactors(2).listen(loopback(), http_ok);
            let runtime = builder.build().expect("2 x (epoll, eventfd, listener) is what it takes");
            assert_eq!(Http::connect(runtime.local_addrs()[0]).get().map(|r| r.status), Ok(200));
        }
        // The soft limit alone is lowered: whoever builds raises it again.
        "raised" => {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            let build: [fn(); 2] = [
                || drop(Runtime::builder().reactors(1).build().expect("20 are enough")),
                || drop(Reactor::builder().build().expect("20 are enough")),
            ];
            for build in build {
                setrlimit(Resource::RLIMIT_NOFILE, free_fd_limit(20).unwrap(), hard).unwrap();
                build();
                assert_eq!(getrlimit(Resource::RLIMIT_NOFILE).unwrap(), (hard, hard));
            }
        }
        other => panic!("no such case: {other}"),
    }
    let after = our_fds("self");
    assert_eq!(after.unwrap_or_else(|_| before.clone()), before, "descriptors were left behind");
    println!("the child came through");
}

fn says_the_limit(error: &std::io::Error, reactors: usize) {
    let text = error.to_string();
    for word in ["RLIMIT_NOFILE", &format!("{reactors} reactors"), "os error 24"] {
        assert!(text.contains(word), "'{word}' is not in: {text}");
    }
    assert_ne!(error.kind(), ErrorKind::Other, "the kind of EMFILE is lost: {error:?}");
}

/// The child's entry: nothing unless a parent asks.
#[test]
fn as_a_child() {
    if let Ok(case) = std::env::var(CASE) {
        child(&case);
    }
}

fn run(case: &str) {
    let this = std::env::current_exe().unwrap();
    let output = Command::new(this).args(["--exact", "as_a_child", "--nocapture"]).env(CASE, case).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("the child came through"), "{case}: {}\n{text}", output.status);
}

#[test]
fn many_reactors_and_few_descriptors_are_an_error_that_names_the_limit() {
    run("many_reactors");
}

#[test]
fn running_out_after_some_reactors_started_undoes_them() {
    run("late");
}

#[test]
fn listeners_that_find_no_descriptor_name_the_limit() {
    run("listeners");
}

#[test]
fn a_single_reactor_without_a_descriptor_names_the_limit() {
    run("none_at_all");
}

#[test]
fn exactly_enough_descriptors_start_and_serve() {
    run("enough");
}

#[test]
fn the_soft_limit_is_raised_to_the_hard_one() {
    run("raised");
}
