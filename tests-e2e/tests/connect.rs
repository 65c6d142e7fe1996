//! Outbound connections: from every kind of thread, to every kind of answer, given up, timed out, and racing a stop.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use epoxide::{Connect, ConnectAddr, ConnectOptions, Connection, Reactor, ReactorConfig, ReactorHandle, Runtime};
use epoxide_tests_e2e::{Case, Server, block_within, echo, free_fd_limit, loopback, poll_once, stage, wait_until};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, connect, getsockname, listen, setsockopt,
    socket, sockopt,
};

const SOON: Duration = Duration::from_secs(10);

/// Starts the process-wide timer thread, which stays: it is no test's leak.
fn start() -> Case {
    block_within(epoxide::time::sleep(Duration::from_millis(1)), SOON).expect("a timer fires");
    Case::start()
}

fn outbound(case: &Case, config: ReactorConfig) -> Server {
    Server::start(case, |b| {
        b.config(config);
    })
}

/// An address that answers no SYN: a listener whose queue is full.
struct Stuck {
    addr: SocketAddr,
    _sockets: Vec<OwnedFd>,
}

impl Stuck {
    fn new() -> Self {
        let tcp = || socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let listener = tcp();
        bind(listener.as_raw_fd(), &SockaddrStorage::from(loopback())).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let addr: SockaddrStorage = getsockname(listener.as_raw_fd()).unwrap();
        let addr = SocketAddr::from(*addr.as_sockaddr_in().unwrap());
        let filler = tcp();
        connect(filler.as_raw_fd(), &SockaddrStorage::from(addr)).unwrap();
        Self { addr, _sockets: vec![listener, filler] }
    }
}

async fn ping(mut connection: Connection) -> io::Result<()> {
    stage(&mut connection, b"ping")?;
    connection.flush().await?;
    let mut got = Vec::new();
    while got.len() < 4 {
        let data = connection.read().await?.ok_or(ErrorKind::UnexpectedEof)?;
        got.extend_from_slice(&data);
    }
    assert_eq!(got, b"ping");
    Ok(())
}

fn settle(connect: Connect) -> io::Result<Connection> {
    block_within(connect, SOON).expect("a connect settles")
}

fn failure(connect: Connect) -> io::Error {
    settle(connect).expect_err("nobody is there to connect to")
}

/// From a task, from a plain thread by a handle, on a temporary reactor, and from a task of another reactor.
#[test]
fn every_kind_of_thread_connects() {
    let case = start();
    let server = Server::start(&case, |b| {
        b.reactors(2);
        b.listen(loopback(), echo);
    });
    let addr = server.addr();
    let from_task = server.reactor().spawn(async move { ping(epoxide::connect(addr).await?).await }).unwrap();
    block_within(from_task, SOON).unwrap().unwrap().unwrap();

    let plain = settle(server.reactor().connect(addr)).unwrap();
    assert_eq!(plain.peer_addr().unwrap(), addr);
    assert_eq!(plain.reactor(), server.reactor());
    assert_eq!(plain.listener(), epoxide::ListenerId::OUTBOUND);
    assert!(plain.nodelay().unwrap());
    block_within(ping(plain), SOON).unwrap().unwrap();

    epoxide::block_on(async { ping(epoxide::connect(addr.to_string()).await?).await }).unwrap();

    let [one, other] = &server.runtime().handles()[..] else { panic!("two reactors") };
    let home = one.clone();
    let across = other.spawn(async move {
        let connection = home.connect(addr).await?;
        assert_eq!(connection.reactor(), home);
        ping(connection).await
    });
    block_within(across.unwrap(), SOON).unwrap().unwrap().unwrap();
    assert_eq!(server.stats().connected, 3);
}

#[test]
fn many_at_a_time_are_all_served() {
    let case = start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let addr = server.addr();
    let tasks: Vec<_> = (0..300)
        .map(|_| server.reactor().spawn(async move { ping(epoxide::connect(addr).await?).await }).unwrap())
        .collect();
    for task in tasks {
        block_within(task, SOON).unwrap().unwrap().unwrap();
    }
}

