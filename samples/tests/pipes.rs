//! The samples `pipe`, `stream` and `proxy` as programs.

#[allow(dead_code, reason = "other samples need more of it")]
mod common;

use common::{Sample, help};
use epoxide_tests_e2e::{Ending, Http, Peer, pattern};
use std::io::{BufRead, Read, Write};
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);
const PIPE: &str = env!("CARGO_BIN_EXE_pipe");
const STREAM: &str = env!("CARGO_BIN_EXE_stream");
const PROXY: &str = env!("CARGO_BIN_EXE_proxy");

/// Requests in one segment, byte by byte, and behind one another in pieces: one answer each; then the drain.
#[test]
fn requests_are_answered_however_they_are_cut() {
    for program in [PIPE, STREAM] {
        let sample = Sample::start(program, &["--body", "3000"]);
        let mut client = Http::connect(sample.addr);
        assert_eq!(client.get().unwrap().body.len(), 3000);
        client.send(&Http::GET.repeat(20)).unwrap();
        assert_eq!(client.responses(20, SOON).unwrap().len(), 20);
        client.peer().drip(Http::GET, 1, Duration::from_millis(1)).unwrap();
        assert_eq!(client.response(SOON).unwrap().status, 200);
        let (many, cut) = (Http::GET.repeat(7), Http::GET.len() * 3 + 5);
        client.send(&many[..cut]).unwrap();
        assert_eq!(client.responses(3, SOON).unwrap().len(), 3);
        client.send(&many[cut..]).unwrap();
        assert_eq!(client.responses(4, SOON).unwrap().len(), 4);
        // One request and the end in one segment: the answer still comes, once.
        let mut last = Http::connect(sample.addr);
        last.peer().send_with_fin(Http::GET).unwrap();
        let (answers, ending, left) = last.drain(SOON);
        assert_eq!((answers.len(), ending, left), (1, Ending::Eof, 0), "{program}");
        // The first client is idle: the drain ends it at once.
        assert!(sample.stop().contains(" 0 connections cut"));
        assert_eq!(client.peer().ending(SOON), Ending::Eof);
    }
}

#[test]
fn a_head_without_end_is_refused() {
    for program in [PIPE, STREAM] {
        let sample = Sample::start(program, &[]);
        let mut client = Http::connect(sample.addr);
        let _ = client.send(&[b'x'; 100_000]);
        assert_eq!(client.response(SOON).map(|answer| answer.status), Ok(431), "{program}");
        assert!(client.peer().ending(SOON).is_closed());
    }
}

/// An origin that reads to the end, then answers with what it read, backwards. One connection a call.
fn origin(listener: &TcpListener) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    let mut all = Vec::new();
    stream.read_to_end(&mut all)?;
    all.reverse();
    stream.write_all(&all)
}

/// A half-close goes through by itself, both ways, behind every byte; a reset goes through as a reset.
#[test]
fn the_relay_passes_each_end_on_by_itself() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = listener.local_addr().unwrap().to_string();
    let sample = Sample::start(PROXY, &["--to", &to]);
    let origins = std::thread::spawn(move || {
        origin(&listener).unwrap();
        // The second client resets, the third is reset.
        let (mut second, _) = listener.accept().unwrap();
        second.write_all(b"hello").unwrap();
        let broken = second.read_to_end(&mut Vec::new()).unwrap_err();
        let (third, _) = listener.accept().unwrap();
        drop(listener);
        (broken.kind(), third)
    });
    let mut first = Peer::connect(sample.addr);
    let body = pattern(3 << 20);
    first.send(&body).unwrap();
    first.half_close().unwrap();
    let (answer, ending) = first.read_to_end(SOON);
    assert!(answer.iter().rev().eq(&body) && ending == Ending::Eof, "{} bytes, {ending:?}", answer.len());

    let mut second = Peer::connect(sample.addr);
    assert_eq!(second.read_exactly(5, SOON).unwrap(), b"hello");
    second.reset();
    let mut third = Peer::connect(sample.addr);
    let (broken, third_origin) = origins.join().unwrap();
    assert_eq!(broken, std::io::ErrorKind::ConnectionReset);
    nix::sys::socket::setsockopt(
        &third_origin,
        nix::sys::socket::sockopt::Linger,
        &nix::libc::linger { l_onoff: 1, l_linger: 0 },
    )
    .unwrap();
    drop(third_origin);
    assert_eq!(third.ending(SOON), Ending::Reset);
    // Nobody listens there any more.
    assert_eq!(Peer::connect(sample.addr).ending(SOON), Ending::Reset);
    sample.stop();
}

#[test]
fn help_says_what_they_do() {
    assert!(help(PIPE).contains("pipe reader") && help(STREAM).contains("futures-io") && help(PROXY).contains("--to"));
}

/// A server behind that is away is told of once, and once again when it is back.
#[test]
fn the_relay_says_that_nobody_is_behind_it() {
    // Nobody else gets the port meanwhile: it is bound, and does not listen.
    let behind = nix::sys::socket::socket(
        nix::sys::socket::AddressFamily::Inet,
        nix::sys::socket::SockType::Stream,
        nix::sys::socket::SockFlag::SOCK_CLOEXEC,
        None,
    )
    .unwrap();
    nix::sys::socket::bind(behind.as_raw_fd(), &nix::sys::socket::SockaddrIn::new(127, 0, 0, 1, 0)).unwrap();
    let listener = TcpListener::from(behind);
    let to = listener.local_addr().unwrap().to_string();
    let mut sample = Sample::start_heard(PROXY, &["--to", &to]);
    let mut lines = sample.stderr().lines().map_while(Result::ok);
    for _ in 0..3 {
        assert_eq!(Peer::connect(sample.addr).ending(SOON), Ending::Reset);
    }
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(8).unwrap()).unwrap();
    let mut peer = Peer::connect(sample.addr);
    let (mut stream, _) = listener.accept().unwrap();
    stream.write_all(b"here").unwrap();
    assert_eq!(peer.read_exactly(4, SOON).unwrap(), b"here");
    let down = lines.next().expect("it says that nobody is there");
    assert!(down.starts_with("[proxy] ") && down.contains(&to) && down.contains("os error 111"), "{down}");
    assert_eq!(lines.next(), Some(format!("[proxy] {to} answers again")));
    drop((peer, stream));
    sample.stop();
}

#[test]
fn a_relay_to_nowhere_is_refused_at_the_start() {
    for to in ["nowhere", "http://127.0.0.1:80"] {
        let output = std::process::Command::new(PROXY).args(["--to", to]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let told = text.contains("--to") && text.contains(to) && text.contains("HOST:PORT");
        assert!(!output.status.success() && told, "{text}");
    }
}

/// A name without an address may have one later: the relay says so at the start, once, and turns clients away.
#[test]
fn a_relay_starts_without_the_address_of_its_name() {
    // RFC 6761 keeps it free.
    let mut sample = Sample::start_heard(PROXY, &["--to", "a-name.invalid:80"]);
    let mut lines = sample.stderr().lines().map_while(Result::ok);
    let told = lines.next().expect("it says that the name has no address");
    assert!(told.starts_with("[proxy] a-name.invalid:80: ") && told.contains("look"), "{told}");
    for _ in 0..2 {
        assert_eq!(Peer::connect(sample.addr).ending(SOON), Ending::Reset);
    }
    sample.stop();
    assert_eq!(lines.next(), None, "each outage is told of once");
}
