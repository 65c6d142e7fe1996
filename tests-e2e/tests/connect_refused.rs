//! Connects that cannot be: the error says what was tried, and what of it was in the way.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, ToSocketAddrs};
use std::time::Duration;

use epoxide::{Address, Connect, ConnectOptions};
use epoxide_tests_e2e::{Case, Server, block_within, loopback};

fn failure(connect: Connect) -> io::Error {
    block_within(connect, Duration::from_secs(10)).expect("a connect settles").expect_err("nobody is there")
}

/// A bound socket reaches one family only, and an address that nothing listens under may have been a connection's own.
#[test]
fn addresses_that_cannot_be_reached_are_errors() {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let bound = ConnectOptions { local_addr: Some(([127, 0, 0, 1], 0).into()), ..ConnectOptions::default() };
    let error = failure(server.reactor().connect_with("[::1]:80", bound));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("[::1]:80") && error.to_string().contains("127.0.0.1:0"), "{error}");
    // One end of a socketpair has no name.
    let (unnamed, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let error = failure(server.reactor().connect(Address::Unix(unnamed.local_addr().unwrap())));
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("unnamed"), "{error}");
    // Without a timeout, and with the address of another connection: the kernel alone decides.
    let closed = TcpListener::bind(loopback()).and_then(|listener| listener.local_addr()).unwrap();
    let unlimited = ConnectOptions { timeout: Duration::ZERO, ..ConnectOptions::default() };
    let error = failure(server.reactor().connect_with(Address::Ip(closed), unlimited));
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
}

/// Of a name with several addresses the error says how many were tried.
#[test]
fn a_name_that_nobody_answers_under_says_so() {
    let case = Case::start();
    let server = Server::start(&case, |_| {});
    let port = TcpListener::bind(loopback()).and_then(|listener| listener.local_addr()).unwrap().port();
    let addrs: HashSet<_> = ("localhost", port).to_socket_addrs().unwrap().collect();
    let error = failure(server.reactor().connect(("localhost", port)));
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    let text = error.to_string();
    let several = format!("localhost:{port}: none of {} addresses", addrs.len());
    assert_eq!(text.contains(&several), addrs.len() > 1, "{text}");
    assert!(addrs.iter().any(|addr| text.contains(&addr.to_string())), "{text}");
}