/// Each with the errno that says why and the address in the text, and nothing stays in the table.
#[test]
fn failures_say_what_and_where() {
    let case = start();
    let server = outbound(&case, ReactorConfig::default());
    let reactor = server.reactor();
    // Bound and not listening: the port stays closed for the length of the test.
    let holder = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(holder.as_raw_fd(), &SockaddrStorage::from(loopback())).unwrap();
    let closed: SockaddrStorage = getsockname(holder.as_raw_fd()).unwrap();
    let closed = SocketAddr::from(*closed.as_sockaddr_in().unwrap());
    // TCP to a broadcast address is refused by the kernel itself; TEST-NET-1 (RFC 5737) is nobody's.
    let broadcast = SocketAddr::from(([255, 255, 255, 255], 9));
    let nobody = ConnectOptions { local_addr: Some(([192, 0, 2, 1], 0).into()), ..ConnectOptions::default() };
    let checks = [
        (ConnectAddr::new(closed), ErrorKind::ConnectionRefused, closed.to_string(), libc::ECONNREFUSED),
        (ConnectAddr::new(broadcast), ErrorKind::NetworkUnreachable, broadcast.to_string(), libc::ENETUNREACH),
        (
            ConnectAddr::new(closed).options(nobody),
            ErrorKind::AddrNotAvailable,
            format!("{closed} from 192.0.2.1:0"),
            libc::EADDRNOTAVAIL,
        ),
    ];
    for (addr, kind, shown, errno) in checks {
        for _ in 0..20 {
            let error = failure(reactor.connect(addr.clone()));
            let text = error.to_string();
            assert_eq!(error.kind(), kind, "{text}");
            assert!(text.contains(&shown) && text.contains(&format!("os error {errno}")), "{text}");
        }
    }
    assert!(server.wait_quiet());
    assert_eq!(server.stats().connected, 0);
}

#[test]
fn addresses_that_are_none_are_errors() {
    let case = start();
    let server = outbound(&case, ReactorConfig::default());
    for text in ["no port", "::1:80", "unix:", "127.0.0.1:65536"] {
        let error = failure(server.reactor().connect(text));
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    let nowhere = failure(epoxide::connect("127.0.0.1:1"));
    assert_eq!(nowhere.kind(), ErrorKind::NotConnected);
    assert!(nowhere.to_string().contains("ReactorHandle::connect"), "{nowhere}");
}

/// The name has an address of each family perhaps; the listener has one.
#[test]
fn a_name_is_looked_up_and_connected_to() {
    let case = start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let port = server.addr().port();
    let connection = settle(server.reactor().connect(("localhost", port))).unwrap();
    assert_eq!(connection.peer_addr().unwrap(), server.addr());
    block_within(ping(connection), SOON).unwrap().unwrap();

    // RFC 6761: nobody has a name under "invalid".
    let options = ConnectOptions { timeout: SOON, ..ConnectOptions::default() };
    let error = failure(server.reactor().connect_with("nobody.invalid:80", options));
    assert!(error.to_string().contains("nobody.invalid"), "{error}");
}

#[test]
fn without_descriptors_a_connect_fails_and_later_ones_work() {
    let case = start();
    let server = Server::start(&case, |b| {
        b.listen(loopback(), echo);
    });
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, free_fd_limit(0).unwrap(), hard).unwrap();
    let result = settle(server.reactor().connect(server.addr()));
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
    let error = result.expect_err("no descriptor is to be had");
    let text = error.to_string();
    assert!(text.contains(&server.addr().to_string()), "{text}");
    assert!(text.contains(&format!("os error {}", libc::EMFILE)), "{text}");
    let connection = settle(server.reactor().connect(server.addr())).unwrap();
    block_within(ping(connection), SOON).unwrap().unwrap();
}

