//! Ctrl-C on a sample: the first one drains, a second one aborts (G9); also where nobody reads what it prints. State: none. Thread class: any thread.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{Sample, help};

const RAW: &str = env!("CARGO_BIN_EXE_raw");

/// The drain waits for the request that has begun; idle clients get their FIN and the port is closed meanwhile. A second
/// signal does not wait.
#[test]
fn a_second_signal_does_not_wait_for_what_is_busy() {
    assert!(help(RAW).contains("--addr"));
    let mut raw = Sample::start(RAW, &[]);
    assert!(raw.first_line.contains(" 2 reactors on "), "{}", raw.first_line);
    assert!(raw.first_line.contains("Ctrl-C drains"), "{}", raw.first_line);
    let mut busy = raw.connect();
    busy.write_all(b"GET / HTTP/1.1\r\nHost: half").unwrap();
    let mut idle = raw.connect();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: whole\r\n\r\n").unwrap();
    let mut head = [0; 12];
    idle.read_exact(&mut head).unwrap();
    assert!(head.ends_with(b"200"), "{head:?}");
    let addr = raw.addr;
    raw.interrupt();
    idle.read_to_end(&mut Vec::new()).expect("the drain ends what is idle with a FIN");
    let begun = Instant::now();
    while TcpStream::connect(addr).is_ok() {
        assert!(begun.elapsed() < Duration::from_secs(10), "the drain does not close the port");
    }
    let told = raw.line();
    assert!(told.contains("draining 1 connection, ") && told.contains("Ctrl-C again"), "{told}");
    // The busy one has most of its 30 s left.
    let printed = raw.stop();
    assert!(printed.contains(" 1 connection cut"), "{printed}");
    let ended = busy.read(&mut [0]);
    assert!(ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(20), "it waited for the busy one");
}

/// As in `raw | head -c1`: it still answers, drains, and has failed at nothing. What it prints at its end
/// meets a pipe whose reader is gone.
#[test]
fn it_stops_as_ever_when_nobody_reads_what_it_prints() {
    let mut raw = Sample::start_heard(RAW, &[]);
    let (addr, mut complaints) = (raw.addr, raw.stderr());
    let mut idle = raw.connect();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: whole\r\n\r\n").unwrap();
    idle.read_exact(&mut [0; 12]).unwrap();
    let status = raw.stop_unheard();
    let mut said = String::new();
    complaints.read_to_string(&mut said).unwrap();
    assert!(status.success() && said.is_empty(), "{status}: {said}");
    assert!(TcpStream::connect(addr).is_err(), "it has ended");
}
