//! Nobody reads the standard error any more: what the runtime has to say is lost, and nothing else is.
//!
//! Standard error is the process's, so the test runs in a child: this binary again, with a name in the environment.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Duration;

use epoxide::{Listener, time};
use epoxide_tests_e2e::{FdLimit, loopback};

const CHILD: &str = "EPOXIDE_BROKEN_STDERR";
const SOON: Duration = Duration::from_secs(30);

/// A `Listener` that finds no descriptor says so, once an episode.
#[test]
fn an_accept_that_starves_with_a_broken_standard_error_goes_on() {
    if std::env::var_os(CHILD).is_some() {
        return as_a_child();
    }
    let (reader, writer) = std::io::pipe().unwrap();
    // With no reader a write is EPIPE, on which eprintln! panics; on a closed descriptor it does not.
    drop(reader);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "an_accept_that_starves_with_a_broken_standard_error_goes_on", "--nocapture"]);
    let output = child.env(CHILD, "1").stderr(Stdio::from(writer)).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && text.contains("the child came through"), "{}\n{text}", output.status);
}

fn as_a_child() {
    epoxide::block_on(async {
        let listener = Listener::bind(loopback()).await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap().ip().unwrap()).unwrap();
        let limit = FdLimit::lower_to_free(0);
        let reactor = epoxide::ReactorHandle::current().unwrap();
        assert!(time::timeout(Duration::from_millis(100), listener.accept()).await.is_err(), "none is left for it");
        assert_eq!(reactor.stats().accept_starved, 1, "it has nothing to say");
        drop(limit);
        time::timeout(SOON, listener.accept()).await.expect("it tries again").unwrap();
    });
    println!("the child came through");
}