#[test]
fn an_undecided_connect_times_out() {
    let case = start();
    let stuck = Stuck::new();
    let server = outbound(&case, ReactorConfig::default());
    let options = ConnectOptions { timeout: Duration::from_millis(150), ..ConnectOptions::default() };
    let error = failure(server.reactor().connect_with(stuck.addr, options));
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains(&stuck.addr.to_string()), "{error}");
    assert!(server.wait_quiet(), "the socket is closed");
}

/// The send clock is for flushes: it does not end a connect that is within its own time.
#[test]
fn the_send_clock_leaves_a_connect_alone() {
    let case = start();
    let stuck = Stuck::new();
    let config = ReactorConfig { send_timeout: Duration::from_millis(100), ..ReactorConfig::default() };
    let server = outbound(&case, config);
    let options = ConnectOptions { timeout: Duration::from_millis(900), ..ConnectOptions::default() };
    let error = failure(server.reactor().connect_with(stuck.addr, options));
    assert!(error.to_string().contains("timed out"), "{error}");
    assert_eq!(server.stats().timeouts, 0);
}

/// Dropped before its first poll, before the reactor knows it, and while it waits.
#[test]
fn a_dropped_connect_closes_its_socket() {
    let case = start();
    let stuck = Stuck::new();
    let server = outbound(&case, ReactorConfig::default());
    drop(server.reactor().connect(stuck.addr));
    assert_eq!(server.stats().adopted, 0);

    let parker = epoxide_tests_e2e::Parker::new();
    let held = epoxide_tests_e2e::hold_reactor(&server.reactor());
    let mut early = Box::pin(server.reactor().connect(stuck.addr));
    assert!(poll_once(early.as_mut(), &parker).is_pending());
    drop(early);
    held.release();
    assert!(wait_until(SOON, || server.stats().adopted == 1 && server.stats().closed == 1));

    let mut waiting = Box::pin(server.reactor().connect(stuck.addr));
    assert!(poll_once(waiting.as_mut(), &parker).is_pending());
    assert!(wait_until(SOON, || server.stats().open == 1), "vacuity: the reactor knows it");
    drop(waiting);
    assert!(server.wait_quiet());
}

#[test]
fn a_stop_settles_connects_that_wait() {
    let case = start();
    let stuck = Stuck::new();
    let mut server = outbound(&case, ReactorConfig::default());
    server.abandon_connections();
    let reactor = server.reactor();
    let parker = epoxide_tests_e2e::Parker::new();
    let mut waiting: Vec<_> = (0..8).map(|_| Box::pin(reactor.connect(stuck.addr))).collect();
    for connect in &mut waiting {
        assert!(poll_once(connect.as_mut(), &parker).is_pending());
    }
    assert!(wait_until(SOON, || server.stats().open == 8), "vacuity: they wait in the reactor");
    reactor.stop();
    for connect in waiting {
        let error = block_within(connect, SOON).expect("settled").expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "{error}");
    }
    assert!(wait_until(SOON, || reactor.is_stopped()));
    let late = failure(reactor.connect(stuck.addr));
    assert_eq!(late.kind(), ErrorKind::ConnectionAborted);
    assert!(late.to_string().contains("stopped"), "{late}");
}

/// A connect that races the stop of its reactor settles, whichever comes first; 1000 of 1000.
#[test]
fn a_connect_that_races_a_stop_settles() {
    let _case = start();
    let listener = TcpListener::bind(loopback()).unwrap();
    let addr = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let (mut made, mut refused) = (0, 0);
    let mut head_start = 100_u64;
    for round in 0..1000 {
        let runtime = Runtime::builder().reactors(1).build().unwrap();
        let reactor = runtime.handle();
        let begin = Arc::new(Barrier::new(2));
        let begun = begin.clone();
        let connecting = std::thread::spawn(move || {
            begun.wait();
            block_within(reactor.connect(addr), SOON)
        });
        begin.wait();
        // Tuned to the window, wherever this machine and its load put it.
        for _ in 0..head_start {
            std::hint::spin_loop();
        }
        runtime.handle().stop();
        match connecting.join().unwrap() {
            Some(Ok(_)) => {
                made += 1;
                // The queue must not fill: then nobody could connect any more.
                while listener.accept().is_ok() {}
                head_start -= head_start / 8;
            }
            Some(Err(error)) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionAborted, "round {round}: {error}");
                refused += 1;
                head_start = (head_start + head_start / 8 + 1).min(2_000_000);
            }
            None => panic!("round {round}: the connect never settled"),
        }
    }
    assert!(made > 0 && refused > 0, "vacuity: no race: {made} connected, {refused} were refused");
}

