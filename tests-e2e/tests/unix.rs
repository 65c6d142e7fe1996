//! Unix sockets: listeners by path and by abstract name, and connections over them.

use std::fs;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use epoxide::{ConnectOptions, Connection, ListenAddr, ListenOptions};
use epoxide_tests_e2e::{Case, Server, block_within, echo, loopback, wait_until};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

const SOON: Duration = Duration::from_secs(10);

/// Starts the process-wide timer thread, which stays: it is no test's leak.
fn start() -> Case {
    block_within(epoxide::time::sleep(Duration::from_millis(1)), SOON).expect("a timer fires");
    Case::start()
}

/// A directory of its own, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("epoxide-{}", unique()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self) -> PathBuf {
        self.0.join("socket")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

fn server(case: &Case, path: &Path, reactors: usize) -> Server {
    let path = path.to_owned();
    Server::start(case, |b| {
        b.reactors(reactors);
        b.listen_unix(path, echo);
    })
}

fn client(path: &Path) -> UnixStream {
    let client = UnixStream::connect(path).unwrap();
    client.set_read_timeout(Some(SOON)).unwrap();
    client
}

fn ping(client: &mut UnixStream) {
    client.write_all(b"ping").unwrap();
    let mut answer = [0; 4];
    client.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
}

/// One socket in every reactor: all clients are served, whoever wakes.
#[test]
fn clients_of_a_shared_path_are_all_served() {
    let case = start();
    let scratch = Scratch::new();
    let server = server(&case, &scratch.path(), 3);
    assert!(server.runtime().local_addrs().is_empty());
    assert_eq!(server.runtime().addresses()[0].path(), Some(&*scratch.path()));
    let mut clients: Vec<_> = (0..60).map(|_| client(&scratch.path())).collect();
    for _ in 0..3 {
        clients.iter_mut().for_each(ping);
    }
    assert_eq!(server.stats().accepted, 60);
}

#[test]
fn the_path_goes_when_the_server_stops() {
    let case = start();
    let scratch = Scratch::new();
    for _ in 0..3 {
        let server = server(&case, &scratch.path(), 2);
        ping(&mut client(&scratch.path()));
        assert!(server.wait_quiet());
        server.stop(SOON).unwrap();
        assert!(!scratch.path().exists());
    }
}

#[test]
fn a_stale_path_is_replaced_and_a_live_one_is_an_error() {
    let case = start();
    let scratch = Scratch::new();
    drop(UnixListener::bind(scratch.path()).unwrap());
    assert!(scratch.path().exists(), "control: a dead server's path stays");
    let first = server(&case, &scratch.path(), 1);
    let path = scratch.path();
    let second = Server::try_start(&case, |b| {
        b.listen_unix(&path, echo);
    });
    let error = second.expect_err("somebody listens there");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    assert!(error.to_string().contains(scratch.path().to_str().unwrap()), "{error}");
    ping(&mut client(&scratch.path()));
    drop(first);

    fs::write(scratch.path(), "not a socket").unwrap();
    let error = Server::try_start(&case, |b| {
        b.listen_unix(&path, echo);
    });
    assert_eq!(error.expect_err("a file is in the way").kind(), ErrorKind::AddrInUse);
    assert_eq!(fs::read(scratch.path()).unwrap(), b"not a socket");
}

#[test]
fn a_start_that_fails_later_leaves_no_path() {
    let case = start();
    let scratch = Scratch::new();
    let path = scratch.path();
    let failed = Server::try_start(&case, |b| {
        b.listen_unix(&path, echo);
        b.listen("192.0.2.1:1", echo);
    });
    assert_eq!(failed.expect_err("TEST-NET-1 is nobody's").kind(), ErrorKind::AddrNotAvailable);
    assert!(!scratch.path().exists());
}

