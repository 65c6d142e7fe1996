//! Connections made of std's sockets, and std's sockets made of connections.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use epoxide::{CloseReason, Connection, PostError};
use epoxide_tests_e2e::{Case, Server, block_within, echo, hold_reactor, tcp_pair, wait_until};

const SOON: Duration = Duration::from_secs(10);

fn server(case: &Case) -> Server {
    Server::start(case, |_| {})
}

fn ping(client: &mut (impl Read + Write)) {
    client.write_all(b"ping").unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
}

#[test]
fn blocking_sockets_become_connections() {
    let case = Case::start();
    let server = server(&case);
    let (tcp, mut tcp_client) = tcp_pair(SOON);
    let (unix, mut unix_client) = UnixStream::pair().unwrap();
    let here = server.reactor().spawn(async move { echo(Connection::from_std(tcp)?).await }).unwrap();
    let there = Connection::from_unix_on(&server.reactor(), unix).unwrap();
    let there = server.reactor().spawn(echo(there)).unwrap();
    ping(&mut tcp_client);
    unix_client.set_read_timeout(Some(SOON)).unwrap();
    ping(&mut unix_client);
    drop((tcp_client, unix_client));
    for task in [here, there] {
        block_within(task, SOON).unwrap().unwrap().unwrap();
    }
}

/// Used and dropped before the reactor has even heard of it: everything goes out, in order, and then the FIN.
#[test]
fn a_connection_works_before_the_reactor_knows_it() {
    let case = Case::start();
    let server = server(&case);
    let body = epoxide_tests_e2e::pattern(4_000_000);
    for _ in 0..10 {
        let (tcp, mut client) = tcp_pair(SOON);
        client.write_all(b"early").unwrap();
        let held = hold_reactor(&server.reactor());
        let mut connection = Connection::from_std_on(&server.reactor(), tcp).unwrap();
        connection.stage(&body).unwrap();
        assert_eq!(connection.try_flush().unwrap_err().kind(), ErrorKind::WouldBlock);
        drop(connection);
        held.release();
        let mut got = Vec::new();
        client.read_to_end(&mut got).expect("no reset");
        assert!(got == body);
    }
}

#[test]
fn a_stopped_reactor_gives_the_socket_back() {
    let case = Case::start();
    let server = server(&case);
    let reactor = server.reactor();
    server.stop(SOON).unwrap();
    let (tcp, mut client) = tcp_pair(SOON);
    let error = Connection::from_std_on(&reactor, tcp).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
    let refused = error.downcast::<PostError<TcpStream>>().expect("the payload is in the error");
    let mut tcp = refused.into_inner();
    tcp.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    assert_eq!(Connection::from_std(tcp).unwrap_err().kind(), ErrorKind::NotConnected);
}

/// What was received stays in the socket; close handles of the connection and the reactor's end do not reach it.
#[test]
fn a_connection_becomes_a_socket_again() {
    let case = Case::start();
    let server = server(&case);
    let (tcp, mut client) = tcp_pair(SOON);
    let mut connection = Connection::from_std_on(&server.reactor(), tcp).unwrap();
    block_within(connection.send_all(b"from the connection "), SOON).unwrap().unwrap();
    let closer = connection.close_handle();
    client.write_all(b"for the socket").unwrap();
    let mut tcp = connection.into_std().map_err(|(error, _)| error).unwrap();
    closer.reset();
    closer.close();
    assert!(wait_until(SOON, || server.stats().closed == 1), "the slot is freed at once");
    assert_eq!(server.stats().open, 0);
    server.stop(SOON).unwrap();

    tcp.set_nonblocking(false).unwrap();
    let mut got = [0; 14];
    tcp.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"for the socket");
    tcp.write_all(b"from the socket").unwrap();
    drop(tcp);
    let mut all = String::new();
    client.read_to_string(&mut all).unwrap();
    assert_eq!(all, "from the connection from the socket");
}

#[test]
fn a_unix_connection_becomes_a_socket_again_and_back() {
    let case = Case::start();
    let server = server(&case);
    let (mut unix, mut client) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    for _ in 0..100 {
        let connection = Connection::from_unix_on(&server.reactor(), unix).unwrap();
        let (error, mut connection) = connection.into_std().expect_err("it is no TCP connection");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        block_within(connection.send_all(b"x"), SOON).unwrap().unwrap();
        client.read_exact(&mut [0]).unwrap();
        unix = connection.into_unix().map_err(|(error, _)| error).unwrap();
    }
}

/// Staged or queued bytes would be lost: the connection comes back, and goes on.
#[test]
fn a_connection_with_bytes_on_their_way_stays_one() {
    let case = Case::start();
    let server = server(&case);
    let (tcp, mut client) = tcp_pair(SOON);
    let mut connection = Connection::from_std_on(&server.reactor(), tcp).unwrap();
    connection.stage(b"staged").unwrap();
    let (error, mut connection) = connection.into_std().expect_err("bytes are staged");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    block_within(connection.flush(), SOON).unwrap().unwrap();

    let body = vec![9; 8_000_000];
    connection.stage(&body).unwrap();
    assert_eq!(connection.try_flush().unwrap_err().kind(), ErrorKind::WouldBlock);
    let (error, mut connection) = connection.into_std().expect_err("bytes are queued");
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    let mut got = vec![0; 6 + body.len()];
    client.read_exact(&mut got).unwrap();
    block_within(connection.flush(), SOON).unwrap().unwrap();
    assert!(connection.into_std().is_ok());
}

/// What is no unix socket, and what is over, stays a connection.
#[test]
fn a_connection_that_cannot_become_a_socket_comes_back() {
    let case = Case::start();
    let server = server(&case);
    let (tcp, mut client) = tcp_pair(SOON);
    let connection = Connection::from_std_on(&server.reactor(), tcp).unwrap();
    let (error, mut connection) = connection.into_unix().expect_err("it is a TCP connection");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    block_within(connection.send_all(b"x"), SOON).unwrap().unwrap();
    client.read_exact(&mut [0]).unwrap();
    connection.close_handle().reset();
    let (error, connection) = connection.into_std().expect_err("it is over");
    assert_eq!(CloseReason::of(&error), Some(CloseReason::Local), "{error}");
    assert_eq!(connection.close_reason(), Some(CloseReason::Local));
    // On a thread without a runtime there is no reactor for it.
    let (unix, _other) = UnixStream::pair().unwrap();
    assert_eq!(Connection::from_unix(unix).unwrap_err().kind(), ErrorKind::NotConnected);
}