/// Nobody ever runs the reactor: what waits for it settles when it is given up.
#[test]
fn a_reactor_that_never_runs_settles_connects_when_it_goes() {
    let _case = start();
    let listener = TcpListener::bind(loopback()).unwrap();
    let reactor = Reactor::builder().build().unwrap();
    let parker = epoxide_tests_e2e::Parker::new();
    let mut connect = Box::pin(reactor.handle().connect(listener.local_addr().unwrap()));
    assert!(poll_once(connect.as_mut(), &parker).is_pending());
    drop(reactor);
    let error = block_within(connect, SOON).expect("settled").expect_err("nobody ran it");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

/// A reactor without listeners has clocks too.
#[test]
fn an_outbound_only_reactor_has_a_read_clock() {
    let case = start();
    let listener = TcpListener::bind(loopback()).unwrap();
    let config = ReactorConfig { read_timeout: Duration::from_millis(300), ..ReactorConfig::default() };
    let server = outbound(&case, config);
    let mut connection = settle(server.reactor().connect(listener.local_addr().unwrap())).unwrap();
    let error = block_within(connection.read(), SOON).expect("the clock runs").expect_err("nothing was sent");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

/// ... and lingers: the peer reads everything, then the FIN, and the descriptor closes behind the peer's own.
#[test]
fn an_outbound_only_reactor_lingers() {
    let case = start();
    let listener = TcpListener::bind(loopback()).unwrap();
    let server = outbound(&case, ReactorConfig::default());
    let mut connection = settle(server.reactor().connect(listener.local_addr().unwrap())).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    block_within(connection.send_all(b"the last words"), SOON).unwrap().unwrap();
    drop(connection);
    assert_eq!(read_all(&mut peer), b"the last words");
    assert!(wait_until(SOON, || server.stats().lingering == 1), "vacuity: it lingers");
    drop(peer);
    assert!(server.wait_quiet());
}

/// The last thing a temporary reactor does is not to reset what was let go in good order: more than the peer's window
/// holds is still in this side's kernel when the reactor ends.
#[test]
fn what_a_short_client_sent_arrives() {
    let _case = start();
    let listener = TcpListener::bind(loopback()).unwrap();
    setsockopt(&listener, sockopt::RcvBuf, &4096).unwrap();
    let addr = listener.local_addr().unwrap();
    let options = ConnectOptions { send_buffer_size: Some(200_000), ..ConnectOptions::default() };
    for _ in 0..10 {
        let options = options.clone();
        let client = std::thread::spawn(move || {
            epoxide::block_on(async move {
                let mut connection = epoxide::connect_with(addr, options).await?;
                connection.send_all(&[7; 100_000]).await
            })
        });
        let (mut peer, _) = listener.accept().unwrap();
        client.join().unwrap().unwrap();
        assert!(read_all(&mut peer) == [7; 100_000]);
    }
}

fn read_all(peer: &mut std::net::TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    peer.set_read_timeout(Some(SOON)).unwrap();
    io::Read::read_to_end(peer, &mut all).expect("no reset");
    all
}

#[test]
fn the_future_and_the_handle_are_send() {
    fn is_send<T: Send>() {}
    is_send::<Connect>();
    is_send::<ReactorHandle>();
}