#[test]
fn the_mode_is_what_was_asked_for() {
    let case = start();
    let scratch = Scratch::new();
    let options = ListenOptions { mode: Some(0o600), ..ListenOptions::default() };
    let addr = ListenAddr::new(scratch.path()).options(options);
    let _server = Server::start(&case, |b| {
        b.listen(addr, echo);
    });
    assert_eq!(fs::metadata(scratch.path()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn abstract_names_work_in_both_directions() {
    let case = start();
    let name = format!("epoxide-{}", unique());
    let text = format!("unix:@{name}");
    let server = Server::start(&case, |b| {
        b.listen(&text, echo);
    });
    assert_eq!(server.runtime().addresses()[0].to_string(), text);
    let addr = SocketAddr::from_abstract_name(&name).unwrap();
    ping(&mut UnixStream::connect_addr(&addr).unwrap());
    let ours = block_within(server.reactor().connect(&text), SOON).unwrap().unwrap();
    block_within(ping_over(ours), SOON).unwrap().unwrap();
    let taken = Server::try_start(&case, |b| {
        b.listen_unix(format!("@{name}"), echo);
    });
    assert_eq!(taken.expect_err("the name is taken").kind(), ErrorKind::AddrInUse);
}

async fn ping_over(mut connection: Connection) -> io::Result<()> {
    connection.send_all(b"ping").await?;
    let mut got = Vec::new();
    while got.len() < 4 {
        got.extend_from_slice(&connection.read().await?.ok_or(ErrorKind::UnexpectedEof)?);
    }
    assert_eq!(got, b"ping");
    Ok(())
}

/// More than the socket holds, in both directions at once: flushes park and go on.
#[test]
fn large_bodies_pass_over_a_unix_connection() {
    let case = start();
    let scratch = Scratch::new();
    let server = server(&case, &scratch.path(), 2);
    let body = epoxide_tests_e2e::pattern(3_000_000);
    let expected = body.clone();
    let path = scratch.path();
    let exchange = async move {
        let (mut read, mut write) = epoxide::connect(path).await?.into_split();
        let sending = epoxide::spawn_local(async move {
            write.send_all(&body).await?;
            write.shutdown().await
        });
        let mut got = Vec::new();
        while let Some(data) = read.read().await? {
            got.extend_from_slice(&data);
        }
        sending.await.map_err(|error| io::Error::other(error.to_string()))??;
        Ok::<_, io::Error>(got)
    };
    let got = server.reactor().spawn_with(|| exchange).unwrap();
    assert!(block_within(got, SOON).unwrap().unwrap().unwrap() == expected);
}

#[test]
fn failures_say_what_and_where() {
    let case = start();
    let scratch = Scratch::new();
    let server = Server::start(&case, |_| {});
    let fails = |path: &Path| {
        let error = block_within(server.reactor().connect(path), SOON).unwrap().expect_err("no connection");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        error
    };
    assert_eq!(fails(&scratch.path()).kind(), ErrorKind::NotFound);
    drop(UnixListener::bind(scratch.path()).unwrap());
    assert_eq!(fails(&scratch.path()).kind(), ErrorKind::ConnectionRefused);
    assert_eq!(fails(&scratch.0.join("x".repeat(200))).kind(), ErrorKind::InvalidInput);
}

/// What a unix socket has is set, and what it has not is refused.
#[test]
fn options_of_a_connect_are_not_passed_over() {
    let case = start();
    let scratch = Scratch::new();
    let server = server(&case, &scratch.path(), 1);
    let connect = |options| block_within(server.reactor().connect_with(scratch.path(), options), SOON).unwrap();
    let sizes =
        ConnectOptions { recv_buffer_size: Some(10_000), send_buffer_size: Some(20_000), ..ConnectOptions::default() };
    let connection = connect(sizes).unwrap();
    let set = (connection.recv_buffer_size().unwrap(), connection.send_buffer_size().unwrap());
    assert_eq!(set, (20_000, 40_000), "the kernel doubles them");
    let local_addr = Some(loopback());
    let refused = connect(ConnectOptions { local_addr, ..ConnectOptions::default() }).expect_err("no IP address fits");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("127.0.0.1:0"), "{refused}");
}

/// A full backlog is EAGAIN, which is neither a connection nor one in progress.
#[test]
fn a_full_backlog_is_an_error_at_once() {
    let case = start();
    let scratch = Scratch::new();
    let listener = UnixListener::bind(scratch.path()).unwrap();
    // Calling listen(2) again changes the backlog.
    nix::sys::socket::listen(&listener.as_fd(), nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let mut server = Server::start(&case, |_| {});
    server.abandon_connections();
    let mut made = Vec::new();
    let error = (0..64).find_map(|_| {
        match block_within(server.reactor().connect(scratch.path()), SOON).expect("a connect settles") {
            Ok(connection) => {
                made.push(connection);
                None
            }
            Err(error) => Some(error),
        }
    });
    let error = error.expect("the backlog fills");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains(&format!("os error {}", libc::EAGAIN)), "{error}");
    assert!(!made.is_empty(), "vacuity: the first was taken");
}

/// Descriptors that come with data cut a recv short although more is there, and no edge follows: a reader that took a
/// short recv for the end would wait for ever.
#[test]
fn data_with_descriptors_does_not_hang_the_reader() {
    let case = start();
    let scratch = Scratch::new();
    let path = scratch.path();
    // Answers 4 bytes, then 17, and nothing between: an answer that the client takes would be an edge of its own.
    let server = Server::start(&case, |b| {
        b.listen_unix(path, |mut connection: Connection| async move {
            for size in [4, 17] {
                let mut got = Vec::new();
                while got.len() < size {
                    got.extend_from_slice(&connection.read().await?.ok_or(ErrorKind::UnexpectedEof)?);
                }
                connection.send_all(&got).await?;
            }
            connection.read().await.map(drop)
        });
    });
    for round in 0..50 {
        let mut client = client(&scratch.path());
        // Its reader is parked: what comes now is one edge.
        ping(&mut client);
        let held = epoxide_tests_e2e::hold_reactor(&server.reactor());
        client.write_all(b"before ").unwrap();
        let fds = [client.as_raw_fd()];
        let rights = [ControlMessage::ScmRights(&fds)];
        let sent = sendmsg::<()>(client.as_raw_fd(), &[IoSlice::new(b"with ")], &rights, MsgFlags::empty(), None);
        assert_eq!(sent, Ok(5));
        client.write_all(b"after").unwrap();
        held.release();
        let mut answer = [0; 17];
        client.read_exact(&mut answer).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(&answer, b"before with after");
    }
}

/// A ready-made listener keeps its path: whoever made it removes it.
#[test]
fn a_ready_made_listener_serves_and_keeps_its_path() {
    let case = start();
    let scratch = Scratch::new();
    let listener = UnixListener::bind(scratch.path()).unwrap();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen_on_unix(listener, echo);
    });
    ping(&mut client(&scratch.path()));
    assert!(server.wait_quiet());
    server.stop(SOON).unwrap();
    assert!(scratch.path().exists());
}

#[test]
fn the_peer_s_end_is_seen_and_the_connection_closes() {
    let case = start();
    let scratch = Scratch::new();
    let server = server(&case, &scratch.path(), 1);
    let mut leaving = client(&scratch.path());
    ping(&mut leaving);
    leaving.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(leaving.read(&mut [0; 8]).unwrap(), 0);
    drop(leaving);
    assert!(wait_until(SOON, || server.stats().closed == 1));
}
